"""Attention layers for Keras 3.

`e = score(query, key)`, `a = normalizer(e, mask)`, `context = sum(a value)`: scores, normalizers
and masks are small parts, and the layers compose them.
"""

from .attention import Attention
from .decoding import beam_search, greedy_search
from .masking import causal_mask, combine_masks, padding_mask
from .normalizers import sigmoid, softmax, sparsemax
from .recurrent import AttentionDecoder
from .scores import (
    AdditiveScore,
    BilinearScore,
    CosineScore,
    DotScore,
    MLPScore,
    ScaledDotScore,
    Score,
)
from .targets import exporting
from .visualization import plot_attention

__version__ = "0.1.0"

__all__ = [
    "AdditiveScore",
    "Attention",
    "AttentionDecoder",
    "BilinearScore",
    "CosineScore",
    "DotScore",
    "MLPScore",
    "ScaledDotScore",
    "Score",
    "beam_search",
    "causal_mask",
    "combine_masks",
    "exporting",
    "greedy_search",
    "padding_mask",
    "plot_attention",
    "sigmoid",
    "softmax",
    "sparsemax",
]

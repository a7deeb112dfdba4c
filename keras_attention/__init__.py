"""Attention layers for Keras 3.

`e = score(query, key)`, `a = normalizer(e, mask)`, `context = sum(a value)`: scores, normalizers
and masks are small parts, and the layers compose them.
"""

from .attention import Attention
from .attention_gru import AttentionGRU
from .coupled import CoupledAttention
from .decoding import beam_search, greedy_search
from .ensemble import AttentionEnsemble
from .episodic import EpisodicMemory
from .extraction import attention_model
from .graph import GraphAttention, NeighbourhoodAttention
from .hard import GumbelSoftmax, SampledAttention
from .hierarchical import HierarchicalAttention
from .local import LocalAttention
from .masking import causal_mask, combine_masks, directional_mask, padding_mask, window_mask
from .memory import KeyValueMemory, position_encoding
from .monotonic import MonotonicAttention
from .normalizers import entmax15, hardmax, linear, proportional, sigmoid, softmax, sparsemax
from .pooling import AttentionPooling, MultiDimensionalPooling
from .positional_scores import AlibiScore, RelativePositionScore
from .positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from .recurrent import AttentionDecoder
from .regularizers import CoveragePenalty, DiversityPenalty, DoublyStochasticPenalty, EntropyPenalty
from .scores import (
    AdditiveScore,
    BilinearScore,
    CosineScore,
    DotScore,
    LocationScore,
    MLPScore,
    MultiDimensionalScore,
    ScaledDotScore,
    Score,
)
from .self_attention import SelfAttention
from .targets import exporting
from .transformer import TransformerDecoderBlock, TransformerEncoderBlock
from .visualization import plot_attention, plot_words

__version__ = "0.1.0"

__all__ = [
    "AdditiveScore",
    "AlibiScore",
    "Attention",
    "AttentionDecoder",
    "AttentionEnsemble",
    "AttentionGRU",
    "AttentionPooling",
    "BilinearScore",
    "CosineScore",
    "CoupledAttention",
    "CoveragePenalty",
    "DiversityPenalty",
    "DotScore",
    "DoublyStochasticPenalty",
    "EntropyPenalty",
    "EpisodicMemory",
    "GraphAttention",
    "GumbelSoftmax",
    "HierarchicalAttention",
    "KeyValueMemory",
    "LearnedPositions",
    "LocalAttention",
    "LocationScore",
    "MLPScore",
    "MonotonicAttention",
    "MultiDimensionalPooling",
    "MultiDimensionalScore",
    "NeighbourhoodAttention",
    "RelativePositionScore",
    "RotaryPositions",
    "SampledAttention",
    "ScaledDotScore",
    "Score",
    "SelfAttention",
    "SinusoidalPositions",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "attention_model",
    "beam_search",
    "causal_mask",
    "combine_masks",
    "directional_mask",
    "entmax15",
    "exporting",
    "greedy_search",
    "hardmax",
    "linear",
    "padding_mask",
    "plot_attention",
    "plot_words",
    "position_encoding",
    "proportional",
    "sigmoid",
    "softmax",
    "sparsemax",
    "window_mask",
]

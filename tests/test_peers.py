"""Beside other libraries: the same weights give the same numbers, and where they do not.

Keras is always here; PyTorch and keras_hub are compared where they are installed.
"""

import keras
import numpy as np
import pytest
from case import B, S, T
from conftest import randomize
from keras import ops
from reference import below

import keras_attention as ka
from keras_attention.heads import CrossAttention
from keras_attention.positional_scores import slopes
from keras_attention.positions import RotaryPositions, SinusoidalPositions
from keras_attention.self_attention import SelfAttention
from keras_attention.transformer import TransformerEncoderBlock

D, H, G, DEPTH = 12, 4, 2, 3
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # float32, products of some dozens of terms
RANDOM = np.random.default_rng(0)
X, MEMORY = (RANDOM.normal(size=(B, n, D)).astype("float32") for n in (S, T))
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def weights_by_name(layer):
    return {w.path.split("/", 1)[1]: array(w) for w in layer.weights}


def built(layer, *shapes):
    layer.build(*shapes)
    randomize(layer)
    return layer


def give(peer, ours):
    """Our weights to a layer of Keras, whose kernels have the heads in an axis of their own."""
    given = weights_by_name(ours)
    for weight in peer.weights:
        name = weight.path.split("/", 1)[1].replace("attention_output", "output")
        weight.assign(given[name].reshape(weight.shape))


@pytest.fixture
def plain():
    """`keras.layers.MultiHeadAttention` and ours, of equal weights."""
    ours = built(SelfAttention(H), (None, None, D))
    peer = keras.layers.MultiHeadAttention(H, DEPTH)
    peer.build((None, None, D), (None, None, D))
    give(peer, ours)
    return ours, peer


@pytest.mark.parametrize("masks", ["none", "padding", "pairs"])
def test_multi_head_attention(plain, masks):
    ours, peer = plain
    pairs = RANDOM.random((B, S, S)) < 0.7
    pairs |= np.eye(S, dtype=bool)
    own, others = {
        "none": ({}, {}),
        "padding": ({"mask": MASK}, {"value_mask": MASK}),
        "pairs": ({"attention_mask": pairs}, {"attention_mask": pairs}),
    }[masks]
    output, weights = ours(X, return_attention_scores=True, **own)
    wanted, scores = peer(X, X, return_attention_scores=True, **others)
    real = MASK if masks == "padding" else np.ones((B, S), bool)
    np.testing.assert_allclose(array(output)[real], array(wanted)[real], **CLOSE)
    weights, scores = (array(w).swapaxes(1, 2)[real] for w in (weights, scores))
    np.testing.assert_allclose(weights, scores, **CLOSE)
    assert np.all(array(output)[~real] == 0)  # Keras lets padding read


def test_causal_multi_head_attention(plain):
    ours, peer = plain
    given = SelfAttention.from_config({**ours.get_config(), "direction": "causal"})
    given.build((None, None, D))
    given.set_weights(ours.get_weights())
    np.testing.assert_allclose(array(given(X)), array(peer(X, X, use_causal_mask=True)), **CLOSE)

    # Of the last position alone Keras takes the place to be that of the first key.
    cache = given.initial_cache(B, S)
    _, cache = given(X[:, :-1], cache=cache, cache_index=0)
    last, _ = given(X[:, -1:], cache=cache, cache_index=S - 1)
    np.testing.assert_allclose(array(last), array(given(X))[:, -1:], **CLOSE)
    lost = array(peer(X[:, -1:], X, use_causal_mask=True))
    assert not np.allclose(lost, array(last), atol=0.01)
    seen = array(peer(X[:, -1:], X[:, :1]))
    np.testing.assert_allclose(lost, seen, **CLOSE)


def test_multi_head_attention_with_nothing_to_read(plain):
    """Ours gives the bias; Keras the mean of all values, or 0 of them when asked for scores."""
    ours, peer = plain
    bias = weights_by_name(ours)["output/bias"]
    pairs = np.ones((B, S, S), bool)
    pairs[:, 1] = False
    np.testing.assert_allclose(array(ours(X, attention_mask=pairs))[0, 1], bias, **CLOSE)
    asked, _ = peer(X, X, attention_mask=pairs, return_attention_scores=True)
    assert not np.allclose(array(peer(X, X, attention_mask=pairs))[0, 1], bias, atol=0.01)
    np.testing.assert_allclose(array(asked)[0, 1], bias, **CLOSE)


def test_multi_head_attention_over_a_memory():
    ours = built(CrossAttention(H, output_dim=7), (None, None, D), (None, None, D))
    peer = keras.layers.MultiHeadAttention(H, DEPTH, output_shape=7)
    peer.build((None, None, D), (None, None, D))
    give(peer, ours)
    mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    np.testing.assert_allclose(
        array(ours(X, MEMORY, memory_mask=mask)), array(peer(X, MEMORY, value_mask=mask)), **CLOSE
    )


def test_group_query_attention():
    ours = built(SelfAttention(H, num_key_value_heads=G, direction="causal"), (None, None, D))
    peer = keras.layers.GroupQueryAttention(DEPTH, H, G)
    peer.build((None, None, D), (None, None, D))
    give(peer, ours)
    np.testing.assert_allclose(array(ours(X)), array(peer(X, X, use_causal_mask=True)), **CLOSE)


def test_attention_of_keras():
    """The dot product; in `AdditiveAttention` there are no projections, but a `v`."""
    peer = keras.layers.Attention()
    wanted, scores = peer([X, MEMORY], return_attention_scores=True)
    output, weights = ka.Attention("dot")(X, MEMORY, return_attention_scores=True)
    np.testing.assert_allclose(array(output), array(wanted), **CLOSE)
    np.testing.assert_allclose(array(weights), array(scores), **CLOSE)
    mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    np.testing.assert_allclose(
        array(ka.Attention("dot")(X, MEMORY, value_mask=mask, query_mask=MASK)),
        array(peer([X, MEMORY], mask=[MASK, mask])),
        **CLOSE,
    )
    np.testing.assert_allclose(
        array(ka.Attention("dot")(X, X, use_causal_mask=True)),
        array(peer([X, X], use_causal_mask=True)),
        **CLOSE,
    )


def test_additive_attention_of_keras():
    """`v^T tanh(q + k)`: our additive score with kernels that change nothing."""
    peer = built(keras.layers.AdditiveAttention(), [(None, None, D), (None, None, D)])
    ours = ka.Attention(ka.AdditiveScore(D))
    ours.build((None, None, D), (None, None, D))
    by_name = {w.path.split("/")[-2]: w for w in ours.weights}
    by_name["query"].assign(np.eye(D))
    by_name["key"].assign(np.eye(D))
    by_name["score"].assign(array(peer.weights[0])[:, None])
    np.testing.assert_allclose(array(ours(X, MEMORY)), array(peer([X, MEMORY])), **CLOSE)


# --- Where they are installed -------------------------------------------------------------------


def torch_attention(torch, given):
    """`torch.nn.MultiheadAttention` of our weights; it holds the three projections as one."""
    peer = torch.nn.MultiheadAttention(D, H, batch_first=True)
    projections = ("query", "key", "value")
    with torch.no_grad():
        for target, kernels in (
            (peer.in_proj_weight, [given[f"{name}/kernel"].T for name in projections]),
            (peer.in_proj_bias, [given[f"{name}/bias"] for name in projections]),
            (peer.out_proj.weight, [given["output/kernel"].T]),
            (peer.out_proj.bias, [given["output/bias"]]),
        ):
            target.copy_(torch.tensor(np.concatenate(kernels)))
    return peer


def test_torch_multi_head_attention():
    """PyTorch's masks say what is hidden; of a row with nothing to read it gives NaN."""
    torch = pytest.importorskip("torch")
    ours = built(SelfAttention(H), (None, None, D))
    causal = SelfAttention.from_config({**ours.get_config(), "direction": "causal"})
    causal.build((None, None, D))
    causal.set_weights(ours.get_weights())
    peer, x = torch_attention(torch, weights_by_name(ours)).eval(), torch.tensor(X)
    hidden = torch.tensor(~np.tril(np.ones((S, S), bool)))
    for layer, given, masks in (
        (ours, {}, {}),
        (ours, {"mask": MASK}, {"key_padding_mask": torch.tensor(~MASK)}),
        (causal, {}, {"attn_mask": hidden}),
    ):
        with torch.no_grad():
            wanted, scores = peer(x, x, x, average_attn_weights=False, **masks)
        real = MASK if given else np.ones((B, S), bool)
        output, weights = layer(X, return_attention_scores=True, **given)
        np.testing.assert_allclose(array(output)[real], wanted.numpy()[real], **CLOSE)
        weights, scores = array(weights).swapaxes(1, 2), scores.numpy().swapaxes(1, 2)
        np.testing.assert_allclose(weights[real], scores[real], **CLOSE)


@pytest.mark.parametrize("first", [False, True])
def test_torch_transformer_encoder_layer(first):
    torch = pytest.importorskip("torch")
    ours = TransformerEncoderBlock(9, H, normalize_first=first)
    built(ours, (None, None, D))
    given = weights_by_name(ours)
    peer = torch.nn.TransformerEncoderLayer(
        D, H, 9, dropout=0.0, batch_first=True, norm_first=first
    ).eval()
    peer.self_attn = torch_attention(torch, below(given, "attention")).eval()
    with torch.no_grad():
        for ours_name, theirs in (("hidden", peer.linear1), ("output", peer.linear2)):
            theirs.weight.copy_(torch.tensor(given[f"{ours_name}/kernel"].T))
            theirs.bias.copy_(torch.tensor(given[f"{ours_name}/bias"]))
        for ours_name, theirs in (("norm_0", peer.norm1), ("norm_1", peer.norm2)):
            theirs.weight.copy_(torch.tensor(given[f"{ours_name}/gamma"]))
            theirs.bias.copy_(torch.tensor(given[f"{ours_name}/beta"]))
        wanted = peer(torch.tensor(X), src_key_padding_mask=torch.tensor(~MASK)).numpy()
    np.testing.assert_allclose(array(ours(X, mask=MASK))[MASK], wanted[MASK], **CLOSE)


def test_keras_hub_transformer_encoder():
    hub = pytest.importorskip("keras_hub")
    ours = built(TransformerEncoderBlock(9, H), (None, None, D))
    peer = hub.layers.TransformerEncoder(9, H)
    peer.build((None, None, D))
    names = {
        "self_attention_layer": "attention",
        "attention_output": "output",
        "self_attention_layer_norm": "norm_0",
        "feedforward_layer_norm": "norm_1",
        "feedforward_intermediate_dense": "hidden",
        "feedforward_output_dense": "output",
    }
    given = weights_by_name(ours)
    for weight in peer.weights:
        parts = weight.path.split("/")[1:]
        name = "/".join(names.get(part, part) for part in parts)
        weight.assign(given[name].reshape(weight.shape))
    found, wanted = array(ours(X, mask=MASK)), array(peer(X, padding_mask=MASK))
    np.testing.assert_allclose(found[MASK], wanted[MASK], **CLOSE)


def test_keras_hub_positions():
    """Sines and cosines take turns in both; rotary pairs are neighbours in ours, halves there."""
    hub = pytest.importorskip("keras_hub")
    found = array(SinusoidalPositions().encoding(X, start_index=2))
    wanted = array(hub.layers.SinePositionEncoding()(X, start_index=2))
    np.testing.assert_allclose(found, wanted, **CLOSE)
    halves = np.concatenate([np.arange(0, D, 2), np.arange(1, D, 2)])  # of neighbours
    peer = hub.layers.RotaryEmbedding(sequence_axis=1, feature_axis=-1)
    wanted = array(peer(X[..., halves], start_index=2))
    found = array(RotaryPositions()(X, start_index=2))
    np.testing.assert_allclose(found[..., halves], wanted, **CLOSE)


@pytest.mark.parametrize("heads", [4, 6])
def test_keras_hub_alibi(heads):
    """The same slopes; there keys behind a query are rewarded, for a causal mask hides them."""
    hub = pytest.importorskip("keras_hub")
    bias = array(hub.layers.AlibiBias()(np.zeros((1, heads, S, S), "float32")))[0]
    for h, slope in enumerate(slopes(heads)):
        distance = np.arange(S)[None, :] - np.arange(S)[:, None]
        # Softmax sees differences in a row alone.
        wanted = np.where(distance <= 0, slope * distance, 0.0)
        found = np.where(distance <= 0, bias[h] - np.diagonal(bias[h])[:, None], 0.0)
        np.testing.assert_allclose(found, wanted, **CLOSE)

"""Faults of Keras and TensorFlow that this library works around, asserted to be still there.

When one of these fails after an upgrade, the fault is gone, and the comment says which workaround
may go with it.
"""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

TENSORFLOW = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.tensorflow("a fault on TensorFlow")
jax_only = pytest.mark.skipif(TENSORFLOW, reason="a fault on JAX")


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in tensors]


def test_a_nested_layer_is_saved_with_its_build_config():
    # Goes: dropping "build_config" in scores.get.
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    config = keras.saving.serialize_keras_object(layer)
    assert "build_config" in config
    assert keras.saving.deserialize_keras_object(config).built


def test_a_dtype_policy_object_stops_the_automatic_config():
    # Goes: Score.get_config, which only calls super.
    class Plain(keras.layers.Layer):
        pass

    Plain(dtype="float32").get_config()
    with pytest.raises(NotImplementedError):
        Plain(dtype=keras.DTypePolicy("float32")).get_config()


def test_multi_head_attention_tells_a_wrong_symbolic_shape():
    # Goes: compute_output_spec written out in Attention.
    layer = keras.layers.MultiHeadAttention(2, 4)
    query, value = keras.Input((3, 8)), keras.Input((5, 8))
    _, scores = layer(query, value, return_attention_scores=True)
    assert scores.shape == (None, 2, 3, 3)  # real: (None, 2, 3, 5)


def test_attention_returns_weights_from_after_dropout():
    # Goes: the note in our docstring that ours are from before.
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
    layer = keras.layers.Attention(dropout=0.5, seed=1)
    _, weights = layer([x, x], return_attention_scores=True, training=True)
    assert not np.allclose(arrays([weights])[0].sum(-1), 1.0, atol=0.1)


def test_attention_reads_uniformly_where_nothing_may_be_read():
    # Goes: the second selection in normalizers.softmax.
    x = np.ones((1, 4, 3), "float32")
    mask = np.zeros((1, 4), bool)
    _, weights = keras.layers.Attention()([x, x], mask=[None, mask], return_attention_scores=True)
    np.testing.assert_allclose(arrays([weights])[0], 0.25)


def test_causal_attention_lets_the_first_query_stand_at_the_first_key():
    # Goes: the note on use_causal_mask in Attention.
    query, value = np.ones((1, 1, 3), "float32"), np.ones((1, 4, 3), "float32")
    _, weights = keras.layers.Attention()(
        [query, value], use_causal_mask=True, return_attention_scores=True
    )
    np.testing.assert_allclose(arrays([weights])[0], [[[1, 0, 0, 0]]])


def test_half_precision_attention_subtracts_from_masked_scores():
    # Goes: selecting before and after in normalizers.softmax, widening before it.
    query = np.array([[[200.0]]], "float16")
    value = np.array([[[300.0], [-100.0]]], "float16")  # scores 60000 and -20000
    mask = np.array([[False, True]])
    _, weights = keras.layers.Attention(dtype="float16")(
        [query, value], mask=[None, mask], return_attention_scores=True
    )
    np.testing.assert_allclose(arrays([weights])[0], [[[1, 0]]])


def test_a_recurrent_layer_takes_no_constants():
    # Goes: the cell that closes over the memory in loops._differentiable_loop.
    layer = keras.layers.RNN(keras.layers.GRUCell(3))
    with pytest.raises(TypeError, match="constants"):
        layer(np.ones((1, 2, 3), "float32"), constants=[np.ones((1, 2), "float32")])


@tensorflow_only
def test_scan_has_no_gradient_under_xla():
    # Goes: keras.layers.RNN as the loop of training, in loops._differentiable_loop.
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result, _ = ops.scan(lambda carry, y: (carry * y, carry), tf.constant(1.0), x)
        return tape.gradient(result, x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="tensor list size"):
        gradient(tf.constant([1.0, 2.0]))


@tensorflow_only
def test_slice_update_has_no_gradient():
    # Goes: the second loop, loops._exported_loop could be the only one.
    import tensorflow as tf

    x = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = ops.slice_update(ops.zeros((2,)), [0], x)
    with pytest.raises(LookupError, match="DynamicUpdateSlice"):
        tape.gradient(result, x)


@tensorflow_only
def test_xla_on_the_cpu_accepts_unknown_shapes():
    # Goes: the look for "<=" in the compiled program, in test_contracts.test_compiled.
    import tensorflow as tf

    compiled = tf.function(tf.where, jit_compile=True)
    assert compiled(tf.constant([True, False, True])).shape == (2, 1)


@tensorflow_only
def test_a_tensor_array_that_grows_is_lost_under_xla():
    # Goes: the fixed buffers of loops and decoding.
    import tensorflow as tf

    def function(length):
        rows = tf.TensorArray("int32", size=0, dynamic_size=True, element_shape=[])
        _, rows = tf.while_loop(
            lambda i, rows: i < length,
            lambda i, rows: (i + 1, rows.write(i, i)),
            (0, rows),
        )
        return rows.stack()

    length = tf.constant(3)
    assert tf.function(function)(length).numpy().tolist() == [0, 1, 2]
    assert tf.function(function, jit_compile=True)(length).numpy().tolist() == []


def test_orthogonal_initializer_has_no_bfloat16():
    # Goes: scores.widely.
    with pytest.raises(Exception, match="bfloat16"):
        keras.initializers.Orthogonal(seed=0)((2, 2), dtype="bfloat16")


def test_softmax_warns_of_a_single_entry():
    # Goes: normalizers._softmax, where Keras stays silent.
    with pytest.warns(UserWarning, match="axis has size 1"):
        ops.softmax(np.ones((2, 1), "float32"))


@jax_only
def test_tanh_of_float64_is_float32():
    # Goes: AttentionDecoder._computed, and the repair in conftest.
    assert keras.backend.standardize_dtype(ops.tanh(np.ones(2)).dtype) == "float32"


@jax_only
def test_no_result_type_is_float64():
    # Goes: normalizers.wide_dtype, for keras.backend.result_type(dtype, "float32").
    assert keras.backend.result_type("float64", "float32") == "float32"


# Two batches by Keras's own `fit`; a process each, because devices cannot be made later.
FIT = """
import os, sys, json
import numpy as np, keras, tensorflow as tf

def trained(strategy, kind):
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(5, 3, mask_zero=kind == "mask"),
            keras.layers.Dense(5),
        ])
        rng = np.random.default_rng(0)
        model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
        clip = 0.05 if kind == "clip" else None
        optimizer = keras.optimizers.SGD(0.5, global_clipnorm=clip)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = rng.integers(1, 5, (8, 4)).astype("int32")
    x[2:4, 1:] = x[6:8, 1:] = 0  # of a batch of 4 the second half is short
    model.fit(x, (x + 1) % 5, batch_size=4, shuffle=False, verbose=0)
    return [w.tolist() for w in model.get_weights()]

def dropped(strategy):
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)
        layer.build((4, 64))
    masks = strategy.run(lambda: layer(tf.ones((4, 64)), training=True))
    return [x.numpy().tolist() for x in strategy.experimental_local_results(masks)]
"""

MIRRORED = """
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
reduction = tf.distribute.ReductionToOneDevice()
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)
kinds = ("none", "mask", "clip")
found = {kind: [trained(s, kind) for s in (tf.distribute.get_strategy(), two)] for kind in kinds}
print(json.dumps({**found, "dropout": dropped(two)}))
"""

WORKERS = """
try:
    trained(tf.distribute.MultiWorkerMirroredStrategy(), "none")
except Exception as error:
    print("failed:", str(error).splitlines()[0], flush=True)
else:
    print("trained", flush=True)
os._exit(0)  # its servers would wait for one another
"""

SERVERS = """
import socket
free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
names = [["127.0.0.1:%d" % s.getsockname()[1]] for s in free]
for s in free:
    s.close()
cluster = tf.train.ClusterSpec(dict(zip(("worker", "ps"), names)))
servers = [tf.distribute.Server(cluster, job_name=job, task_index=0) for job in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
try:
    trained(tf.distribute.ParameterServerStrategy(resolver), "none")
except Exception as error:
    print("failed:", str(error).splitlines()[0], flush=True)
else:
    print("trained", flush=True)
os._exit(0)
"""


def alone(code):
    """The command of a process that runs this, on CPUs."""
    return [sys.executable, "-c", code]


def last_line(command):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def by_fit():
    return json.loads(last_line(alone(FIT + MIRRORED)))


def difference(one, other):
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@tensorflow_only
def test_fit_on_two_replicas_weighs_tokens_by_their_replica(by_fit):
    # Goes: the weight of the whole batch as the divisor in TensorFlowSteps; a masked loss could be
    # left to `fit`.
    assert difference(*by_fit["none"]) < 1e-6
    assert difference(*by_fit["mask"]) > 1e-2


@pytest.mark.slow
@tensorflow_only
def test_fit_on_two_replicas_clips_before_the_sum(by_fit):
    # Goes: `clip` of the Trainer, for the optimizer's own, which it refuses.
    assert difference(*by_fit["clip"]) > 1e-3


@pytest.mark.slow
@tensorflow_only
def test_replicas_drop_the_same_places(by_fit):
    # Goes: tensorflow_steps._moved and what puts the seeds back.
    one, other = by_fit["dropout"]
    assert one == other
    assert 0.3 < np.mean(np.equal(one, 0)) < 0.7


@pytest.mark.slow
@tensorflow_only
def test_fit_on_two_workers_fails():
    # Goes: nothing at once; with the two above, steps of our own on TensorFlow.
    launcher = (
        "import sys; from keras_attention.recipes.launch import launch\n"
        "sys.exit(launch([sys.executable, '-c', sys.argv[1]], workers=2, restarts=0))"
    )
    assert "failed: Attempt to convert a value (PerReplica" in last_line(
        [*alone(launcher), FIT + WORKERS]
    )


@pytest.mark.slow
@tensorflow_only
def test_fit_with_a_parameter_server_fails():
    # Goes: "parameterserver" among those that strategies.choose refuses.
    assert last_line(alone(FIT + SERVERS)).startswith("failed: ")


@tensorflow_only
def test_adam_squares_each_occurrence_of_an_embedded_token():
    # Goes: making gradients dense in TensorFlowSteps._train. Keras on JAX squares their sum.
    import tensorflow as tf

    layer = keras.layers.Embedding(3, 2)
    layer.build()
    optimizer = keras.optimizers.Adam(beta_2=0.5)
    optimizer.build(layer.trainable_variables)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(np.array([[1, 1, 1]])))
    [gradient] = tape.gradient(total, [layer.embeddings.value])
    assert isinstance(gradient, tf.IndexedSlices)
    optimizer.apply([gradient])
    [velocity] = [v for v in optimizer.variables if v.path.endswith("velocity")]
    np.testing.assert_allclose(arrays([velocity])[0][1], 0.5 * 3)  # right: 0.5 * 3**2


def test_weights_on_disk_hold_no_state_of_a_seed(tmp_path):
    # Goes: checkpoints of `model.variables`, for files of weights.
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, seed=1)])
    [seed] = model.variables
    before = arrays([seed])[0]
    model(np.ones((1, 4), "float32"), training=True)
    after = arrays([seed])[0]
    assert not np.array_equal(before, after)
    model.save_weights(tmp_path / "a.weights.h5")
    seed.assign(before)
    model.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(arrays([seed])[0], before)

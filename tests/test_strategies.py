"""Which strategy is chosen and why, and what is refused, each time in one line."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention.recipes import strategies
from keras_attention.recipes.errors import PeerLost, UsageError
from keras_attention.recipes.strategies import Strategy, check_batch_size
from keras_attention.recipes.training import Trainer

pytestmark = pytest.mark.tensorflow("JAX is asked in a process of its own")

TWO = ["10.0.0.1:2222", "10.0.0.2:2222"]


def tf_config(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def refusal(function, *arguments, **options):
    with pytest.raises(UsageError) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """GPUs that there seem to be, none at first."""
    import tensorflow as tf

    real, made_up = tf.config.list_physical_devices, []

    def devices(kind=None):
        return list(made_up) if kind == "GPU" else real(kind)

    monkeypatch.setattr(tf.config, "list_physical_devices", devices)
    return made_up


@pytest.fixture
def clusters(monkeypatch):
    """TensorFlow's strategy of several processes, which would wait for them, for one that knows
    only how many devices there are."""
    import tensorflow as tf

    class OfSix:
        num_replicas_in_sync = 6

        def __init__(self, communication_options):
            self.options = communication_options

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", OfSix)


@pytest.fixture
def mirrored():
    """One replica, which needs no further devices."""
    return strategies.choose("mirrored", replicas=1, environment={})


def model_of(strategy):
    with strategy.scope():
        x = keras.Input((2,), name="x")
        return keras.Model(x, keras.layers.Dense(3)(x))


def test_auto_takes_one_device_where_there_is_nothing_else():
    strategy = strategies.choose(environment={})
    assert (strategy.name, strategy.replicas, strategy.workers) == ("one", 1, 1)
    assert strategy.is_chief and not strategy.accelerated
    assert str(strategy) == (
        "strategy one on tensorflow, 1 replica (0 GPU(s), no cluster in the environment)"
    )


@pytest.mark.parametrize("kind", ["worker", "chief"])
def test_a_cluster_of_one_is_one(kind):
    environment = tf_config({kind: TWO[:1]}, kind)
    assert strategies.choose(environment=environment).name == "one"
    assert "names no other workers" in refusal(
        strategies.choose, "multiworker", environment=environment
    )


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": {}}', '{"cluster": {"worker": []}}'])
def test_an_empty_cluster_is_none(text):
    assert strategies.choose(environment={"TF_CONFIG": text}).name == "one"


@pytest.mark.parametrize("kind, index, rank", [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)])
def test_the_chief_stands_before_the_workers(clusters, kind, index, rank):
    environment = tf_config({"worker": TWO, "chief": ["10.0.0.3:2222"]}, kind, index)
    strategy = strategies.choose(environment=environment)
    assert (strategy.name, strategy.workers, strategy.worker) == ("multiworker", 3, rank)
    assert strategy.is_chief == (rank == 0)
    assert str(strategy) == (
        f"strategy multiworker on tensorflow, 6 replicas, worker {rank} of 3 "
        "(TF_CONFIG names 3 workers)"
    )


def test_the_first_worker_is_the_chief_where_none_is_named(clusters):
    chiefs = [
        strategies.choose("multiworker", environment=tf_config({"worker": TWO}, index=i)).is_chief
        for i in (0, 1)
    ]
    assert chiefs == [True, False]


def test_several_gpus_are_mirrored_on(gpus, monkeypatch):
    import tensorflow as tf

    class Mirrored:
        def __init__(self, devices):
            self.devices, self.num_replicas_in_sync = devices, len(devices)

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", Mirrored)
    gpus.append("a GPU")
    assert strategies.choose(environment={}).name == "one"
    gpus.append("another")
    assert str(strategies.choose(environment={})) == (
        "strategy mirrored on tensorflow, 2 replicas (2 GPUs)"
    )
    assert strategies.choose(replicas=1, environment={}).replicas == 1
    line = refusal(strategies.choose, "mirrored", replicas=3, environment={})
    assert line.startswith("3 replicas need as many devices and there are 2: take fewer")


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "TF_CONFIG cannot be read (JSONDecodeError"),
        ("[]", "TF_CONFIG cannot be read (AttributeError"),
        ('{"cluster": {"worker": 3}}', "TF_CONFIG cannot be read (TypeError"),
        (
            json.dumps({"cluster": {"worker": TWO}}),
            "(KeyError: 'task'): it must be JSON of a cluster, the addresses of its workers, and a "
            "task",
        ),
        (
            tf_config({"worker": TWO, "ps": ["10.0.0.3:2222"]})["TF_CONFIG"],
            "names parameter servers, and ParameterServerStrategy is not supported by Keras 3: "
            "name workers only",
        ),
        (
            tf_config({"worker": TWO}, "evaluator")["TF_CONFIG"],
            "makes this process a 'evaluator': it must be chief or worker",
        ),
        (
            tf_config({"worker": TWO}, index=2)["TF_CONFIG"],
            "makes this process worker 2, which it has no address of",
        ),
        (tf_config({"chief": TWO[:1], "worker": TWO[1:]}, "chief", 1)["TF_CONFIG"], "chief 1"),
        (tf_config({"chief": TWO[:1], "worker": TWO[1:]}, index=-1)["TF_CONFIG"], "worker -1"),
        (tf_config({"worker": TWO}, "chief")["TF_CONFIG"], "chief 0"),
    ],
)
def test_a_broken_cluster_is_refused_whatever_the_strategy(text, says):
    for name in ("auto", "one", "multiworker"):
        assert says in refusal(strategies.choose, name, environment={"TF_CONFIG": text})


@pytest.mark.parametrize(
    "name, says",
    [
        ("parameter_server", "ParameterServerStrategy is not supported by Keras 3: take mirrored"),
        ("ParameterServerStrategy", "ParameterServerStrategy is not supported by Keras 3: take"),
        ("central_storage", "CentralStorageStrategy tells wrong losses and saves nothing: take"),
        ("CentralStorageStrategy", "CentralStorageStrategy tells wrong losses"),
        ("mirored", "no strategy 'mirored': take one of auto, one, mirrored, multiworker, tpu"),
        ("", "no strategy ''"),
        ("multiworker", "names no other workers: start them by keras-attention launch, or take"),
        ("mirrored", "no GPU to mirror on: take --strategy one, or --replicas"),
    ],
)
def test_what_is_not_there_is_refused(name, says):
    assert says in refusal(strategies.choose, name, environment={})


def test_tensorflow_without_a_tpu_names_the_command_for_jax(monkeypatch):
    import tensorflow as tf

    def connect():  # the real one would look in the network
        raise ValueError("Please provide a TPU Name to connect to.")

    monkeypatch.setattr(tf.distribute.cluster_resolver.TPUClusterResolver, "connect", connect)
    line = refusal(strategies.choose, "tpu", environment={})
    assert "take --backend jax --strategy tpu (in Python: KERAS_BACKEND=jax)" in line


@pytest.mark.parametrize(
    "name, replicas, says",
    [
        ("one", 2, "strategy one has its own number of replicas: leave it out"),
        ("tpu", 8, "strategy tpu has its own number of replicas: leave it out"),
        ("mirrored", 0, "replicas must be 1 or more, not 0"),
        ("auto", -1, "replicas must be 1 or more, not -1"),
    ],
)
def test_a_number_of_replicas_that_does_not_fit_is_refused(name, replicas, says):
    assert refusal(strategies.choose, name, replicas=replicas, environment={}) == says


def test_a_tensorflow_worker_takes_all_that_it_has(clusters):
    line = refusal(
        strategies.choose, "multiworker", replicas=2, environment=tf_config({"worker": TWO})
    )
    assert line.endswith("takes all its GPUs, or one CPU: leave --replicas")


def test_devices_are_chosen_before_anything_is_computed():
    keras.ops.ones(1)
    line = refusal(strategies.choose, "mirrored", replicas=3, environment={})
    assert line.endswith("after something was computed: choose the strategy first")


def test_replicas_alone_mean_mirrored():
    strategy = strategies.choose(replicas=1, environment={})
    assert str(strategy) == "strategy mirrored on tensorflow, 1 replica (asked for)"


def test_a_model_from_outside_of_the_scope_is_refused(mirrored):
    model = model_of(Strategy())
    line = refusal(Trainer, model, strategy=mirrored)
    assert line == (
        f"{model.name} was made outside of the strategy: make or load it under "
        "`with strategy.scope():`"
    )
    Trainer(model_of(mirrored), strategy=mirrored)
    Trainer(model, strategy=strategies.choose("one", environment={}))


def test_xla_is_refused_under_mirrored(mirrored):
    line = refusal(Trainer, model_of(mirrored), strategy=mirrored, jit=True)
    assert line.startswith("TensorFlow cannot compile a step under strategy mirrored: leave --jit")


def of_replicas(count):
    strategy = Strategy()
    strategy.replicas = count
    return strategy


@pytest.mark.parametrize(
    "size, replicas, pieces, says",
    [
        (30, 4, 1, "a batch of 30 does not divide over 4 replicas: take 28 or 32"),
        (3, 4, 1, "a batch of 3 does not divide over 4 replicas: take 4"),
        (64, 3, 1, "a batch of 64 does not divide over 3 replicas: take 63 or 66"),
        (36, 4, 2, "a batch of 36 does not divide over 4 replicas of 2 pieces: take 32 or 40"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(size, replicas, pieces, says):
    assert refusal(check_batch_size, size, of_replicas(replicas), pieces) == says


@pytest.mark.parametrize("size, replicas, pieces", [(7, 1, 1), (32, 4, 1), (32, 4, 2), (4, 4, 1)])
def test_a_batch_that_divides_is_taken(size, replicas, pieces):
    check_batch_size(size, of_replicas(replicas), pieces)


def test_one_process_agrees_with_itself():
    strategy = Strategy()
    np.testing.assert_array_equal(strategy.total([0.1, 2]), [0.1, 2])
    assert strategy.as_the_chief(True) is True and strategy.as_the_chief(False) is False
    strategy.wait()


@pytest.mark.parametrize("code, waits", [(0, 1), (1, 0), (75, 0)])
def test_workers_leave_together_where_all_went_well(monkeypatch, code, waits):
    calls = []

    class OfTwo(Strategy):
        def wait(self):
            calls.append("waits")
            raise PeerLost("the other worker has left")

    monkeypatch.setattr(os, "_exit", calls.append)
    OfTwo().leave(code)
    assert calls == ["waits"] * waits + [code]


# Chooses on JAX, one after the other, and tells the strategy or the refusal.
CHOOSE = """
import json, sys
import jax
from keras_attention.recipes import strategies
from keras_attention.recipes.errors import UsageError

class Joined(Exception): pass

def joined(coordinator, workers, worker):  # instead of waiting for the others
    raise Joined(f"joins {workers} at {coordinator} as {worker}")

jax.distributed.initialize = joined
for name, replicas, environment in json.load(sys.stdin):
    try:
        said = str(strategies.choose(name, replicas=replicas, environment=environment))
    except (UsageError, Joined) as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said))
"""


def test_on_jax(tmp_path):
    by_jax = {"JAX_COORDINATOR_ADDRESS": "10.0.0.9:1", "JAX_NUM_PROCESSES": "2"}
    both = {**by_jax, "JAX_PROCESS_ID": "1", **tf_config({"worker": TWO}, index=0)}
    no_cluster = "UsageError: the environment names no other workers: start them by"
    mine = "the environment makes this worker 2 of 2: its number must be from 0 to 1"
    asked = [  # what is asked for, and how the answer begins
        (("mirrored", 2, {}), "strategy mirrored on jax, 2 replicas (asked for)"),
        (("auto", None, {}), "strategy one on jax, 1 replica (2 cpu device(s))"),
        (("mirrored", 3, {}), "UsageError: 3 replicas need as many devices and there are 2: take"),
        (("tpu", None, {}), "UsageError: JAX sees no TPU here, only cpu: install jax[tpu]"),
        (("multiworker", None, {}), no_cluster),
        # TensorFlow's variable will do; the first member is the one who is waited for.
        (("auto", None, tf_config({"worker": TWO}, index=1)), f"Joined: joins 2 at {TWO[0]} as 1"),
        (
            ("multiworker", None, tf_config({"worker": TWO, "chief": ["10.0.0.3:1"]}, index=1)),
            "Joined: joins 3 at 10.0.0.3:1 as 2",
        ),
        (("auto", None, both), "Joined: joins 2 at 10.0.0.9:1 as 1"),
        (("one", None, both), "strategy one on jax"),
        (
            ("auto", None, {**both, "JAX_NUM_PROCESSES": "two"}),
            "UsageError: JAX_NUM_PROCESSES is not a number: 'two'",
        ),
        (
            ("auto", None, {**both, "JAX_PROCESS_ID": "1.0"}),
            "UsageError: JAX_PROCESS_ID is not a number: '1.0'",
        ),
        (("auto", None, {**both, "JAX_PROCESS_ID": "2"}), f"UsageError: {mine}"),
        (("auto", None, by_jax), "UsageError: JAX_PROCESS_ID must be set, too"),
        (("auto", None, {**both, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}), "strategy one"),
    ]
    environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}
    process = subprocess.run(
        [sys.executable, "-c", CHOOSE],
        input=json.dumps([question for question, _ in asked]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(answers) == len(asked), process.stderr
    for (question, beginning), answer in zip(asked, answers, strict=True):
        assert answer.startswith(beginning), (question, answer)
        assert "\n" not in answer

"""Where the replicas of a model are: chosen by name or by what the machine and environment have.

A training is several processes (workers) of one or more devices each; on every device there is a
replica. A strategy is chosen first of all, before anything is computed, because TensorFlow and JAX
decide then what their devices are.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from .errors import PeerLost, UsageError
from .interruptions import lost_peers

NAMES = ("auto", "one", "mirrored", "multiworker", "tpu")

_REFUSED = {
    "parameterserver": "ParameterServerStrategy is not supported by Keras 3",
    "centralstorage": "CentralStorageStrategy tells wrong losses and saves nothing",
}

_NOTHING_TO_MIRROR = "there is no GPU to mirror on: take --strategy one, or --replicas"


class Strategy:
    """One device of one process, and what all other strategies have too.

    Attributes:
        name: as in `NAMES`.
        reason: why it was chosen.
        workers: number of processes.
        worker: which of them this is, from 0.
        replicas: number of devices of all processes.
        accelerated: whether the devices are GPUs or TPUs.
    """

    name = "one"
    _distribution = None  # a tf.distribute.Strategy

    def __init__(self, reason: str = "asked for"):
        self.reason = reason
        self.workers, self.worker, self.replicas = 1, 0, 1
        self.accelerated = _accelerator() is not None

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.worker == 0

    def scope(self) -> contextlib.AbstractContextManager:
        """The context in which the model is to be made or loaded."""
        return contextlib.nullcontext()

    def steps(self, objective, optimizer, *, jit: bool = False, sharded: bool = False, **options):
        """The steps of training and measuring on these devices.

        Raises:
            UsageError: for `jit` where TensorFlow cannot compile, and for `sharded` on JAX.
        """
        if sharded:
            self.check_sharded()
        if _on_jax():
            from .jax_steps import JaxSteps

            return JaxSteps(objective, optimizer, devices=self._devices(), **options)
        from .tensorflow_steps import TensorFlowSteps

        return TensorFlowSteps(
            objective,
            optimizer,
            jit=jit,
            sharded=sharded,
            distribution=self._distribution,
            **options,
        )

    def total(self, values: Sequence[float]) -> np.ndarray:
        """The sums over the workers of the values that each of them has; all wait for all.

        Raises:
            PeerLost: when another worker is gone.
        """
        return np.asarray(values, "float64")

    def as_the_chief(self, decision: bool) -> bool:
        """What the first worker has decided."""
        return bool(self.total([decision and self.is_chief])[0])

    def wait(self) -> None:
        """Until all workers are here."""
        self.total([0.0])

    def leave(self, code: int) -> None:
        """End this process, of several, with an exit code.

        At once, where an orderly end could wait for ever: TensorFlow's for its servers, JAX's for
        a worker that is gone. Where all went well all leave together: a sum that has arrived here
        may still be on its way to another, who would miss this one.
        """
        if not code:
            with contextlib.suppress(PeerLost):
                self.wait()
        sys.stdout.flush()
        sys.stderr.flush()
        if code or not _on_jax():
            os._exit(code)

    def check_sharded(self) -> None:
        """Refuse batches of each worker's own where they cannot be trained on.

        Raises:
            UsageError: for several workers on JAX.
        """
        if self.workers > 1 and _on_jax():
            raise UsageError(
                "on JAX all workers form the same batches, of one shape: take the shard policy data"
            )

    def check(self, model: keras.Model) -> None:
        """Refuse a model that was made outside of `scope`.

        Raises:
            UsageError: with what to do.
        """

    def _devices(self):
        import jax

        return jax.local_devices()[:1]

    def __str__(self) -> str:
        where = f"{self.replicas} replica{'s' if self.replicas > 1 else ''}"
        if self.workers > 1:
            where += f", worker {self.worker} of {self.workers}"
        return f"strategy {self.name} on {keras.backend.backend()}, {where} ({self.reason})"


class _TensorFlowReplicas(Strategy):
    """Copies of the variables on several devices, kept equal by `tf.distribute`."""

    def __init__(self, reason, name, distribution, workers=1, worker=0):
        super().__init__(reason)
        self.name = name
        self.workers, self.worker = workers, worker
        self.replicas = distribution.num_replicas_in_sync
        self._distribution = distribution
        self._compiled_total = None

    def scope(self):
        return self._distribution.scope()

    def steps(self, objective, optimizer, *, jit: bool = False, **options):
        if jit:
            raise UsageError(
                f"TensorFlow cannot compile a step under strategy {self.name}: leave --jit out, or "
                "take --backend jax, which always compiles"
            )
        return super().steps(objective, optimizer, **options)

    def total(self, values):
        if self.workers == 1:
            return super().total(values)
        import tensorflow as tf

        if self._compiled_total is None:

            def on_replica(values):
                # A tensor of this replica: what comes from outside has no place to be reduced to.
                own = tf.identity(values)
                return tf.distribute.get_replica_context().all_reduce("SUM", own)

            def summed(values):
                sums = self._distribution.run(on_replica, args=(values,))
                return self._distribution.experimental_local_results(sums)[0]

            self._compiled_total = tf.function(summed, autograph=False)
        # Of a worker's replicas each adds the same values.
        share = self.workers / self.replicas
        with lost_peers(self.workers):
            return self._compiled_total(tf.constant(values, "float64")).numpy() * share

    def check(self, model):
        extended = self._distribution.extended
        if not all(extended.variable_created_in_scope(v.value) for v in model.variables):
            raise UsageError(
                f"{model.name} was made outside of the strategy: make or load it under "
                "`with strategy.scope():`"
            )


class _JaxReplicas(Strategy):
    """The batch across several devices, of one process or of many."""

    def __init__(self, reason, name, devices):
        import jax

        super().__init__(reason)
        self.name = name
        self.workers, self.worker = jax.process_count(), jax.process_index()
        self.replicas = len(devices)
        self._all = devices

    def total(self, values):
        if self.workers == 1:
            return super().total(values)
        from jax.experimental import multihost_utils

        # As bytes: JAX would make them float32.
        own = np.frombuffer(np.asarray(values, "float64").tobytes(), "uint8")
        with lost_peers(self.workers):
            gathered = multihost_utils.process_allgather(own)
        return np.asarray(gathered).view("float64").sum(0)

    def _devices(self):
        return self._all


def choose(
    name: str = "auto",
    *,
    replicas: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Strategy:
    """The strategy of a name; to be called before anything is computed.

    | name | devices |
    |---|---|
    | auto | what is there: the environment's cluster, a TPU (JAX), several GPUs, else one device |
    | one | the first |
    | mirrored | all of this machine, or the first `replicas` |
    | multiworker | all of the cluster's processes; see `keras-attention launch` |
    | tpu | all of the TPU; on JAX, or with a TensorFlow that has one |

    Without a GPU `replicas` makes so many virtual devices of the CPU, which share its cores: to
    test that numbers are right, and never faster.

    Args:
        name: one of `NAMES`.
        replicas: how many devices of this machine to use.
        environment: where `TF_CONFIG`, `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
            `JAX_PROCESS_ID` are looked up.

    Raises:
        UsageError: for a strategy that is not there or not supported, saying what to do.

    Example:

    ```python
    from keras_attention.recipes import strategies

    strategy = strategies.choose("auto")
    print(strategy)
    with strategy.scope():
        ...  # make the model, then Trainer(model, strategy=strategy)
    ```
    """
    plain = name.lower().replace("_", "").removesuffix("strategy")
    if plain in _REFUSED:
        raise UsageError(f"{_REFUSED[plain]}: take mirrored or multiworker")
    if name not in NAMES:
        raise UsageError(f"there is no strategy {name!r}: take one of {', '.join(NAMES)}")
    if replicas is not None and replicas < 1:
        raise UsageError(f"replicas must be 1 or more, not {replicas}")
    if replicas is not None and name == "auto":
        name = "mirrored"
    if replicas is not None and name not in ("mirrored", "multiworker"):
        raise UsageError(f"strategy {name} has its own number of replicas: leave it out")
    cluster = _cluster(environment)
    if _on_jax():
        return _on_jax_devices(name, replicas, cluster)
    return _on_tensorflow_devices(name, replicas, cluster)


class _Cluster(NamedTuple):
    workers: int
    worker: int
    coordinator: str  # where JAX's process 0 listens


def _cluster(environment: Mapping[str, str]) -> _Cluster | None:
    """What the environment says to a worker, of several; None: it says nothing of others."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    told = [environment.get(name) for name in names]
    if _on_jax() and any(told):
        missing = [name for name, text in zip(names, told, strict=True) if not text]
        if missing:
            raise UsageError(f"{' and '.join(missing)} must be set, too: or none of {len(names)}")
        cluster = _Cluster(_number(names[1], told[1]), _number(names[2], told[2]), told[0])
    else:
        cluster = _by_tf_config(environment.get("TF_CONFIG"))
    if cluster is None or cluster.workers == 1:
        return None
    if not 0 <= cluster.worker < cluster.workers:
        raise UsageError(
            f"the environment makes this worker {cluster.worker} of {cluster.workers}: its number "
            f"must be from 0 to {cluster.workers - 1}"
        )
    return cluster


def _number(name, text):
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} is not a number: {text!r}") from None


def _by_tf_config(text: str | None) -> _Cluster | None:
    if not text:
        return None
    try:
        config: dict[str, Any] = json.loads(text)
        addresses = {kind: list(config["cluster"][kind]) for kind in config.get("cluster", {})}
        if not any(addresses.values()):
            return None
        kind, index = config["task"]["type"], int(config["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UsageError(
            f"TF_CONFIG cannot be read ({reason}): it must be JSON of a cluster, the addresses of "
            "its workers, and a task, the type and index of this one"
        ) from None
    if "ps" in addresses:
        raise UsageError(
            f"TF_CONFIG names parameter servers, and {_REFUSED['parameterserver']}: name workers "
            "only"
        )
    chiefs, workers = addresses.get("chief", []), addresses.get("worker", [])
    if kind not in ("chief", "worker"):
        raise UsageError(f"TF_CONFIG makes this process a {kind!r}: it must be chief or worker")
    if not 0 <= index < len(addresses.get(kind, [])):
        raise UsageError(f"TF_CONFIG makes this process {kind} {index}, which it has no address of")
    rank = index + (len(chiefs) if kind == "worker" else 0)
    members = [*chiefs, *workers]
    # TensorFlow's own server does not run on JAX, so its port is free.
    return _Cluster(len(members), rank, members[0])


def _on_jax() -> bool:
    return keras.backend.backend() == "jax"


def _accelerator() -> str | None:
    """The kind of the first accelerator, `gpu` or `tpu`."""
    if _on_jax():
        import jax

        kind = jax.default_backend()
        return None if kind == "cpu" else kind
    import tensorflow as tf

    for kind in ("TPU", "GPU"):
        if tf.config.list_physical_devices(kind):
            return kind.lower()
    return None


def _on_jax_devices(name, replicas, cluster) -> Strategy:
    import jax

    reason = "asked for"
    if name == "auto" and cluster:
        name, reason = "multiworker", f"the environment names {cluster.workers} workers"
    if replicas is not None:
        # Before there are any devices; of CPUs alone.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", replicas)
    if name == "multiworker":
        _check_cluster(cluster)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(cluster.coordinator, cluster.workers, cluster.worker)
        _check_count(replicas, jax.local_devices())
        return _JaxReplicas(reason, name, jax.devices())
    kind = _accelerator()
    if name == "tpu" and kind != "tpu":
        raise UsageError(f"JAX sees no TPU here, only {jax.default_backend()}: install jax[tpu]")
    if name == "auto":
        reason = f"{len(jax.local_devices())} {kind or 'cpu'} device(s)"
        several = kind is not None and len(jax.local_devices()) > 1
        name = "tpu" if kind == "tpu" else "mirrored" if several else "one"
    if name == "one":
        return Strategy(reason)
    devices = jax.local_devices()
    if name == "mirrored":
        if kind is None and replicas is None:
            raise UsageError(_NOTHING_TO_MIRROR)
        _check_count(replicas, devices)
        devices = devices[:replicas]
    return _JaxReplicas(reason, name, devices)


def _on_tensorflow_devices(name, replicas, cluster) -> Strategy:
    import tensorflow as tf

    reason, gpus = "asked for", tf.config.list_physical_devices("GPU")
    if name == "auto":
        name, reason = "one", f"{len(gpus)} GPU(s), no cluster in the environment"
        if cluster:
            name, reason = "multiworker", f"TF_CONFIG names {cluster.workers} workers"
        elif len(gpus) > 1:
            name, reason = "mirrored", f"{len(gpus)} GPUs"
    if name == "one":
        return Strategy(reason)
    if name == "tpu":
        return _tensorflow_tpu(reason)
    if name == "multiworker":
        _check_cluster(cluster)
        if replicas is not None:
            raise UsageError("a TensorFlow worker takes all its GPUs, or one CPU: leave --replicas")
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=120)
        distribution = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        return _TensorFlowReplicas(reason, name, distribution, cluster.workers, cluster.worker)
    if gpus:
        _check_count(replicas, gpus)
        devices = [f"GPU:{i}" for i in range(replicas or len(gpus))]
        return _TensorFlowReplicas(reason, name, tf.distribute.MirroredStrategy(devices))
    if replicas is None:
        raise UsageError(_NOTHING_TO_MIRROR)
    _make_virtual(replicas)
    # NCCL is for GPUs, and collective operations of one process allow two strategies at most.
    reduction = tf.distribute.ReductionToOneDevice()
    devices = [f"CPU:{i}" for i in range(replicas)]
    return _TensorFlowReplicas(
        reason, name, tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
    )


def _tensorflow_tpu(reason):
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    except Exception:  # of whatever kind: there is none
        raise UsageError(
            "this TensorFlow has no TPU; JAX may: take --backend jax --strategy tpu "
            "(in Python: KERAS_BACKEND=jax)"
        ) from None
    return _TensorFlowReplicas(reason, "tpu", tf.distribute.TPUStrategy(resolver))


def _make_virtual(count: int) -> None:
    """Make the CPU `count` devices."""
    import tensorflow as tf

    [cpu] = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) == count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError:
        raise UsageError(
            "devices cannot be made after something was computed: choose the strategy first"
        ) from None


def _check_cluster(cluster):
    if cluster is None:
        raise UsageError(
            "the environment names no other workers: start them by keras-attention launch, or take "
            "another --strategy"
        )


def _check_count(replicas, devices):
    if replicas is not None and replicas > len(devices):
        raise UsageError(
            f"{replicas} replicas need as many devices and there are {len(devices)}: take fewer "
            "(virtual ones of the CPU can be made only before anything is computed)"
        )


def check_batch_size(batch_size: int, strategy: Strategy, pieces: int = 1) -> None:
    """Refuse a batch that does not divide over replicas and the pieces of each.

    Raises:
        UsageError: naming the nearest sizes that do.
    """
    parts = strategy.replicas * pieces
    if batch_size % parts:
        below, above = batch_size // parts * parts, -(-batch_size // parts) * parts
        nearest = f"{below} or {above}" if below else f"{above}"
        raise UsageError(
            f"a batch of {batch_size} does not divide over {strategy.replicas} replicas"
            f"{f' of {pieces} pieces' if pieces > 1 else ''}: take {nearest}"
        )

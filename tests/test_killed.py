"""Trainings that are killed, told to stop and restarted: they end as if nothing had happened."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest

from keras_attention.recipes.errors import Interrupted, PeerLost, RunError
from keras_attention.recipes.interruptions import lost_peers, stop_signals
from keras_attention.recipes.strategies import Strategy
from keras_attention.recipes.training import Trainer

SCRIPT = Path(__file__).parent / "killed" / "train.py"
ROWS, STEPS, EPOCHS = 23, 6, 5  # of that script
REST = 0.06  # seconds after a step, within which the kill falls
LAUNCH = """
import sys
from keras_attention.recipes import launch
launch.FIRST_DELAY = launch.LONGEST_DELAY = 0.1
sys.exit(launch.launch(sys.argv[2:], int(sys.argv[1]), restarts=20))
"""
CHIEF, WORKER, LAUNCHER = 0, 1, "launcher"
BACKENDS = ["tensorflow", "jax"]


class Blow(NamedTuple):
    """A signal for a worker, or the launcher, that falls after a step."""

    whom: int | str
    number: int
    step: int


class Story:
    """What a training told, from its start to its end, over all of its restarts.

    Attributes:
        lives: for each worker, for each of its starts, what it told.
        code: the exit code of the launcher.
        lines: what was printed beside that.
        landed: the blows that fell.
    """

    def __init__(self, workers: int):
        self.lives = [[] for _ in range(workers)]
        self.lines, self.landed, self.code = [], [], None

    def hear(self, line: str) -> tuple[int | None, dict]:
        match = re.fullmatch(r"\[worker (\d)\] (\{.*\})\n", line)
        if not match:
            self.lines.append(line)
            return None, {}
        worker, told = int(match[1]), json.loads(match[2])
        if "found" in told:
            self.lives[worker].append([])
        self.lives[worker][-1].append(told)
        return worker, told

    def ends(self) -> list[tuple[int, str | None]]:
        """How the workers ended that could still tell."""
        lives = [life for lives in self.lives for life in lives]
        return [(told["exit"], told["why"]) for life in lives for told in life if "exit" in told]


def environment(compiled):
    devices = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    on_jax = {
        # A training compiles the same after each restart.
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    inherited = {name: x for name, x in os.environ.items() if name != "JAX_ENABLE_X64"}
    # The launcher needs no backend, and NumPy is there at once.
    return {**inherited, **devices, **on_jax, "KERAS_BACKEND": "numpy"}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def trained(compiled):
    """A function: train in a folder under the launcher, while blows fall; the story of it.

    In the folder `whole` the same is trained first, once, and nobody stops it.
    """
    rng = np.random.default_rng()

    def train(folder, backend, workers, blows=(), whole=None, *options):
        story, blows = Story(workers), list(blows)
        rest = ["--rest", str(REST)] if blows else []
        before = ["--whole", whole] if whole else []
        script = [
            "env",
            f"KERAS_BACKEND={backend}",
            sys.executable,
            SCRIPT,
            folder,
            *rest,
            *before,
            *options,
        ]
        with subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(workers), *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(compiled),
        ) as launcher:
            for line in launcher.stdout:
                worker, told = story.hear(line)
                if not blows or "step" not in told:
                    continue
                whom, number, step = blows[0]
                watched = CHIEF if whom == LAUNCHER else whom
                fresh = len(story.lives[watched]) > len(story.landed)  # one blow a life
                if worker == watched and fresh and told["step"] >= step:
                    time.sleep(rng.uniform(0, REST))
                    os.kill(launcher.pid if whom == LAUNCHER else told["pid"], number)
                    story.landed.append(blows.pop(0))
        story.code = launcher.returncode
        print(*story.lines, sep="")  # shown where a test fails
        assert not blows
        return story

    return train


def same_end(folder, whole):
    """Whether variables, those of the optimizer and losses are the same, bit for bit."""
    with np.load(folder / "final.npz") as one, np.load(whole / "final.npz") as other:
        assert one.files == other.files
        return all(one[name].tobytes() == other[name].tobytes() for name in one.files)


def assert_every_row_counts_once(*stories):
    """Of all steps but those that a restart has undone, each epoch's read each row once."""
    done = []
    for found, *steps in [life for story in stories for life in story.lives[CHIEF]]:
        # The chief tells of a step before it saves it.
        assert found["found"] <= len(done)
        del done[found["found"] :]
        for told in steps:
            if "step" in told:
                done.append(told["rows"])
                assert told["step"] == len(done)
    assert len(done) == EPOCHS * STEPS
    for epoch in range(EPOCHS):
        batches = done[epoch * STEPS : (epoch + 1) * STEPS]
        assert sorted(row for rows in batches for row in rows) == list(range(ROWS))


def assert_only_peers_were_missed(story):
    """Nobody made a mistake: who was left alone said so, or was ended."""
    *_, (code, why) = story.ends()
    assert (code, why) == (0, None)
    for code, why in story.ends():
        if code:
            assert code == 75, why
            assert re.fullmatch(r"PeerLost: another worker is gone \(.*\): start all again", why)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_training_ends_as_if_it_had_not_been(tmp_path, trained, workers):
    """In the middle of an epoch; of two workers first the chief, then the other."""
    blows = [Blow(CHIEF, signal.SIGKILL, 9), Blow(WORKER, signal.SIGKILL, 15)][:workers]
    story = trained(tmp_path / "killed", "tensorflow", workers, blows, tmp_path / "whole")
    assert story.code == 0 and [len(lives) for lives in story.lives] == [1 + workers] * workers
    assert_only_peers_were_missed(story)
    assert_every_row_counts_once(story)
    assert same_end(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.kill
@pytest.mark.parametrize("backend", BACKENDS)
def test_twenty_kills(tmp_path, trained, capsys, backend):
    """Of one process, of the chief and of the other worker, ten on each backend, at any step."""
    rng = np.random.default_rng()
    kinds = {
        "one process": (CHIEF, 1, 4),
        "chief of 2": (CHIEF, 2, 3),
        "worker of 2": (WORKER, 2, 3),
    }
    right = 0

    def say(line):
        with capsys.disabled():
            print(line, flush=True)

    say(f"\n{'backend':11} {'killed':12} {'after steps':14} survivors  as if whole  seconds")
    for kind, (victim, workers, kills) in kinds.items():
        steps = sorted(int(x) for x in rng.choice(np.arange(1, 27), kills, replace=False))
        started = time.monotonic()
        folder, whole = tmp_path / kind, tmp_path / f"whole-{workers}"
        blows = [Blow(victim, signal.SIGKILL, step) for step in steps]
        story = trained(folder, backend, workers, blows, whole)
        assert story.code == 0 and len(story.lives[victim]) == kills + 1
        assert_only_peers_were_missed(story)
        assert_every_row_counts_once(story)
        same = same_end(folder, whole)
        right += kills * same
        told = sum(code == 75 for code, _ in story.ends())
        say(
            f"{backend:11} {kind:12} {' '.join(map(str, steps)):14} "
            f"{f'{told} of {kills}' if workers > 1 else 'none':10} "
            f"{'bit for bit' if same else 'NO':12} {time.monotonic() - started:7.0f}",
        )
    say(f"{right} of 10 kills left no trace")
    assert right == 10


@pytest.mark.kill
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_stop_and_save_together(tmp_path, trained, backend):
    """At the SIGTERM of one worker, and at that of the launcher, and go on from there."""
    folder, whole = tmp_path / "stopped", tmp_path / "whole"
    blows = [
        Blow(CHIEF, signal.SIGTERM, 5),
        Blow(WORKER, signal.SIGTERM, 11),
        Blow(LAUNCHER, signal.SIGTERM, 17),
    ]
    stopped = trained(folder, backend, 2, blows, whole)
    again = trained(folder, backend, 2, (), whole)
    assert (stopped.code, again.code) == (75, 0)
    lives = [one + another for one, another in zip(stopped.lives, again.lives, strict=True)]
    for life in range(len(blows)):
        ends = [of_worker[life][-1] for of_worker in lives]
        assert [end["exit"] for end in ends] == [75, 75]
        assert all(end["why"].startswith("Interrupted: stopped by SIGTERM; its") for end in ends)
        steps = [of_worker[life][-2]["step"] for of_worker in lives]
        found = [of_worker[life + 1][0]["found"] for of_worker in lives]
        assert {*steps, *found} == {steps[0]}
    assert_every_row_counts_once(stopped, again)
    assert same_end(folder, whole)


@pytest.mark.kill
@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_in_folders_of_their_own_are_refused(tmp_path, trained, backend):
    first = trained(tmp_path / "0", backend, 1, [Blow(LAUNCHER, signal.SIGTERM, 9)])
    step = first.lives[CHIEF][0][-2]["step"]
    story = trained(tmp_path, backend, 2, (), None, "--apart")
    assert story.code == 1
    assert sorted(story.ends()) == [(1, refusal(0, step)), (1, refusal(1, 0))]


def refusal(worker, step):
    return (
        f"RunError: worker {worker} goes on from step {step} and others do not: the run's folder "
        "must be one that all workers share"
    )


class OneOfTwo(Strategy):
    """The chief of two workers, of which the other is said to have `others` times its figures."""

    def __init__(self, others):
        super().__init__()
        self.workers, self.others = 2, others

    def total(self, values):
        return np.asarray(values, "float64") * (1 + self.others)

    def wait(self):
        raise PeerLost("the other worker has ended")


def fitted(folder, strategy=None, **options):
    x = keras.Input((2,), name="x")
    model = keras.Model(x, keras.layers.Dense(3)(x))
    batch = {"x": np.ones((4, 2), "float32")}, np.ones(4, "int32")
    options = {"epochs": 1, "folder": folder, **options}
    return Trainer(model, strategy=strategy).fit(lambda epoch: [batch], **options)


def test_a_worker_that_found_another_step_is_refused(tmp_path):
    fitted(tmp_path)
    with pytest.raises(RunError) as error:
        fitted(tmp_path, OneOfTwo(others=0), epochs=2, resume=True)
    assert f"RunError: {error.value}" == refusal(0, 1)


def test_who_ends_first_is_not_missed(tmp_path):
    """All is trained and saved: that the other is gone is no reason to train it again."""
    assert len(fitted(tmp_path / "done", OneOfTwo(others=1))) == 1

    def stop(step, figures):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM; its state is saved"):
        fitted(tmp_path / "stopped", OneOfTwo(others=1), on_step=stop)


# How TensorFlow and JAX tell it, each in its own words.
LOST = {
    "UnavailableError": "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at\n"
    "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error",
    "DeadlineExceededError": "Collective ops is aborted by: Deadline Exceeded",
    "AbortedError": "Collective ops is aborted by: peer down",
    "JaxRuntimeError": "UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error "
    "[127.0.0.1]:11663: Connection reset by peer",
    "XlaRuntimeError": "FAILED_PRECONDITION: Buffer Definition Event: Gloo all-gather failed: "
    "[unbound_buffer.cc:82] Timed out waiting 30000ms for recv operation to complete",
    "InternalError": "NCCL: remote process exited or there was a network error",
}
MISTAKES = [
    ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 34359738368 bytes."),
    ("JaxRuntimeError", "INTERNAL: NCCL allocation failed: out of memory, connection closed"),
    ("JaxRuntimeError", "INVALID_ARGUMENT: Argument does not match"),
    (
        "JaxRuntimeError",
        "UNKNOWN: Gloo all-reduce failed: op.preamble.length <= op.nbytes. 36 vs 24",
    ),
    ("InternalError", "Could not synchronize CUDA stream: illegal memory access"),
    ("ResourceExhaustedError", "OOM when allocating tensor"),
    ("ValueError", "Connection reset by peer"),
]


def raised(name, text, workers=2):
    with lost_peers(workers):
        raise type(name, (Exception,), {})(text)


@pytest.mark.parametrize("name", LOST)
def test_a_lost_peer_is_told_in_one_line(name):
    with pytest.raises(PeerLost) as error:
        raised(name, LOST[name])
    line = str(error.value)
    assert line.startswith("another worker is gone (") and line.endswith("): start all again")
    assert "\n" not in line and "Graph execution" not in line
    assert type(error.value.__cause__).__name__ == name


@pytest.mark.parametrize("name, text", MISTAKES)
def test_a_mistake_is_no_lost_peer(name, text):
    with pytest.raises(Exception) as error:
        raised(name, text)
    assert type(error.value).__name__ == name


def test_one_process_has_no_peer_to_lose():
    with pytest.raises(Exception) as error:
        raised("UnavailableError", LOST["UnavailableError"], workers=1)
    assert type(error.value).__name__ == "UnavailableError"


def test_a_second_sigterm_does_not_break_off_the_saving_and_a_second_ctrl_c_does():
    """An engine tells a worker to stop, and so does the launcher when another has stopped."""
    with stop_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

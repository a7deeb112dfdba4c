"""The supervisor of one host: starts the workers of a training, watches them, starts them again.

Workers that train together live together: when one is gone the others wait for it in vain, so all
are stopped and all are started. What a restart could not cure, it does not repeat.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import UsageError
from .terminal import news

TRY_AGAIN = 75  # EX_TEMPFAIL: stopped, and to be started again
FIRST_DELAY, LONGEST_DELAY = 1, 60  # seconds before a restart, twice as many each time
SETTLED = 600  # seconds after which restarts are counted anew

# A process of its own, so that workers end even when their supervisor is killed: it is told the
# process groups that run, a line each time they change, and acts when the pipe is closed.
GUARD = """
import os, signal, sys, time

groups = []
for line in sys.stdin:
    groups = [int(group) for group in line.split()]
for number, patience in ((signal.SIGTERM, float(sys.argv[1])), (signal.SIGKILL, 0)):
    for group in groups:
        try:
            os.killpg(group, number)
        except OSError:
            pass
    time.sleep(patience if groups else 0)
"""


def launch(
    command: Sequence[str],
    workers: int,
    *,
    restarts: int = 3,
    grace: float = 30,
    settled: float = SETTLED,
) -> int:
    """Run `workers` copies of a command on this host until all have done their work.

    Each worker finds the cluster in its environment: `TF_CONFIG` for TensorFlow,
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` for JAX, on free ports of
    127.0.0.1. What it prints comes out line by line behind `[worker i]`.

    - All exit with 0: done.
    - One exits with 75 or is ended by a signal: the others get SIGTERM, after the grace period
      SIGKILL, and all are started again on fresh ports, after 1, 2, 4 ... 60 seconds. The command
      must go on by itself (`--resume auto`).
    - One exits with another code, of a mistake that a restart would repeat, or is interrupted
      (130): the others are stopped the same way and nothing is started again.
    - SIGINT and SIGTERM are passed on to all workers, which have the grace period to save.

    Nothing that a worker started in its process group outlives the call, nor, thanks to a small
    process beside it, the supervisor's own death.

    Args:
        command: the program and its arguments.
        workers: how many to start.
        restarts: how often in a row to start all of them again.
        grace: seconds between SIGTERM and SIGKILL.
        settled: restarts are no longer in a row when the workers have run for so many seconds.

    Returns:
        0, the exit code of the worker that made a mistake, 75 when restarts are used up or after
        SIGTERM, 130 after SIGINT.

    Raises:
        UsageError: when there is no such command, or a number is too small.

    Example:

    ```python
    import sys
    from keras_attention.recipes.launch import launch

    greet = "import os; print('process', os.environ['JAX_PROCESS_ID'])"
    assert launch([sys.executable, "-c", greet], workers=2) == 0
    ```
    """
    _check(command, workers, restarts, grace)
    in_a_row = 0
    with _signals() as events, _Guard(grace) as guard:
        while True:
            started = time.monotonic()
            with _Group(grace, events, guard) as group:
                for index, environment in enumerate(_environments(workers)):
                    group.start(index, command, environment)
                code = group.wait()
            if code is not None:
                return code
            if time.monotonic() - started >= settled:
                in_a_row = 0
            if in_a_row == restarts:
                news(f"restarted {restarts} times in a row: giving up; the same command goes on")
                return TRY_AGAIN
            delay = min(FIRST_DELAY * 2**in_a_row, LONGEST_DELAY)
            in_a_row += 1
            number = f"restart {in_a_row} of {restarts} in a row"
            news(f"starting all workers again in {delay:g} s ({number})")
            with contextlib.suppress(queue.Empty):
                return _code_of(_next(events, delay))


def forgets_to_resume(command: Sequence[str]) -> bool:
    """Whether a command trains a recipe from the start each time it is run."""
    pairs = list(itertools.pairwise(command))
    programs = {"keras-attention", "keras_attention.recipes.cli"}
    trains = any(Path(program).name in programs and word == "train" for program, word in pairs)
    return trains and ("--resume", "auto") not in pairs and "--resume=auto" not in command


def _check(command, workers, restarts, grace):
    if not command:
        raise UsageError("launch what? Give the command of a worker after --")
    if workers < 1 or restarts < 0 or grace < 0:
        raise UsageError("launch takes 1 worker or more, 0 restarts or more, and 0 s or more")
    if not hasattr(os, "killpg"):
        raise UsageError("launch needs Linux or macOS; job files (--to) can be written anywhere")
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such command")


@dataclasses.dataclass(frozen=True)
class _Exit:
    worker: int
    code: int  # 128 + n of signal n, whoever says so: the system or a shell between us

    @property
    def signal(self) -> int | None:
        number = self.code - 128
        return number if number in signal.valid_signals() else None

    @property
    def may_pass(self) -> bool:
        # What somebody interrupted was meant to end.
        return self.code == TRY_AGAIN or self.signal not in (None, signal.SIGINT)

    def __str__(self) -> str:
        if self.signal is None:
            return f"worker {self.worker} exited with {self.code}"
        name = signal.strsignal(self.signal)
        return f"worker {self.worker} was ended by signal {self.signal} ({name})"


def _next(events: queue.SimpleQueue, seconds: float | None) -> _Exit | signal.Signals:
    event = events.get(timeout=None if seconds is None else max(seconds, 0))
    if isinstance(event, Exception):
        raise event
    return event


def _code_of(stopped_by: signal.Signals) -> int:
    return 130 if stopped_by == signal.SIGINT else TRY_AGAIN


@contextlib.contextmanager
def _signals() -> Iterator[queue.SimpleQueue]:
    """A queue of what happens, in which SIGINT and SIGTERM arrive."""
    events = queue.SimpleQueue()  # the one queue that a signal handler may put into

    def receive(number, frame):
        events.put(signal.Signals(number))

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield events
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Group:
    """The workers of one start, each the leader of a process group of its own."""

    def __init__(self, grace, events, guard):
        self.grace = grace
        self.events = events
        self.guard = guard
        self.processes: list[subprocess.Popen] = []
        self.running: set[int] = set()
        self.pumps: list[threading.Thread] = []
        self.printing = threading.Lock()  # whole lines only

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Leave no process behind, whatever happened."""
        for process in self.processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        for pump in self.pumps:
            pump.join(timeout=5)  # what left its group may hold a pipe open for ever
        self.guard.watch([])

    def start(self, index: int, command: Sequence[str], environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        self.running.add(index)
        self.guard.watch(self.processes)
        for pipe, stream in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self.pumps.append(_thread(self._pump, pipe, stream, f"[worker {index}] "))
        _thread(self._await, index, process)

    def _await(self, index, process):
        code = process.wait()
        self.events.put(_Exit(index, code if code >= 0 else 128 - code))

    def _pump(self, pipe, stream, prefix):
        with pipe:
            try:
                for line in pipe:
                    text = line.decode("utf-8", "replace").removesuffix("\n")
                    with self.printing:
                        stream.write(f"{prefix}{text}\n")
                        stream.flush()
            except (OSError, ValueError) as error:  # whoever read the output has gone
                self.events.put(error)

    def wait(self) -> int | None:
        """Wait until no worker runs; the exit code, or None where all are to be started again."""
        stopped_by = failed = deadline = None
        while self.running:
            try:
                seconds = None if deadline is None else deadline - time.monotonic()
                event = _next(self.events, seconds)
            except queue.Empty:
                self._say(f"still there after {self.grace:g} s: ending what is left by SIGKILL")
                self._send(signal.SIGKILL)
                deadline = None
                continue
            if isinstance(event, signal.Signals):
                stopped_by = stopped_by or event
                self._say(f"{event.name}: passed on to the workers")
                self._send(event)
            else:
                self.running.remove(event.worker)
                if failed or not event.code:
                    continue
                failed = event
                self._say(f"{event}{'; stopping the others' if self.running else ''}")
                if stopped_by:
                    continue
                self._send(signal.SIGTERM)
            deadline = deadline or time.monotonic() + self.grace
        if not failed:
            return 0
        if stopped_by:
            return _code_of(stopped_by)
        return None if failed.may_pass else failed.code

    def _say(self, line):
        with self.printing:
            news(line)

    def _send(self, number):
        for index in self.running:
            _signal_group(self.processes[index], number)


def _signal_group(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a group of zombies
        os.killpg(process.pid, number)


def _thread(target, *arguments) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _environments(workers: int) -> Iterator[dict[str, str]]:
    """What each worker has to know of the others."""
    with contextlib.ExitStack() as listening:  # all at once, so that no port is given twice
        sockets = [listening.enter_context(socket.socket()) for _ in range(workers + 1)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    *cluster, coordinator = addresses
    for index in range(workers):
        task = {"type": "worker", "index": index}
        yield {
            "TF_CONFIG": json.dumps({"cluster": {"worker": cluster}, "task": task}),
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_NUM_PROCESSES": str(workers),
            "JAX_PROCESS_ID": str(index),
        }


class _Guard:
    """Ends the workers when the supervisor is gone without having done so; see `GUARD`."""

    def __init__(self, grace: float):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # none of ours, or whoever reads that would wait for it
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, processes: Sequence[subprocess.Popen]) -> None:
        line = " ".join(str(process.pid) for process in processes)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()

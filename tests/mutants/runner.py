"""Making mutants and running the tests that should notice them.

Each worker has a copy of the tree of its own, laid out as installed. The tests run in a process of
their own, forked from one that has imported TensorFlow and Keras already: seconds a mutant.
"""

import contextlib
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from . import ROOT, Mutant

# Where a folder or file of the repository stands in a copy: beneath the package, as installed.
PLACES = {
    "keras_attention": "keras_attention",
    "export": "keras_attention/export",
    "recipes": "keras_attention/recipes",
    "tests": "tests",
    "pyproject.toml": "pyproject.toml",
}
PRELOAD = ("tensorflow", "keras", "keras.models", "numpy.testing", "pytest")
PATIENCE = 4  # times as long as the tests take without a mutant
LEAST_PATIENCE = 60.0  # seconds
NOT_THE_COPY = 97  # exit code: another keras_attention was imported


class Outcome(NamedTuple):
    """What became of a mutant.

    where: its module and line.
    verdict: "killed"; "timeout", which counts as killed; "survived"; "accepted", which survived as
        its reason says; "killed, but accepted"; "does not apply"; "untestable", as its tests fail
        without it.
    detail: the test that noticed, or what went wrong.
    """

    mutant: Mutant
    where: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""

    @property
    def noticed(self) -> bool:
        return self.verdict in ("killed", "timeout")

    @property
    def fault(self) -> bool:
        """Whether something is wrong with the table, not with the tests."""
        return self.verdict in ("does not apply", "untestable", "killed, but accepted")


class Run(NamedTuple):
    """One run of pytest."""

    code: int | None  # None: out of time
    seconds: float
    log: str


class Runner:
    """Judges mutants side by side.

    Args:
        root: of the repository.
        workers: how many processes run tests at a time.
        patience: seconds that tests get at least.
        preload: modules imported once, before the processes are forked.
        tell: what a line of progress is given to.
    """

    def __init__(self, root=ROOT, workers=2, patience=LEAST_PATIENCE, preload=PRELOAD, tell=print):
        self.root = Path(root)
        self.workers = workers
        self.patience = patience
        self.tell = tell
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._copies = SimpleQueue()
        self._processes = set()
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self):
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        for number in range(self.workers):
            copy = Path(self._folder.name).resolve() / str(number)
            self._copy_tree(copy)
            self._copies.put(copy)
        return self

    def __exit__(self, *_):
        self.stop()
        self._folder.cleanup()

    def stop(self):
        """End what runs; nothing begins any more."""
        self._stopped = True
        with self._lock:
            for process in self._processes:
                _end(process)

    def _copy_tree(self, copy):
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        for name, place in PLACES.items():
            if (self.root / name).is_dir():
                shutil.copytree(self.root / name, copy / place, ignore=ignore)
            elif (self.root / name).exists():
                shutil.copy(self.root / name, copy / place)

    def judge(self, mutants: Sequence[Mutant]) -> Iterator[Outcome]:
        """The outcome of each mutant, as they come."""
        applying = []
        for mutant in mutants:
            if mutant.line(self.root):
                applying.append(mutant)
            else:
                yield Outcome(mutant, mutant.file, "does not apply")
        unmutated: dict[str, Run] = {}
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                selections = sorted({mutant.tests for mutant in applying})
                running = {pool.submit(self._tests, tests): tests for tests in selections}
                for future in as_completed(running):
                    tests, run = running[future], future.result()
                    unmutated[tests] = run
                    verdict = "fails" if run.code else "passes"
                    self.tell(
                        f"[{len(unmutated):3}/{len(running)}] {verdict:9} "
                        f"{run.seconds:4.0f} s  unmutated: {tests}"
                    )
                judged = [pool.submit(self._outcome, m, unmutated[m.tests]) for m in applying]
                for future in as_completed(judged):
                    yield future.result()
            finally:
                self.stop()
                pool.shutdown(cancel_futures=True)

    def _outcome(self, mutant, unmutated) -> Outcome:
        where = f"{mutant.file}:{mutant.line(self.root)}"
        if unmutated.code != 0:
            return Outcome(mutant, where, "untestable", detail=_complaint(unmutated))
        run = self._tests(mutant.tests, mutant, max(self.patience, PATIENCE * unmutated.seconds))
        return Outcome(mutant, where, _verdict(mutant, run), run.seconds, _complaint(run))

    def _tests(self, tests, mutant=None, patience=None) -> Run:
        """Run tests in a copy of the tree, in which the mutant is made meanwhile."""
        copy = self._copies.get()
        try:
            with _made(mutant, copy) if mutant else contextlib.nullcontext():
                return self._process(copy, tests, patience)
        finally:
            self._copies.put(copy)

    def _process(self, copy, tests, patience) -> Run:
        log = copy / "log"
        log.write_text("")
        started = time.monotonic()
        process = self._context.Process(target=_run_tests, args=(copy, shlex.split(tests), log))
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process.start()
            self._processes.add(process)
        process.join(patience)
        if alive := process.is_alive():
            _end(process)
            process.join()
        with self._lock:
            self._processes.discard(process)
        code = None if alive else process.exitcode
        return Run(code, time.monotonic() - started, log.read_text(errors="replace"))


@contextlib.contextmanager
def _made(mutant, copy):
    """The mutant in the copy, which is as before afterwards."""
    folder, _, rest = mutant.file.partition("/")
    path = copy / PLACES[folder] / rest
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def _run_tests(copy, arguments, log):
    """What a process does: pytest over the copy, never over what is installed."""
    os.setsid()  # of a group of its own, so that it ends with all that it has started
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    import pytest

    plugins = [_TheCopyIsTested(copy)]
    code = pytest.main(
        ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *arguments], plugins=plugins
    )
    sys.stdout.flush()
    os._exit(code)


class _TheCopyIsTested:
    """A plugin of pytest."""

    def __init__(self, copy):
        self.copy = copy

    def pytest_collection_finish(self):
        import keras_attention

        if not Path(keras_attention.__file__).resolve().is_relative_to(self.copy):
            print(f"{keras_attention.__file__} is not the copy", flush=True)
            os._exit(NOT_THE_COPY)


def _end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # where it has no group yet


def _verdict(mutant, run) -> str:
    if run.code == NOT_THE_COPY:
        return "untestable"
    if run.code == 0:
        return "accepted" if mutant.reason else "survived"
    if mutant.reason:
        return "killed, but accepted"
    return "timeout" if run.code is None else "killed"


def _complaint(run) -> str:
    """The test that failed, else the last line of the log."""
    if run.code == 0:
        return ""
    if run.code is None:
        return "out of time"
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", run.log, re.MULTILINE):
        return failed[1].split("::", 1)[-1]
    return (run.log.strip().splitlines() or [f"exit code {run.code}"])[-1]


def run(mutants: Sequence[Mutant], tell: Callable[[str], None] = print, **kwargs) -> list[Outcome]:
    """Judge the mutants with a line for each; interrupted, what is known until then."""
    outcomes = []
    with Runner(tell=tell, **kwargs) as runner:
        try:
            with contextlib.closing(runner.judge(mutants)) as judged:
                for outcome in judged:
                    outcomes.append(outcome)
                    what = outcome.detail if outcome.noticed else outcome.mutant
                    tell(
                        f"[{len(outcomes):3}/{len(mutants)}] {outcome.verdict:9} "
                        f"{outcome.seconds:4.0f} s  {outcome.where}  {what}"
                    )
        except KeyboardInterrupt:
            tell("interrupted")
    return outcomes

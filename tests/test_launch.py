"""The supervisor of one host: what it starts, when it starts it again, and that nothing is left."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_attention.recipes import launch
from keras_attention.recipes.errors import UsageError

PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

here, index = Path(__file__).parent, int(os.environ["JAX_PROCESS_ID"])
attempt = len(list(here.glob(f"start-{index}-*")))

def note(name, text=""):
    beside = here / f".{name}"
    beside.write_text(str(text))
    beside.rename(here / name)

def wait_for(name):
    for _ in range(6000):
        if (here / name).exists():
            return
        time.sleep(0.01)
    sys.exit("never: " + name)

def forever(*seconds):
    while True:
        time.sleep(1)

def on_term(action):
    signal.signal(signal.SIGTERM, lambda number, frame: action())

def started():
    note(f"start-{index}-{attempt}", json.dumps({"pid": os.getpid(), **os.environ}))

def child(code):
    process = subprocess.Popen([sys.executable, "-S", "-c", code])
    note(f"child-{index}", process.pid)

LONG = "import time; time.sleep(1000)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
"""


@pytest.fixture
def worker(tmp_path):
    """The command of a worker that runs this code; `started()` in it notes its environment."""

    def write(code, prelude="started()\n"):
        path = tmp_path / "worker.py"
        path.write_text(PRELUDE + prelude + code, "utf-8")
        return [sys.executable, "-S", str(path)]

    return write


@pytest.fixture
def starts(tmp_path):
    """The environments with which each worker was started."""

    def read(index):
        paths = sorted(tmp_path.glob(f"start-{index}-*"))
        return [json.loads(path.read_text()) for path in paths]

    return read


@pytest.fixture
def at_once(monkeypatch):
    """Restarts without the delay before them."""
    monkeypatch.setattr(launch, "FIRST_DELAY", 0)


def alive(pid):
    """Whether a process runs; one that ended and that nobody asks for is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(pids):
    """Whether all of them end, if given the time that a busy machine takes."""
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def when(path, action):
    """Do something as soon as a file is there, beside the call under test."""

    def wait():
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        action()

    threading.Thread(target=wait, daemon=True).start()


# What workers are told.


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_find_the_cluster_in_their_environment(worker, starts, workers):
    assert launch.launch(worker("print(1)"), workers) == 0
    environments = [starts(index) for index in range(workers)]
    assert all(len(attempts) == 1 for attempts in environments)
    configs = [json.loads(first["TF_CONFIG"]) for [first] in environments]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(workers)]
    [cluster] = {tuple(c["cluster"]["worker"]) for c in configs}
    [coordinator] = {first["JAX_COORDINATOR_ADDRESS"] for [first] in environments}
    addresses = {*cluster, coordinator}
    assert len(cluster) == workers and len(addresses) == workers + 1
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert [first["JAX_PROCESS_ID"] for [first] in environments] == [*map(str, range(workers))]
    assert {first["JAX_NUM_PROCESSES"] for [first] in environments} == {str(workers)}


def test_lines_come_whole_behind_the_number_of_their_worker(worker, capfd):
    code = """
for line in range(50):
    for part in (f"{line} 早", "上好\\n"):
        for stream in (sys.stdout, sys.stderr):
            # In single bytes: halves of a line, and of a character.
            for byte in (stream.name[4:7] + part if part[0] != "上" else part).encode():
                os.write(stream.fileno(), bytes([byte]))
os.write(1, b"no end")
"""
    assert launch.launch(worker(code), 3) == 0
    out, err = capfd.readouterr()
    for text, stream in ((out, "out"), (err, "err")):
        lines = text.splitlines()
        for index in range(3):
            own = [line for line in lines if line.startswith(f"[worker {index}] {stream}")]
            assert own == [f"[worker {index}] {stream}{line} 早上好" for line in range(50)]
    assert sum(line.endswith("] no end") for line in out.splitlines()) == 3
    assert len(out.splitlines()) == 3 * 51 and len(err.splitlines()) == 3 * 50


def test_no_line_is_printed_into_another(worker, monkeypatch):
    class Slow:
        text = ""

        def write(self, text):
            for character in text:
                before = self.text
                time.sleep(0)  # let another thread in
                self.text = before + character

        def flush(self):
            pass

    slow = Slow()
    monkeypatch.setattr(sys, "stdout", slow)
    assert launch.launch(worker('print("line\\n" * 19 + "line")'), 3) == 0
    lines = slow.text.splitlines()
    assert sorted(lines) == sorted(
        f"[worker {i}] {text}" for i in range(3) for text in ["line"] * 20
    )


def test_bytes_that_are_no_text_do_not_stop_the_output(worker, capfd):
    assert launch.launch(worker(r'os.write(1, b"\xff\xfe\nafter\n")'), 1) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "[worker 0] after"


# When all are started again.


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "ending", ["sys.exit(75)", "os.kill(os.getpid(), 9)", "sys.exit(137)"], ids=str.split
)
def test_all_start_again_when_one_is_lost(worker, starts, tmp_path, capsys, ending):
    code = f"""
if attempt == 0 and index == 1:
    wait_for("ready")
    {ending}
if attempt == 0:
    on_term(lambda: (note("saved", attempt), sys.exit(75)))
    note("ready")
    forever()
"""
    assert launch.launch(worker(code), 2) == 0
    assert (tmp_path / "saved").exists(), "the survivor was not told by SIGTERM"
    environments = [starts(index) for index in range(2)]
    assert [len(attempts) for attempts in environments] == [2, 2]
    first, second = [json.loads(e["TF_CONFIG"])["cluster"]["worker"] for e in environments[0]]
    assert first != second, "the ports are not fresh"
    err = capsys.readouterr().err
    assert "worker 1" in err and "(restart 1 of 3 in a row)" in err


@pytest.mark.usefixtures("at_once")
def test_a_survivor_is_told_once(worker, tmp_path):
    """Twice means: do not wait for the step; see the training loop."""
    code = """
if attempt == 0 and index < 2:
    wait_for("ready")
    sys.exit(75)
if attempt == 0:
    told = []
    on_term(lambda: told.append(1))
    note("ready")
    while not told:
        time.sleep(0.01)
    time.sleep(0.3)
    note("told", len(told))
"""
    assert launch.launch(worker(code), 3) == 0
    assert (tmp_path / "told").read_text() == "1"


@pytest.mark.usefixtures("at_once")
def test_what_does_not_listen_is_killed(worker, starts, capsys):
    code = """
if attempt == 0 and index == 1:
    wait_for("ready")
    sys.exit(75)
if attempt == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("ready")
    forever()
"""
    assert launch.launch(worker(code), 2, grace=0.2) == 0
    assert len(starts(0)) == 2
    assert "SIGKILL" in capsys.readouterr().err
    assert not alive(starts(0)[0]["pid"])


def test_delays_grow_to_a_limit_and_restarts_are_used_up(worker, starts, capsys, monkeypatch):
    monkeypatch.setattr(launch, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(launch, "LONGEST_DELAY", 0.03)
    assert launch.launch(worker("sys.exit(75)"), 1, restarts=4) == 75
    assert len(starts(0)) == 5
    lines = capsys.readouterr().err.splitlines()
    said = [line.split(" in ")[1].split(" s ")[0] for line in lines if "again in" in line]
    assert said == ["0.01", "0.02", "0.03", "0.03"]
    assert "giving up" in lines[-1]


@pytest.mark.usefixtures("at_once")
def test_restarts_are_counted_anew_after_a_while(worker, starts):
    code = "sys.exit(75 if attempt < 3 else 0)"
    assert launch.launch(worker(code), 1, restarts=1, settled=0) == 0
    assert len(starts(0)) == 4


@pytest.mark.parametrize("restarts", [0, 2])
def test_the_number_of_restarts_is_kept(worker, starts, monkeypatch, restarts):
    monkeypatch.setattr(launch, "FIRST_DELAY", 0)
    assert launch.launch(worker("sys.exit(75)"), 1, restarts=restarts) == 75
    assert len(starts(0)) == restarts + 1


@pytest.mark.parametrize(
    "ending, code",
    [(f"sys.exit({code})", code) for code in (1, 2, 3, 130, 255)]
    + [("signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)", 130)],
)
def test_what_would_only_be_repeated_ends_the_group(worker, starts, tmp_path, ending, code):
    body = f"""
if index == 1:
    wait_for("ready")
    {ending}
on_term(lambda: (note("saved"), sys.exit(75)))
note("ready")
forever()
"""
    assert launch.launch(worker(body), 2) == code
    assert (tmp_path / "saved").exists()
    assert [len(starts(index)) for index in range(2)] == [1, 1]


def test_one_that_is_done_waits_for_the_others(worker, tmp_path):
    code = """
if index == 1:
    time.sleep(0.2)
    note("later")
"""
    assert launch.launch(worker(code), 2) == 0
    assert (tmp_path / "later").exists()


# When it is told to stop itself.


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_is_passed_on_and_waited_for(worker, starts, tmp_path, number, code):
    body = f"""
def save(number, frame):
    time.sleep(0.2)
    note(f"saved-{{index}}", number)
    sys.exit(75)

signal.signal({int(number)}, save)
note(f"ready-{{index}}")
if index == 1:
    wait_for("ready-0")
    note("ready")
forever()
"""
    when(tmp_path / "ready", lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert launch.launch(worker(body), 2) == code
    assert [(tmp_path / f"saved-{i}").read_text() for i in range(2)] == [str(int(number))] * 2
    assert len(starts(0)) == 1, "it was started again"
    assert signal.getsignal(number) == before


def test_a_signal_is_passed_on_once(worker, tmp_path):
    body = """
told = []
on_term(lambda: told.append(1) if index else sys.exit(75))
note(f"ready-{index}")
if index == 1:
    wait_for("ready-0")
    note("ready")
while not told:
    time.sleep(0.01)
time.sleep(0.3)
note("told", len(told))
"""
    when(tmp_path / "ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert launch.launch(worker(body), 2) == 75
    assert (tmp_path / "told").read_text() == "1"


def test_workers_that_end_well_at_a_signal_are_done(worker, tmp_path):
    body = 'on_term(lambda: sys.exit(0)); note("ready"); forever()'
    when(tmp_path / "ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert launch.launch(worker(body), 1) == 0


def test_a_deaf_worker_does_not_outlive_a_signal(worker, starts, tmp_path):
    body = 'signal.signal(signal.SIGTERM, signal.SIG_IGN); note("ready"); forever()'
    when(tmp_path / "ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert launch.launch(worker(body), 1, grace=0.2) == 75
    assert not alive(starts(0)[0]["pid"])


def test_a_signal_ends_the_wait_before_a_restart(worker, starts, monkeypatch):
    monkeypatch.setattr(launch, "FIRST_DELAY", 1000)
    monkeypatch.setattr(launch, "LONGEST_DELAY", 1000)
    monkeypatch.setattr(launch, "news", lambda line: os.kill(os.getpid(), signal.SIGTERM))
    assert launch.launch(worker("sys.exit(75)"), 1) == 75
    assert len(starts(0)) == 1


# Nothing is left.


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("code", [0, 1, 75])
def test_what_a_worker_leaves_behind_ends_with_its_group(worker, tmp_path, code):
    body = f"child(DEAF); sys.exit({code})"
    assert launch.launch(worker(body), 1, restarts=0) == code
    assert gone([int((tmp_path / "child-0").read_text())])


def test_workers_end_with_an_error_of_the_supervisor(worker, starts, monkeypatch):
    environments = launch._environments

    def broken(workers):
        yield next(environments(workers))
        raise RuntimeError("no more")

    monkeypatch.setattr(launch, "_environments", broken)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="no more"):
        launch.launch(worker("signal.signal(signal.SIGTERM, signal.SIG_IGN); forever()"), 2)
    assert gone([environment["pid"] for environment in starts(0)])
    assert signal.getsignal(signal.SIGTERM) == before


def test_workers_end_when_nobody_reads_their_output(worker, starts, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        launch.launch(worker('os.write(1, b"line\\n")\nforever()'), 2)
    pids = [environment["pid"] for index in range(2) for environment in starts(index)]
    assert pids and gone(pids)


def test_workers_end_when_the_supervisor_is_killed(worker, starts, tmp_path):
    body = """
child(LONG if index else DEAF)
on_term(lambda: note(f"told-{index}"))
note(f"ready-{index}")
forever()
"""
    code = (
        "import sys\n"
        "from keras_attention.recipes.launch import launch\n"
        "launch(sys.argv[1:], 2, grace=1)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, *worker(body)],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        ready = [tmp_path / f"ready-{index}" for index in range(2)]
        while not all(path.exists() for path in ready) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        supervisor.kill()
        supervisor.wait()
    pids = [starts(index)[0]["pid"] for index in range(2)]
    pids += [int((tmp_path / f"child-{index}").read_text()) for index in range(2)]
    assert gone(pids)
    assert all((tmp_path / f"told-{index}").exists() for index in range(2)), "no time to save"


# Wrong use.


@pytest.mark.parametrize(
    "command, options, message",
    [
        ([], {}, "launch what"),
        (["no-such-program-here"], {}, "no such command"),
        (["./tests"], {}, "no such command"),
        (["true"], {"workers": 0}, "1 worker or more"),
        (["true"], {"restarts": -1}, "0 restarts or more"),
        (["true"], {"grace": -1}, "0 s or more"),
    ],
)
def test_wrong_use_is_refused(command, options, message):
    with pytest.raises(UsageError, match=message):
        launch.launch(command, **{"workers": 1, **options})


@pytest.mark.parametrize(
    "command, forgets",
    [
        ("keras-attention train translation --out x", True),
        ("/venv/bin/keras-attention train translation --out x --resume", True),
        ("python -m keras_attention.recipes.cli train translation --out x", True),
        ("keras-attention train translation --out x --resume auto", False),
        ("keras-attention train translation --resume=auto --out x", False),
        ("keras-attention evaluate x", False),
        ("python train.py", False),
    ],
)
def test_a_training_that_would_begin_from_the_start_is_recognised(command, forgets):
    assert launch.forgets_to_resume(command.split()) == forgets


# The command.


@pytest.fixture
def said(command_line, capfd):
    return command_line(capfd)


def test_the_command_runs_what_stands_behind_the_dashes(said, worker):
    command = worker("print(sys.argv[1:])", prelude="")
    code, out, err = said("launch", "--workers", 1, "--", *command, "--workers", "x", "--", "$y z")
    assert (code, out, err) == (0, ["[worker 0] ['--workers', 'x', '--', '$y z']"], [])
    assert said("launch", "--workers", 1, *command, "--help")[1] == ["[worker 0] ['--help']"]


def test_the_command_keeps_its_promises_of_exit_codes(said, worker, starts, monkeypatch):
    monkeypatch.setattr(launch, "FIRST_DELAY", 0)
    always = worker("sys.exit(75)")
    assert said("launch", "--workers", 1, "--restarts", 1, "--grace", 5, "--", *always)[0] == 75
    assert len(starts(0)) == 2
    assert said("launch", "--workers", 1, "--", *worker("sys.exit(3)"))[0] == 3


def test_the_command_warns_of_a_training_that_forgets(said, tmp_path):
    program = tmp_path / "keras-attention"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    train = [program, "train", "translation"]
    [warning] = said("launch", "--workers", 1, "--", *train)[2]
    assert "--resume auto" in warning
    assert said("launch", "--workers", 1, "--", *train, "--resume", "auto")[2] == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--workers", "1"], "launch what"),
        (["--workers", "1", "--"], "launch what"),
        (["--workers", "0", "--", "true"], "at least 1"),
        (["--workers", "1", "--restarts", "-1", "--", "true"], "0 or more"),
        (["--", "true"], "--workers"),
        (["--workers", "1", "--", "no-such-program-here"], "no such command"),
        (["--workers", "1", "--image", "x", "--", "true"], "--to"),
        (["--workers", "1", "--name", "x", "--", "true"], "--to"),
        (["--workers", "1", "--to", "moon", "--", "true"], "moon"),
    ],
)
def test_wrong_use_of_the_command_exits_with_2(said, arguments, message):
    code, out, err = said("launch", *arguments)
    assert code == 2 and not out and message in err[-1]


def test_help_teaches(said):
    code, out, _ = said("launch", "--help")
    text = "\n".join(out)
    assert code == 0
    for word in ("--workers", "--restarts", "--grace", "TF_CONFIG", "75", "130", "--resume auto"):
        assert word in text

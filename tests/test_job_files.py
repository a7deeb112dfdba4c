"""Job files: read back by the languages they are in, and their shell lines run."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention.recipes import cli
from keras_attention.recipes.errors import UsageError
from keras_attention.recipes.job_files import ENGINES, render

TRAIN = "keras-attention train translation --out /shared/run --resume auto".split()
ODD = [
    "a b",
    "",
    "it's",
    '"quoted"',
    "$HOME",
    "$(HOME)",
    "$$",
    "`ls`",
    "你好 😀",
    "*",
    "#",
    "\\",
    "-n",
]
ODD += [
    "two\nlines",
    "{{name}}",
    "%d",
    "a: b",
    "- c",
    "\u2028",
    "\x85",
    "tab\there",
    "!x",
    "&",
    "'",
]
KUBERNETES = ("kubernetes-tfjob", "kubernetes-jobset")


def render_for(engine, command, workers=3, **options):
    image = {"image": "registry.example/attention:1"} if engine in KUBERNETES else {}
    return render(engine, command, workers, **{**image, **options})


def read_yaml(text):
    return pytest.importorskip("yaml").safe_load(text)


def expanded(text, variables):
    """What Kubernetes makes of a word of a command, or of the value of a variable."""

    def of(found):
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", of, text)


def container_of(engine, text):
    job = read_yaml(text)
    if engine == "kubernetes-tfjob":
        pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    else:
        [replicated] = job["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


def command_of(engine, text):
    """The words that a pod's main process is started with."""
    words = [expanded(word, {"HOME": "/"}) for word in container_of(engine, text)[1]["command"]]
    return words[words.index("worker") + 1 :] if engine == "kubernetes-tfjob" else words


def ray_script(text, monkeypatch):
    """The module that a Ray script is, and what it asked Ray for."""
    asked = {}

    def recorded(name):
        return lambda *values, **named: asked.update({name: (values, named)}) or name

    train = types.ModuleType("ray.train")
    for name in ("FailureConfig", "RunConfig", "ScalingConfig"):
        setattr(train, name, recorded(name))
    tensorflow = types.ModuleType("ray.train.tensorflow")
    tensorflow.TensorflowTrainer = recorded("TensorflowTrainer")
    modules = {
        "ray": types.ModuleType("ray"),
        train.__name__: train,
        tensorflow.__name__: tensorflow,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    script = {"__name__": "script"}
    exec(compile(text, "ray.py", "exec"), script)
    return script, asked


# A command survives, whatever it holds.


@pytest.mark.parametrize("engine", KUBERNETES)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_words_survive_kubernetes(engine, words):
    assert command_of(engine, render_for(engine, words)) == words


@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_words_survive_python(words):
    tree = ast.parse(render_for("ray", words))
    [value] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "COMMAND"
    ]
    assert ast.literal_eval(value) == words


@pytest.mark.parametrize("engine", KUBERNETES)
def test_odd_words_survive_kubernetes(engine):
    assert command_of(engine, render_for(engine, ["run", *ODD])) == ["run", *ODD]


# Slurm: the whole script runs, on commands of the cluster that are faked.


class Slurm:
    """Runs a job file under an `srun` that runs its tasks one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self._program(
            "scontrol",
            'if [ "$1 $2" = "show hostnames" ]; then printf "gpu-a\\ngpu-b\\nlast7\\n"\n'
            f'else echo "$@" >> {folder}/requeued; fi\n',
        )
        self._program(
            "srun",
            'while [ "${1#--}" != "$1" ]; do shift; done\n'
            "export BATCH_SHELL=$PPID highest=0\n"
            "for SLURM_PROCID in 0 1 2; do\n"
            '    SLURM_PROCID=$SLURM_PROCID "$@"; code=$?\n'
            '    [ "$code" -le "$highest" ] || highest=$code\n'
            "done\n"
            'exit "$highest"\n',
        )

    def _program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(0o755)

    def run(self, text, restart_count=None):
        script = self.folder / "job.sh"
        script.write_text(text, "utf-8")
        environment = {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "40123",
            "SLURM_JOB_NODELIST": "gpu-[a-b],last7",
            "SLURM_JOB_NUM_NODES": "3",
        }
        if restart_count is not None:
            environment["SLURM_RESTART_COUNT"] = str(restart_count)
        return subprocess.run(["bash", script], env=environment, capture_output=True, text=True)

    @property
    def requeued(self):
        calls = self.folder / "requeued"
        return calls.exists() and calls.read_text() == "requeue 40123\n"


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def test_slurm_workers_find_the_cluster_and_odd_words(slurm):
    show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    text = render_for("slurm", [sys.executable, "-S", "-c", show, *ODD])
    finished = slurm.run(text)
    assert finished.returncode == 0, finished.stderr
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [words for _, words in rows] == [ODD] * 3
    environments = [environment for environment, _ in rows]
    port = 10000 + 40123 % 20000
    for index, environment in enumerate(environments):
        assert json.loads(environment["TF_CONFIG"]) == {
            "cluster": {"worker": [f"{host}:{port}" for host in ("gpu-a", "gpu-b", "last7")]},
            "task": {"type": "worker", "index": index},
        }
        assert environment["JAX_COORDINATOR_ADDRESS"] == f"gpu-a:{port + 1}"
        assert environment["JAX_NUM_PROCESSES"] == "3"
        assert environment["JAX_PROCESS_ID"] == str(index)


@pytest.mark.parametrize(
    "codes, restarts_before, requeued",
    [
        ((0, 0, 0), None, False),
        ((75, 75, 75), None, True),
        ((0, 137, 75), 1, True),
        ((75, 75, 75), 2, False),  # as often as allowed
        ((1, 1, 1), None, False),
        ((2, 2, 0), None, False),
    ],
)
def test_slurm_queues_again_what_may_pass(slurm, codes, restarts_before, requeued):
    code = f"import os, sys; sys.exit({codes}[int(os.environ['JAX_PROCESS_ID'])])"
    text = render_for("slurm", [sys.executable, "-S", "-c", code], restarts=2)
    assert slurm.run(text, restarts_before).returncode == max(codes)
    assert slurm.requeued == requeued


def test_slurm_shell_outlives_sigterm(slurm):
    code = "import os, sys; os.kill(int(os.environ['BATCH_SHELL']), 15); sys.exit(75)"
    text = render_for("slurm", [sys.executable, "-S", "-c", code])
    assert slurm.run(text).returncode == 75
    assert slurm.requeued


def test_slurm_asks_for_what_the_options_say():
    text = render_for("slurm", TRAIN, workers=5, name="attention", grace=45)
    asked = re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)
    assert set(asked) == {
        "--job-name=attention",
        "--nodes=5",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@45",
    }
    first = re.search(r"^[^#\n]", text, re.MULTILINE).start()
    assert "#SBATCH" not in text[first:], "sbatch reads none behind the first command"
    assert subprocess.run(["bash", "-n"], input=text.encode()).returncode == 0


# Kubernetes.


@pytest.mark.parametrize("engine", KUBERNETES)
def test_kubernetes_jobs_say_what_the_options_say(engine):
    text = render_for(engine, TRAIN, workers=4, name="no", grace=45, image="a:b #c")
    job = read_yaml(text)
    pod, container = container_of(engine, text)
    assert job["metadata"]["name"] == "no", "a word that YAML takes for False"
    assert container["image"] == "a:b #c"
    assert pod["terminationGracePeriodSeconds"] == 45


def test_tfjob_is_of_the_operator():
    job = read_yaml(render_for("kubernetes-tfjob", TRAIN, workers=4))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    [(kind, replicas)] = job["spec"]["tfReplicaSpecs"].items()
    assert (kind, replicas["replicas"], replicas["restartPolicy"]) == ("Worker", 4, "ExitCode")
    _, container = container_of("kubernetes-tfjob", render_for("kubernetes-tfjob", TRAIN))
    assert container["name"] == "tensorflow"
    assert "env" not in container, "TF_CONFIG is the operator's"


SHELLS = ["sh", "bash"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("code, seen", [(0, 0), (1, 1), (2, 2), (75, 143), (137, 137)])
def test_tfjob_starts_again_by_exit_code(shell, code, seen):
    program = f"import sys; print(sys.argv[1:]); sys.exit({code})"
    words = [sys.executable, "-S", "-c", program, *ODD]
    _, container = container_of("kubernetes-tfjob", render_for("kubernetes-tfjob", words))
    command = [expanded(word, {"HOME": "/"}) for word in container["command"]]
    assert command[0] == "sh"
    finished = subprocess.run([shell, *command[1:]], capture_output=True, text=True)
    assert finished.returncode == seen, finished.stderr
    assert ast.literal_eval(finished.stdout) == ODD


@pytest.mark.parametrize("shell", SHELLS)
def test_tfjob_passes_sigterm_on_and_waits(shell, tmp_path):
    program = (
        "import signal, sys, time, pathlib\n"
        "def save(number, frame):\n"
        "    time.sleep(0.3); pathlib.Path(sys.argv[1]).touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    words = [sys.executable, "-S", "-c", program, str(tmp_path / "saved")]
    _, container = container_of("kubernetes-tfjob", render_for("kubernetes-tfjob", words))
    command = [expanded(word, {}) for word in container["command"]]
    process = subprocess.Popen([shell, *command[1:]], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
    assert (tmp_path / "saved").exists()


def test_jobset_workers_find_the_cluster():
    text = render_for("kubernetes-jobset", TRAIN, workers=3, name="attention")
    _, container = container_of("kubernetes-jobset", text)
    assert container["command"] == TRAIN
    ports = {port["containerPort"] for port in container["ports"]}
    for index in range(3):
        # Kubernetes replaces names that are defined above; the index comes from the pod itself.
        variables = {}
        for variable in container["env"]:
            given_by_pod = "valueFrom" in variable
            assert given_by_pod == (variable["name"] == "JOB_COMPLETION_INDEX")
            value = str(index) if given_by_pod else expanded(variable["value"], variables)
            variables[variable["name"]] = value
        hosts = [f"attention-worker-0-{i}.attention" for i in range(3)]
        assert json.loads(variables["TF_CONFIG"]) == {
            "cluster": {"worker": [f"{host}:2222" for host in hosts]},
            "task": {"type": "worker", "index": index},
        }
        assert variables["JAX_COORDINATOR_ADDRESS"] == f"{hosts[0]}:2223"
        assert (variables["JAX_NUM_PROCESSES"], variables["JAX_PROCESS_ID"]) == ("3", str(index))
    assert ports == {2222, 2223}


def test_jobset_starts_all_again_but_not_after_a_mistake():
    job = read_yaml(render_for("kubernetes-jobset", TRAIN, workers=3, restarts=7))
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    policy = job["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    [rule] = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    [replicated] = job["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("worker", 1)
    workers = replicated["template"]["spec"]
    assert workers["completionMode"] == "Indexed"
    assert workers["completions"] == workers["parallelism"] == 3
    assert workers["backoffLimit"] == 0
    [rule] = workers["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": "worker", "operator": "In", "values": [1, 2]}
    pod = workers["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "what a failure policy of pods asks for"
    assert pod["containers"][0]["name"] == "worker"


# Ray.


def test_ray_script_asks_for_what_the_options_say(monkeypatch):
    text = render_for("ray", TRAIN, workers=4, name="attention", restarts=7)
    script, asked = ray_script(text, monkeypatch)
    assert asked["ScalingConfig"][1]["num_workers"] == 4
    assert asked["FailureConfig"] == ((), {"max_failures": 7})
    assert asked["RunConfig"] == ((), {"name": "attention", "failure_config": "FailureConfig"})
    [train], named = asked["TensorflowTrainer"]
    assert train is script["train"]
    assert named == {"scaling_config": "ScalingConfig", "run_config": "RunConfig"}


def test_ray_worker_runs_the_command_and_fails_with_it(monkeypatch, capfd):
    monkeypatch.setenv("TF_CONFIG", "of Ray")
    show = "import os, sys; print([os.environ['TF_CONFIG'], *sys.argv[1:]])"
    script, _ = ray_script(render_for("ray", [sys.executable, "-S", "-c", show, *ODD]), monkeypatch)
    script["train"]()
    assert ast.literal_eval(capfd.readouterr().out) == ["of Ray", *ODD]
    failing = [sys.executable, "-S", "-c", "import sys; sys.exit(75)"]
    script, _ = ray_script(render_for("ray", failing), monkeypatch)
    with pytest.raises(RuntimeError, match="75"):
        script["train"]()


# Wrong use, and the command.


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_left_to_fill_in(engine):
    assert "{{" not in render_for(engine, TRAIN)


@pytest.mark.parametrize(
    "engine, command, options, message",
    [
        ("kubernetes-tfjob", TRAIN, {"image": None}, "needs --image"),
        ("kubernetes-jobset", TRAIN, {"image": None}, "needs --image"),
        ("slurm", TRAIN, {"image": "x"}, "no use for it"),
        ("ray", TRAIN, {"image": "x"}, "no use for it"),
        ("slurm", [], {}, "launch what"),
        ("slurm", ["a\udcff"], {}, "UTF-8"),
        ("ray", TRAIN, {"name": "Upper"}, "--name"),
        ("ray", TRAIN, {"name": "1st"}, "--name"),
        ("ray", TRAIN, {"name": "end-"}, "--name"),
        ("ray", TRAIN, {"name": "a\n"}, "--name"),
        ("ray", TRAIN, {"name": "x" * 41}, "--name"),
    ],
)
def test_wrong_use_is_refused(engine, command, options, message):
    with pytest.raises(UsageError, match=message):
        render_for(engine, command, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_prints_the_file_and_starts_nothing(engine, capsys, tmp_path):
    command = ["touch", str(tmp_path / "started"), "$odd 你好"]
    options = ["--workers", "2", "--to", engine, "--name", "some-name", "--restarts", "5"]
    options += ["--image", "some/image"] if engine in KUBERNETES else []
    assert cli.main(["launch", *options, "--grace", "7", "--", *command]) == 0
    out, err = capsys.readouterr()
    image = {"image": "some/image"} if engine in KUBERNETES else {}
    expected = render(engine, command, 2, name="some-name", restarts=5, grace=7, **image)
    assert (out, err) == (expected, "")
    assert not (tmp_path / "started").exists()


def test_the_command_refuses_in_one_line(capsys):
    assert cli.main(["launch", "--workers", "2", "--to", "kubernetes-tfjob", "--", *TRAIN]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and "--image" in err


def test_the_command_warns_of_a_training_that_forgets(capsys):
    assert cli.main(["launch", "--workers", "2", "--to", "slurm", "--", *TRAIN[:-2]]) == 0
    assert "--resume auto" in capsys.readouterr().err

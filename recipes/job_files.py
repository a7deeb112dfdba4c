"""Job files: the workers of `keras-attention launch`, started by an engine that a cluster has.

Each engine keeps the supervisor's promises in its own way: all workers find each other through
`TF_CONFIG` (and, where the engine can, JAX's variables), exit code 75 and a lost machine start
all of them again, and a mistake ends the job. Files are checked by rendering them and by running
their shell lines; none was submitted to a cluster.
"""

import json
import math
import re
import shlex
from collections.abc import Sequence

from .errors import UsageError

# A pod of the operator is started again by itself, the survivors by their own exit code: they
# lose their peer and exit with 75. The operator takes 1 to 127 for mistakes, so 75 leaves as
# 143, what SIGTERM would give. No $( and no $$ in here: Kubernetes would read them.
TFJOB = """\
# kubectl apply -f FILE, on a cluster with the Kubeflow training operator, which sets TF_CONFIG.
# The run's folder (--out) has to be on a volume that all workers share.
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: "{{name}}"
spec:
  # Restarts by exit code are not counted by the operator: uncomment to bound the job's life.
  # runPolicy:
  #   activeDeadlineSeconds: 86400
  successPolicy: AllWorkers
  tfReplicaSpecs:
    Worker:
      replicas: {{workers}}
      restartPolicy: ExitCode
      template:
        spec:
          terminationGracePeriodSeconds: {{grace}}
          containers:
          - name: tensorflow  # the operator looks for this name
            image: {{image}}
            command:
            - sh
            - -c
            - |
              # The operator starts a worker again at exit codes of 128 and more: 75 becomes 143.
              "$@" &
              child=$!
              trap 'kill -TERM "$child"' TERM
              wait "$child"
              code=$?
              while kill -0 "$child" 2>/dev/null; do  # a signal had ended the wait
                wait "$child"
                code=$?
              done
              [ "$code" -ne 75 ] || code=143
              exit "$code"
            - worker
{{command}}
            ports:
            - name: tfjob-port
              containerPort: 2222
"""

# No shell: Kubernetes puts the index, which it knows, into the variables by $(...).
JOBSET = """\
# kubectl apply -f FILE, on a cluster with the JobSet controller.
# The run's folder (--out) has to be on a volume that all workers share.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "{{name}}"
spec:
  failurePolicy:
    maxRestarts: {{restarts}}  # of all workers together; every failure but a mistake is worth one
    rules:
    - name: mistake
      action: FailJobSet
      onJobFailureReasons:
      - PodFailurePolicy
  replicatedJobs:
  - name: worker
    replicas: 1
    template:
      spec:
        completionMode: Indexed
        completions: {{workers}}
        parallelism: {{workers}}
        backoffLimit: 0  # a lost worker fails the job, and the set starts it again as a whole
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: worker
              operator: In
              values: [1, 2]
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: {{grace}}
            containers:
            - name: worker
              image: {{image}}
              command:
{{command}}
              ports:
              - containerPort: 2222
              - containerPort: 2223
              env:
              - name: JOB_COMPLETION_INDEX
                valueFrom:
                  fieldRef:
                    fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
              - name: TF_CONFIG
                value: >-
                  {"cluster": {"worker": [
{{hosts}}
                  ]}, "task": {"type": "worker", "index": $(JOB_COMPLETION_INDEX)}}
              - name: JAX_COORDINATOR_ADDRESS
                value: {{name}}-worker-0-0.{{name}}:2223
              - name: JAX_NUM_PROCESSES
                value: "{{workers}}"
              - name: JAX_PROCESS_ID
                value: $(JOB_COMPLETION_INDEX)
"""

# Survivors of a lost worker exit by themselves, so srun kills none early, while they save; it
# gives the highest exit code of all, so that 75 or a signal outweighs a mistake: the limit of
# restarts ends that, too.
SLURM = """\
#!/bin/bash
# sbatch FILE; options before FILE win: sbatch --partition=gpu --gpus-per-node=4 --time=8:00:00 FILE
# The run's folder (--out) has to be on a file system that all nodes share.
#SBATCH --job-name={{name}}
#SBATCH --nodes={{workers}}
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@{{grace}}

trap : TERM  # workers save and exit at SIGTERM; this shell has to be there afterwards

port=$((10000 + SLURM_JOB_ID % 20000))  # jobs that share a node differ
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export cluster=""
for host in $hosts; do
    cluster="$cluster${cluster:+, }\\"$host:$port\\""
done
export JAX_COORDINATOR_ADDRESS="${hosts%%[[:space:]]*}:$((port + 1))"
export JAX_NUM_PROCESSES="$SLURM_JOB_NUM_NODES"

command=(
{{command}}
)
srun --kill-on-bad-exit=0 --wait=600 bash -c '
    task="{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}"
    export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$cluster]}, \\"task\\": $task}"
    export JAX_PROCESS_ID="$SLURM_PROCID"
    exec "$@"
' worker "${command[@]}"
code=$?

restarts=${SLURM_RESTART_COUNT:-0}  # those after a time limit, too
if { [ "$code" -eq 75 ] || [ "$code" -ge 128 ]; } && [ "$restarts" -lt {{restarts}} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

# A process of its own, because a recipe takes signals and its exit in its own hands, which a
# worker of Ray's cannot give away.
RAY = """\
\"\"\"ray job submit --working-dir . -- python FILE, or python FILE on the head of a Ray cluster.

The run's folder (--out) has to be an absolute path on a file system that all nodes share.
\"\"\"

import subprocess

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

COMMAND = [
{{command}}
]


def train():
    \"\"\"Run one worker; Ray has set TF_CONFIG. An error starts all workers again.\"\"\"
    code = subprocess.run(COMMAND).returncode
    if code:
        raise RuntimeError(f"the worker exited with {code}")


trainer = TensorflowTrainer(
    train,
    scaling_config=ScalingConfig(num_workers={{workers}}, use_gpu=False),
    run_config=RunConfig(name="{{name}}", failure_config=FailureConfig(max_failures={{restarts}})),
)

if __name__ == "__main__":
    trainer.fit()
"""

ENGINES = {
    "kubernetes-tfjob": TFJOB,
    "kubernetes-jobset": JOBSET,
    "slurm": SLURM,
    "ray": RAY,
}
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def render(
    engine: str,
    command: Sequence[str],
    workers: int,
    *,
    image: str | None = None,
    name: str = "training",
    restarts: int = 3,
    grace: float = 30,
) -> str:
    """The text of a job file that runs a command on `workers` machines.

    Args:
        engine: a name of `ENGINES`.
        command: the program and its arguments, as `launch` takes them.
        workers: how many machines.
        image: the container that holds the program, for Kubernetes and only there.
        name: of the job.
        restarts: how often the engine may start all workers again.
        grace: seconds from SIGTERM to SIGKILL, in which a worker saves its state.

    Raises:
        UsageError: when there is no command or it is not text, when the engine needs an image or
            has no use for one, or the name is no name for Kubernetes.

    Example:

    ```python
    from keras_attention.recipes.job_files import render

    train = "keras-attention train translation --out /shared/run --resume auto"
    print(render("slurm", train.split(), workers=4))
    ```
    """
    if not command:
        raise UsageError("launch what? Give the command of a worker after --")
    kubernetes = engine.startswith("kubernetes")
    if kubernetes and image is None:
        raise UsageError(f"--to {engine} needs --image, the container to run")
    if image is not None and not kubernetes:
        raise UsageError(f"--image is for Kubernetes, --to {engine} has no use for it")
    if not NAME.fullmatch(name):
        raise UsageError(
            f"--name takes up to 40 letters a-z, digits and dashes, the first a letter: not {name}"
        )
    quote, indent = {
        "kubernetes-tfjob": (_for_kubernetes, "            - "),
        "kubernetes-jobset": (_for_kubernetes, "              - "),
        "slurm": (shlex.quote, "    "),
        "ray": (lambda word: f"{word!r},", "    "),
    }[engine]
    try:
        "".join(command).encode()
    except UnicodeEncodeError:
        raise UsageError("the command holds bytes that are not UTF-8 text") from None
    values = {
        "name": name,
        "image": _yaml(image or ""),
        "workers": workers,
        "restarts": restarts,
        "grace": math.ceil(grace),
        "command": "\n".join(indent + quote(word) for word in command),
        "hosts": ",\n".join(
            f'{" " * 18}"{name}-worker-0-{index}.{name}:2222"' for index in range(workers)
        ),
    }
    # Shells and Kubernetes have plans of their own with $, and a command may hold anything.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(values[found[1]]), ENGINES[engine])


def _for_kubernetes(word: str) -> str:
    """A word of a command, in which Kubernetes would replace $(NAME)."""
    return _yaml(word.replace("$", "$$"))


def _yaml(text: str) -> str:
    """A text as YAML: as JSON, but for the few characters that JSON may hold and YAML may not."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", quoted
    )

"""The options of the command line."""

import argparse
import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from keras_attention import __version__
from keras_attention.visualization import PICTURES

from . import (
    documents_options,
    sentences_options,
    stories_options,
    strategies,
    transformer_options,
    translation_options,
)
from .job_files import ENGINES

CONFIGS = {
    options.Config.recipe: options.Config
    for options in (
        translation_options,
        transformer_options,
        sentences_options,
        documents_options,
        stories_options,
    )
}
RECIPES = {
    "translation": "recurrent encoder and decoder with attention (Bahdanau, Luong)",
    "transformer": "translation by attention alone, in an encoder and a decoder",
    "sentences": "kinds of sentences, by several hops (self-attentive) or dimensions (DiSAN)",
    "documents": "kinds of documents, by attention over words and sentences (HAN)",
    "stories": "answers to questions about stories, by a memory that is read in hops",
}

EPILOG = """examples:
  keras-attention demo
  keras-attention train translation --data multi30k --minutes 25 --out runs/m30k
  keras-attention train translation --pairs my.tsv --query current --out runs/my
  keras-attention train translation --pairs 'shards/*.tfrecord' --backend jax --out runs/big
  keras-attention evaluate runs/m30k
  keras-attention predict runs/m30k "ein mann schläft ."
  keras-attention export runs/m30k --to tflite --quantize dynamic
  keras-attention predict runs/m30k/export/tflite-dynamic/translation.tflite "ein mann schläft ."
  keras-attention train stories --data babi --out runs/babi
  keras-attention plot runs/m30k "ein mann schläft ." --out alignment.png
  keras-attention serve runs/m30k
  keras-attention launch --workers 2 -- \\
      keras-attention train translation --data multi30k --out runs/m30k --resume auto
"""

TRAIN = "Train a recipe into a run folder; RECIPE --help lists its options."

TRAIN_EPILOG = """examples:
  keras-attention train translation --data multi30k --minutes 25 --out runs/m30k
  keras-attention train transformer --pairs my.tsv --out runs/my
"""

LAUNCH = """\
Start workers of one training on this host, watch them, and start all of them again when one is
lost. Each finds the others in its environment: TF_CONFIG for TensorFlow, JAX_COORDINATOR_ADDRESS,
JAX_NUM_PROCESSES and JAX_PROCESS_ID for JAX.

a worker that exits with    makes of the group
  0                         nothing; 0 when all have done so
  75, or by a signal        stopped, all started again after 1, 2, 4 ... 60 s
  another code              stopped, and that is the exit code: a mistake would only be repeated
Exit code 75 also tells that restarts are used up, or SIGTERM; 130 tells Ctrl-C. The command has
to go on by itself: that is what --resume auto is for.

With --to, the job file for a cluster is printed and nothing is started.
"""

LAUNCH_EPILOG = """examples:
  keras-attention launch --workers 2 -- \\
      keras-attention train translation --data multi30k --out runs/m30k --resume auto
  keras-attention launch --workers 4 --to slurm -- \\
      keras-attention train translation --data multi30k --out /shared/m30k --resume auto > m30k.sh
"""


def parse(arguments: Sequence[str] | None, commands: Mapping[str, Callable]) -> argparse.Namespace:
    """Read the arguments; `command` of what comes back is the function of the command."""
    parser = _parser(commands)
    options, rest = parser.parse_known_args(arguments)
    # argparse takes texts that follow an option for strangers: `predict RUN --alignment TEXT`.
    if rest and isinstance(getattr(options, "text", None), list):
        if not any(word.startswith("-") for word in rest):
            options.text, rest = [*options.text, *rest], []
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _parser(commands: Mapping[str, Callable]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-attention",
        description="Train, measure, look at and export attention models.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    places = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name, help):
        sub = places.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(command=commands[name])
        sub.add_argument("--json", action="store_true", help="print JSON lines on standard output")
        return sub

    listed = command("list", "the recipes, data sets and scores there are")
    demo = command("demo", "learn a small language, show its alignment, export the model")
    demo.add_argument("--out", type=Path, help="folder of the run (default: a fresh runs/demo)")
    demo.add_argument("--seed", type=int, default=0, help="default: %(default)s")

    train = places.add_parser(
        "train",
        help="train a recipe into a run folder",
        description=TRAIN,
        epilog=TRAIN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    recipes = train.add_subparsers(title="recipes", metavar="RECIPE", dest="recipe", required=True)
    trains = [_add_recipe(recipes, name, commands["train"]) for name in RECIPES]

    evaluate = command("evaluate", "measure a run on the test part of its data")
    evaluate.add_argument("run", type=Path, metavar="RUN")
    evaluate.add_argument("--limit", type=_positive, help="number of test rows to use")

    predict = command("predict", "answer by a run, or by an exported .tflite alone")
    predict.add_argument("run", type=Path, metavar="RUN|FILE")
    predict.add_argument("text", nargs="*", help="texts; without any, lines of standard input")
    predict.add_argument("--greedy", action="store_true", help="greedy search instead of beams")
    predict.add_argument("--alignment", action="store_true", help="show what was read")

    export = command("export", "write a run as a SavedModel, a .tflite or ONNX files")
    export.add_argument("run", type=Path, metavar="RUN")
    export.add_argument("--to", choices=("saved_model", "tflite", "onnx"), required=True)
    export.add_argument(
        "--quantize",
        choices=("none", "float16", "dynamic", "int8", "weight_only_int8", "weight_only_int4"),
        default="none",
        help="of a .tflite: weights in half precision, in 8 bits computed with (dynamic), "
        "everything in 8 bits (int8), or weights alone in 8 or 4 bits (default: %(default)s)",
    )
    export.add_argument(
        "--shapes",
        type=_shapes,
        default="dynamic",
        metavar="dynamic|static|8,16,...",
        help="of a .tflite: any sizes; those of the longest text; or a file for each of several "
        "lengths, as browsers need them (default: %(default)s)",
    )
    export.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="texts, one a line, that --quantize int8 is fitted to (default: of the training data)",
    )
    export.add_argument(
        "--text",
        action="store_true",
        help="a .tflite that reads text, for runtimes that link TensorFlow Text's operators",
    )
    export.add_argument("--out", type=Path, help="default: a place inside RUN/export")
    export.add_argument(
        "--report",
        type=_report,
        metavar="FILE",
        help="measure a .tflite (errors, BLEU or accuracy, time, memory) and write it as .html or "
        ".json",
    )
    export.add_argument(
        "--no-verify", action="store_true", help="do not compare the artifact with the model"
    )

    inspect = command(
        "inspect", "what an exported file or folder holds, and whether it is undamaged"
    )
    inspect.add_argument("file", type=Path, metavar="FILE|FOLDER")

    plot = command("plot", "draw what was read of a text: an alignment, or what each hop read")
    plot.add_argument("run", type=Path, metavar="RUN")
    plot.add_argument("text", help="the text")
    plot.add_argument(
        "--out",
        type=_picture,
        required=True,
        help="a .png, .svg or .pdf file, or .html where a text has one label",
    )

    results = command("results", "the figures on record, and whether they come out again")
    results.add_argument(
        "--quick", action="store_true", help="train and measure again what takes minutes"
    )
    results.add_argument(
        "--folder",
        type=Path,
        default=Path("results"),
        help="of the files of figures (default: %(default)s, of the source tree)",
    )
    results.add_argument(
        "--out",
        type=Path,
        default=Path("runs/results"),
        help="of the runs; an interrupted one goes on (default: %(default)s)",
    )

    serve = command("serve", "answer requests as TensorFlow Serving does, for development")
    serve.add_argument("place", type=Path, metavar="RUN|FOLDER", help="a run, or a SavedModel")
    serve.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    serve.add_argument("--port", type=_port, default=8501, help="of REST (default: %(default)s)")
    serve.add_argument(
        "--grpc-port", type=_port, default=8500, metavar="PORT", help="default: %(default)s"
    )
    serve.add_argument(
        "--name",
        type=_model_name,
        default="translation",
        help="of the model (default: %(default)s)",
    )

    launch = places.add_parser(
        "launch",
        help="run a command in several processes that train together, here or on a cluster",
        description=LAUNCH,
        epilog=LAUNCH_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="keras-attention launch --workers N [options] -- COMMAND ...",
    )
    launch.set_defaults(command=commands["launch"])
    _add_launch(launch)

    for sub in (listed, *trains, evaluate, export, results):
        sub.add_argument(
            "--data-dir",
            type=Path,
            help="folder with the named data sets (default: KERAS_ATTENTION_DATA)",
        )
    return parser


def _add_recipe(places, name: str, command: Callable) -> argparse.ArgumentParser:
    about = RECIPES[name]
    sub = places.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    sub.set_defaults(command=command)
    sub.add_argument("--json", action="store_true", help="print JSON lines on standard output")
    sub.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run's folder")
    sub.add_argument(
        "--resume",
        nargs="?",
        const="always",
        choices=("always", "auto"),
        help="go on with the run in RUN; auto: if there is one, else begin it",
    )
    _add_config(sub, CONFIGS[name])
    _add_devices(sub)
    return sub


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_positive, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--restarts",
        type=_count,
        default=3,
        metavar="K",
        help="how often in a row to start all again (default: %(default)s); they are no longer in "
        "a row when the workers have run for ten minutes",
    )
    parser.add_argument(
        "--grace",
        type=_count,
        default=30,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL, to save the state in (default: %(default)s)",
    )
    parser.add_argument("--to", choices=ENGINES, help="print the job file for this engine")
    parser.add_argument("--image", help="with --to kubernetes-...: the container to run")
    parser.add_argument("--name", help="with --to: the name of the job (default: training)")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND ...",
        help="what each worker runs, behind --",
    )


def _add_devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--strategy",
        default="auto",
        metavar="{" + ",".join(strategies.NAMES) + "}",
        help="where the replicas of the model are; auto: the cluster that the environment names, "
        "else a TPU, else all GPUs, else one device, and it says which (default: %(default)s)",
    )
    group.add_argument(
        "--replicas",
        type=_positive,
        metavar="N",
        help="devices of this machine to use; without a GPU: virtual ones, to test and no faster",
    )
    group.add_argument(
        "--backend",
        choices=("tensorflow", "jax"),
        help="of Keras (default: KERAS_BACKEND, else tensorflow)",
    )
    group.add_argument(
        "--jit",
        action="store_true",
        help="let XLA compile the step for a few sizes of batches; JAX always does",
    )
    group.add_argument(
        "--tensorboard", action="store_true", help="write curves for TensorBoard to RUN/tensorboard"
    )
    group.add_argument(
        "--profile",
        action="store_true",
        help="write a profile of ten steps to RUN/profile, for TensorBoard or xprof",
    )


def _add_config(parser: argparse.ArgumentParser, config: type) -> None:
    """The fields of the recipe's config as options; None where not given."""
    kinds = {int: _positive, float: _fraction, str: str}
    fields = dataclasses.fields(config)
    used = {field.metadata["group"] for field in fields}
    groups = {name: parser.add_argument_group(name) for name in _GROUPS if name in used}
    for field in fields:
        about = SimpleNamespace(**field.metadata)
        group = groups[about.group]
        kind, *_ = typing.get_args(field.type) or (field.type,)  # of `int | None`: int
        several = typing.get_origin(kind) is Sequence
        kind = typing.get_args(kind)[0] if several else kind
        default = "" if field.default is None else f" (default: {field.default}"
        if default:
            small = config.small.get(field.name)
            default += f"; {config.embedded}: {small})" if small is not None else ")"
        if kind is bool:
            group.add_argument(
                flag(field.name), action=argparse.BooleanOptionalAction, help=about.help + default
            )
        else:
            group.add_argument(
                flag(field.name),
                type=_OF_THEIR_OWN.get(field.name, kinds[kind]),
                choices=about.choices,
                help=about.help + default,
                metavar="FILE" if several else None if about.choices else kind.__name__.upper(),
                nargs="+" if several else None,
            )


_GROUPS = ("data", "model", "training", "search")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in (*PICTURES, ".html"):
        raise argparse.ArgumentTypeError(f"must end in .png, .svg, .pdf or .html, is {text}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    return path


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, is {number}")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, is {number}")
    return number


def _report(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".html", ".json"):
        raise argparse.ArgumentTypeError(f"must end in .html or .json, is {text!r}")
    return path


def _shapes(text: str) -> str | list[int]:
    if text in ("dynamic", "static"):
        return text
    try:
        return [_positive(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be dynamic, static or lengths like 8,16,32, is {text!r}"
        ) from None


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**16:
        raise argparse.ArgumentTypeError(f"must be 0 (any free one) to 65535, is {number}")
    return number


def _model_name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+", text):
        raise argparse.ArgumentTypeError(f"must be letters, digits, _, - and ., is {text!r}")
    return text


def _dropped(text: str) -> float:
    part = _fraction(text)
    if part >= 1:
        raise argparse.ArgumentTypeError(f"must be below 1, is {text}")
    return part


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, is {text}")
    return number


# Options whose numbers have other bounds than those of their kind.
_OF_THEIR_OWN = {
    "seed": _count,
    "warmup_steps": _count,
    "linear_start": _count,
    "dropout": _dropped,
}

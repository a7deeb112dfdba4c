"""The command line, `keras-attention`.

Standard output holds what was asked for and, with `--json`, nothing but JSON lines; news and
progress go to standard error. Exit codes: 0 done, 1 failed, 2 wrong use, 75 stopped by SIGTERM
and to be restarted, 130 stopped by Ctrl-C.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_attention.export.errors import ExportError

from .errors import Interrupted, PeerLost, RunError, UsageError
from .options import CONFIGS, RECIPES, flag, parse
from .terminal import news, print_figures, progress, show
from .training_options import FREE_WHEN_RESUMED
from .translation_options import ATTENTIONS, Config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(encoding="utf-8", errors="replace")
    options = parse(arguments, COMMANDS)
    code = _run(options)
    strategy = getattr(options, "chosen", None)
    if strategy and strategy.workers > 1:
        strategy.leave(code)
    return code


def _run(options) -> int:
    try:
        return options.command(options) or 0
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except BrokenPipeError:
        # Whoever read the output has gone; nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        return _fail(f"{error}; install keras-attention-layers[all]", 1)
    except Exception as error:
        return _explain(error)


def _explain(error: Exception) -> int:
    """One line for a mistake of the user's or of the world's; anything else is ours: traceback."""
    if isinstance(error, Interrupted):
        return _fail(str(error), 130 if error.signal_number == signal.SIGINT else 75)
    if isinstance(error, PeerLost):
        return _fail(str(error), 75)
    if isinstance(error, UsageError):
        return _fail(str(error), 2)
    if isinstance(error, OSError) and error.filename:
        return _fail(f"{error.filename}: {error.strerror}", 1)
    if isinstance(error, (RunError, ExportError, OSError, ValueError)):
        return _fail(str(error).strip().split("\n")[0] or type(error).__name__, 1)
    raise error


def _fail(message: str, code: int) -> int:
    print(f"keras-attention: {message}", file=sys.stderr)
    return code


# Commands.


def _list(options) -> None:
    from . import data, labelled

    names = (*data.NAMES, *labelled.NAMES, *labelled.STORIES)
    values = {
        "recipes": RECIPES,
        "data": {name: _where(name, data, options.data_dir) for name in names},
        "attention": list(ATTENTIONS),
    }
    if options.json:
        print(json.dumps(values, ensure_ascii=False))
        return
    for title, rows in values.items():
        print(title)
        for row in rows:
            print(f"  {row:<14}{rows[row]}" if isinstance(rows, dict) else f"  {row}")


def _where(name, data, data_dir):
    what, folder = {
        "phrasebook": ("generated Chinese-English sentences with gold alignments, embedded", None),
        "multi30k": ("German-English image captions", "multi30k/tok"),
        "tatoeba-cmn": ("Chinese-English sentences", "tatoeba"),
        "questions": ("generated questions of six kinds, embedded", None),
        "reviews": ("generated reviews, good or bad, embedded", None),
        "trec": ("questions of six kinds", "trec"),
        "errands": ("generated stories with questions about them, embedded", None),
        "babi": ("the 20 tasks of bAbI, 1,000 questions each", "babi/en"),
        "babi-10k": ("the same with 10,000 questions each", "babi"),
        "imdb": ("film reviews, positive or negative", "imdb"),
    }[name]
    if folder is None:
        return what
    for root in (data_dir, os.environ.get(data.DATA_FOLDER_VARIABLE)):
        if root and (Path(root) / folder).is_dir():
            return f"{what}, found"
    return (
        f"{what}, not here: --data-dir or {data.DATA_FOLDER_VARIABLE} names a folder with {folder}"
    )


def _demo(options) -> None:
    _quietly()
    from . import translation_training, translator

    out = options.out or _fresh(Path("runs") / "demo")
    started = time.perf_counter()
    news(f"learning to translate a small generated language, into {out}")
    config = Config(**{**Config.small, "seed": options.seed})
    translation_training.train(config, out, report=news, progress=progress)
    run = translator.load_run(out)
    figures = translator.evaluate(run, report=news)
    news("exporting")
    from keras_attention.export.run_template import Translator

    from . import translation_export

    saved_model = translation_export.export(run, "saved_model")
    tflite = translation_export.export(run, "tflite")
    corpus = translator.load_corpus(config)
    texts = corpus.test.source[:200]
    match = translation_export.token_match(run, tflite, texts)

    shown = translator.translate(run, texts[:3], translator.search_function(run, "greedy"))
    without = Translator(tflite)
    if not options.json:
        for text, row in zip(texts, shown, strict=False):
            show(text, row, alignment=True)
        print("the same by the .tflite, without TensorFlow:")
        for text in texts[:3]:
            tokens, _ = without.translate(without.ids(text))
            print(f"  {text}  ->  {without.target.decode(tokens)}")
    summary = {
        "exact_match": figures["exact_match"],
        "aer": figures["aer"],
        "bleu": figures["bleu"],
        "tflite_token_match": match["equal"] / match["sentences"],
        "tflite_sentences": match["sentences"],
        "test_sentences": figures["sentences"],
        "seed": options.seed,
        "seconds": time.perf_counter() - started,
        "run": str(out),
        "saved_model": str(saved_model),
        "tflite": str(tflite),
    }
    print_figures(summary, options.json)
    if not options.json:
        print(f'\nnext:  keras-attention predict {out} "早上 好"')
        print(f'       python {tflite.parent / "run.py"} "早上 好"')


def _fresh(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3` ... that is not there yet."""
    number, fresh = 1, path
    while fresh.exists():
        number += 1
        fresh = path.with_name(f"{path.name}-{number}")
    return fresh


def _train(options) -> None:
    recipe = CONFIGS[options.recipe]
    commands = _commands(recipe)
    import keras

    from . import strategies

    if options.backend and options.backend != keras.backend.backend():
        raise UsageError(
            f"Keras runs on {keras.backend.backend()} already: set KERAS_BACKEND={options.backend}"
        )
    # Before anything else computes: devices are made by it.
    options.chosen = strategy = strategies.choose(options.strategy, replicas=options.replicas)
    news(str(strategy))
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(recipe)
        if getattr(options, field.name) is not None
    }
    going_on = options.resume == "always" or (
        options.resume == "auto" and (options.out / "config.json").exists()
    )
    if going_on:
        from .runs import load_config

        config = load_config(options.out, CONFIGS.values())
        if config.recipe != options.recipe:
            raise UsageError(f"{options.out} is a run of the {config.recipe} recipe")
        changed = [
            name
            for name, value in given.items()
            if name not in FREE_WHEN_RESUMED and value != getattr(config, name)
        ]
        if changed:
            name = changed[0]
            raise UsageError(
                f"{options.out} was started with {flag(name)} {getattr(config, name)}: "
                f"a resumed run may change {', '.join(map(flag, FREE_WHEN_RESUMED))} only"
            )
        config = dataclasses.replace(config, **given)
    else:
        own = any(given.get(name) for name in recipe.own_files)
        if own and "data" in given:
            raise UsageError("give either --data or files of your own")
        small = not own and given.get("data", recipe.embedded) == recipe.embedded
        config = recipe(**{**(recipe.small if small else {}), **given})
    listeners = []
    if options.tensorboard:
        from .tensorboard import TensorBoard

        listeners.append(TensorBoard(options.out / "tensorboard"))
    if options.profile:
        from .profiling import Profile

        listeners.append(Profile(options.out / "profile", report=news))
    figures = commands.train(
        config,
        options.out,
        data_dir=options.data_dir,
        resume="auto" if options.resume == "auto" else going_on,
        strategy=strategy,
        jit=options.jit,
        listeners=listeners,
        report=news,
        progress=progress,
    )
    figures.pop("history")
    if strategy.is_chief:
        print_figures(figures, options.json)


def _evaluate(options) -> None:
    commands = _commands_of(options.run)
    from .runs import write_json

    run = commands.load_run(options.run)
    figures = commands.evaluate(run, data_dir=options.data_dir, limit=options.limit, report=news)
    write_json(run.folder / "evaluation.json", figures)
    print_figures(figures, options.json)


def _predict(options) -> None:
    texts = options.text or list(_lines())
    if not texts:
        news("no text: give some behind the run, or as lines of standard input")
    if _is_run(options.run):
        commands = _commands_of(options.run)
        rows = commands.predict(commands.load_run(options.run), texts, options.greedy)
    else:
        from keras_attention.export.quiet import quiet

        from .predict_file import predict_by_file

        with quiet():  # the interpreter announces itself
            rows = predict_by_file(options.run, texts, options.greedy)
    for text, row in zip(texts, rows, strict=True):
        if options.json:
            print(json.dumps({"text": text, **row}, ensure_ascii=False))
        else:
            show(text, row, alignment=options.alignment, only=True)


def _is_run(path: Path) -> bool:
    """Whether it is a run's folder, and no file or folder of files that a run left as."""
    return path.is_dir() and ((path / "config.json").exists() or not any(path.glob("*.tflite")))


def _lines() -> Iterator[str]:
    """The lines of standard input, which is text or else refused by the number of its line."""
    stream = getattr(sys.stdin, "buffer", sys.stdin)
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8") if isinstance(line, bytes) else line
        except UnicodeDecodeError:
            raise RunError(f"line {number} of standard input is not UTF-8") from None
        if "\x00" in text:
            raise RunError(f"line {number} of standard input holds a NUL byte")
        yield text.rstrip("\r\n")


def _export(options) -> None:
    for name, plain in (("quantize", "none"), ("shapes", "dynamic")):
        if getattr(options, name) != plain and options.to != "tflite":
            raise UsageError(f"{flag(name)} is for --to tflite")
    if options.report and options.to != "tflite":
        raise UsageError("--report is for --to tflite")
    if options.calibrate and options.quantize != "int8":
        raise UsageError("--calibrate is for --quantize int8")
    if options.text and (options.to != "tflite" or options.report):
        raise UsageError("--text is for --to tflite, without --report")
    commands = _commands_of(options.run)
    run = commands.load_run(options.run)
    news(f"exporting {options.run} to {options.to}")
    path = commands.export(run, options)
    size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")))
    values = {"path": str(path), "bytes": size, "verified": not options.no_verify}
    print(json.dumps(values) if options.json else path)


def _inspect(options) -> None:
    from .inspect_command import inspect

    inspect(options.file, options.json)


def _plot(options) -> None:
    commands = _commands_of(options.run)
    commands.plot(commands.load_run(options.run), options.text, options.out)
    print(json.dumps({"path": str(options.out)}) if options.json else options.out)


def _results(options) -> int:
    from . import results

    failed = 0
    found = results.read(options.folder)
    for result in filter(lambda result: result.quick or not options.quick, found):
        recorded, values = result.shown(result.values["figures"]), result.values
        row = {"name": result.name, "title": values["title"], "recorded": recorded}
        if options.quick:
            news(f"{result.name}: {values['command']}")
            try:
                figures = results.again(result, options.out, options.data_dir)
            except RunError as error:
                failed, row["failed"] = 1, str(error)
            else:
                row["now"] = result.shown(figures)
        print(json.dumps(row, ensure_ascii=False) if options.json else _as_lines(row, values))
    return failed


def _as_lines(row, values) -> str:
    lines = [row["title"], f"  {values['command']}"]
    for name, figure in row["recorded"].items():
        now = f", now {row['now'].get(name, '-')}" if "now" in row else ""
        lines.append(f"  {name:<20}{figure}{now}")
    if "failed" in row:
        lines.append(f"  not run: {row['failed']}")
    return "\n".join(lines)


def _serve(options) -> None:
    _quietly()
    from .serve import serving

    place = {"host": options.host, "port": options.port, "grpc_port": options.grpc_port}
    with serving(options.place, name=options.name, **place) as served:
        facts = {
            "model": served.model.name,
            "version": served.model.version,
            "signatures": list(served.model.runners),
            "rest": served.rest,
            "grpc": served.grpc,
        }
        if options.json:
            print(json.dumps(facts), flush=True)
        else:
            print(f"REST  {served.rest}", f"gRPC  {served.grpc or 'none'}", sep="\n", flush=True)
        while True:  # until Ctrl-C, which a sleep that has just begun does not notice
            time.sleep(1)


def _launch(options) -> int | None:
    from .launch import forgets_to_resume, launch

    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if forgets_to_resume(words):
        news("without --resume auto, a worker that is started again begins from the start")
    rules = {"restarts": options.restarts, "grace": options.grace}
    given = {name: getattr(options, name) for name in ("image", "name") if getattr(options, name)}
    if options.to is None:
        if given:
            raise UsageError(f"{flag(next(iter(given)))} is for a job file, which --to asks for")
        return launch(words, options.workers, **rules)
    from .job_files import render

    print(render(options.to, words, options.workers, **given, **rules), end="")
    return None


def _commands_of(folder: Path):
    """The commands of the recipe that a run's folder is of."""
    from .runs import load_config

    return _commands(load_config(folder, CONFIGS.values()))


def _commands(config):
    """The commands of a recipe, with TensorFlow's own chatter of the import kept from the user."""
    _quietly()
    return importlib.import_module(f".{config.commands}", __package__)


def _quietly() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    from keras_attention.export.quiet import quiet

    with quiet():
        import tensorflow as tf

        from . import translator  # noqa: F401  (imports what speaks)

        tf.config.list_physical_devices()
        tf.get_logger().setLevel("ERROR")


COMMANDS = {
    "list": _list,
    "demo": _demo,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
    "inspect": _inspect,
    "plot": _plot,
    "results": _results,
    "serve": _serve,
    "launch": _launch,
}


if __name__ == "__main__":
    sys.exit(main())

"""Small figures that last: `results/*.json`, and the tables of README made from them.

python benchmarks/record.py run RUN NAME TITLE     after train and evaluate
python benchmarks/record.py seeds NAME TITLE RUN...  of runs that differ in their seed alone
python benchmarks/record.py readme [--check]       write README's table, or compare it
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from keras_attention.recipes import results

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def hardware() -> str:
    """The machine in a few words."""
    return f"{os.cpu_count()} CPU cores, {platform.machine()}, no accelerator"


def write(name: str, values: dict) -> Path:
    """Write one file of results, beside and renamed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
    beside.replace(path)
    return path


def write_bench(name: str, values: dict) -> None:
    """Put one benchmark into `results/bench.json`."""
    path = RESULTS / "bench.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    about = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware()}
    write("bench", {**known, name: {**values, **about}})


def record_run(folder: Path, name: str, title: str) -> Path:
    """Figures, command, seed, versions and date of a run that was trained and evaluated."""
    config, trained, measured = _files(folder)
    kept = ("parameters", "best_epoch", "minutes", "seconds", "tokens_per_second")
    return write(
        name,
        {
            "title": title,
            "command": _command(config),
            "figures": {key: measured[key] for key in sorted(measured)},
            "training": {key: trained[key] for key in kept},
            "seed": config["seed"],
            "versions": trained["versions"],
            "date": trained["date"],
            "hardware": hardware(),
        },
    )


def record_seeds(name: str, title: str, folders: Iterable[Path]) -> Path:
    """Figures of runs that differ in their seed alone: each, their mean and the worst."""
    runs = [_files(folder) for folder in folders]
    configs = [{**config, "seed": "SEED"} for config, *_ in runs]
    if any(config != configs[0] for config in configs):
        raise SystemExit("the runs differ in more than their seed")
    measured = [figures for *_, figures in runs]
    seeds = [config["seed"] for config, *_ in runs]
    trained = runs[0][1]
    return write(
        name,
        {
            "title": f"{title}, mean of seeds {', '.join(map(str, seeds))}",
            "command": _command(configs[0]),
            "figures": {
                **results.together(measured),
                "seeds": [{"seed": seed, **row} for seed, row in zip(seeds, measured, strict=True)],
            },
            "training": {
                "parameters": trained["parameters"],
                "minutes": statistics.mean(values["minutes"] for _, values, _ in runs),
            },
            "seed": seeds,
            "versions": trained["versions"],
            "date": trained["date"],
            "hardware": hardware(),
        },
    )


def _files(folder):
    names = ("config.json", "metrics.json", "evaluation.json")
    return [json.loads((folder / name).read_text("utf-8")) for name in names]


def _command(config) -> str:
    """What trains such a run: the options that are not the recipe's own."""
    from keras_attention.recipes.options import CONFIGS

    recipe = CONFIGS[config["recipe"]]
    small = recipe.small if config["data"] == recipe.embedded else {}
    default = {**recipe().__dict__, **small}
    changed = {k: v for k, v in config.items() if k != "recipe" and v != default[k]}
    options = [_option(key, value) for key, value in changed.items()]
    return " ".join(["keras-attention train", config["recipe"], *options, "--out RUN"])


def record_demo(lines: Iterable[str]) -> Path:
    """The figures of `keras-attention demo --json`, a line a seed: each, their mean and worst."""
    rows = [json.loads(line) for line in lines]
    trained = [json.loads((Path(row["run"]) / "metrics.json").read_text("utf-8")) for row in rows]
    seeds = [row["seed"] for row in rows]
    measured = [results.figures_of_demo(row) for row in rows]
    kept = ("seed", "exact_match", "aer", "bleu", "tflite_token_match", "seconds")
    return write(
        "phrasebook",
        {
            "title": f"phrasebook (generated zh-en), mean of seeds {', '.join(map(str, seeds))}",
            "command": "keras-attention demo --json --seed SEED",
            "figures": {
                **results.together(measured),
                "exact_match_worst": min(row["exact_match"] for row in rows),
                "aer_worst": max(row["aer"] for row in rows),
                "seeds": [{key: row[key] for key in kept} for row in rows],
            },
            "training": {
                "parameters": trained[0]["parameters"],
                "minutes": statistics.mean(values["minutes"] for values in trained),
            },
            "seed": seeds,
            "versions": trained[0]["versions"],
            "date": trained[0]["date"],
            "hardware": hardware(),
        },
    )


def _option(key, value):
    flag = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag} {value}"


def tables() -> str:
    """README's tables of results, from the files: of translation, and of classes."""
    found = results.read(RESULTS)
    parts = [
        (columns, [result.values for result in found if result.columns is columns])
        for columns in (results.TRANSLATED, results.CLASSIFIED)
    ]
    return "\n\n".join(_table(columns, rows) for columns, rows in parts if rows)


def _table(columns, rows_of) -> str:
    names = ["data and model", *columns, "parameters", "minutes", "command"]
    rows = [names, ["---"] * len(names)]
    for values in rows_of:
        figures, training = values["figures"], values["training"]
        rows.append(
            [
                values["title"],
                *(f"{figures[k]:{form}}" if k in figures else "-" for k, form in columns.values()),
                f"{training['parameters']:,}",
                f"{training['minutes']:.1f}",
                f"`{values['command']}`",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_readme(check: bool) -> int:
    """Put the tables between their marks, or say whether it is there already."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if check:
        return int(text != wanted)
    readme.write_text(wanted, "utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("name")
    run.add_argument("title")
    seeds = commands.add_parser("seeds")
    seeds.add_argument("name")
    seeds.add_argument("title")
    seeds.add_argument("folders", type=Path, nargs="+")
    commands.add_parser("demo")
    readme = commands.add_parser("readme")
    readme.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.command == "run":
        print(record_run(options.folder, options.name, options.title))
        return 0
    if options.command == "seeds":
        print(record_seeds(options.name, options.title, options.folders))
        return 0
    if options.command == "demo":
        print(record_demo(sys.stdin))
        return 0
    return write_readme(options.check)


if __name__ == "__main__":
    sys.exit(main())

"""Small figures that last: `results/*.json`, and the table of README made from them.

python benchmarks/record.py run RUN NAME TITLE     after train and evaluate
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
    config, trained, measured = (
        json.loads((folder / file).read_text("utf-8"))
        for file in ("config.json", "metrics.json", "evaluation.json")
    )
    from keras_attention.recipes.options import CONFIGS

    recipe = CONFIGS[config["recipe"]]
    default = {**recipe().__dict__, **(recipe.small if config["data"] == "phrasebook" else {})}
    changed = {k: v for k, v in config.items() if k != "recipe" and v != default[k]}
    options = " ".join(_option(key, value) for key, value in changed.items())
    kept = ("parameters", "best_epoch", "minutes", "seconds", "tokens_per_second")
    return write(
        name,
        {
            "title": title,
            "command": f"keras-attention train {recipe.recipe} {options} --out RUN".replace(
                "  ", " "
            ),
            "figures": {key: measured[key] for key in sorted(measured)},
            "training": {key: trained[key] for key in kept},
            "seed": config["seed"],
            "versions": trained["versions"],
            "date": trained["date"],
            "hardware": hardware(),
        },
    )


def record_demo(lines: Iterable[str]) -> Path:
    """The figures of `keras-attention demo --json`, a line a seed: each, their mean and worst."""
    rows = [json.loads(line) for line in lines]
    trained = [json.loads((Path(row["run"]) / "metrics.json").read_text("utf-8")) for row in rows]
    seeds = [row["seed"] for row in rows]
    mean = {
        name: statistics.mean(row[key] for row in rows)
        for name, key in (("bleu_beam", "bleu"), ("exact_match", "exact_match"), ("aer", "aer"))
    }
    kept = ("seed", "exact_match", "aer", "bleu", "tflite_token_match", "seconds")
    return write(
        "phrasebook",
        {
            "title": f"phrasebook (generated zh-en), mean of seeds {', '.join(map(str, seeds))}",
            "command": "keras-attention demo --json --seed SEED",
            "figures": {
                **mean,
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


def table() -> str:
    """README's table of results, from the files."""
    rows = [
        "| data and model | BLEU greedy / beam | exact match | AER | parameters | "
        "minutes | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        values = json.loads(path.read_text("utf-8"))
        if "title" not in values:
            continue
        figures, training = values["figures"], values["training"]
        greedy, beam, exact, aer = (
            f"{figures[key]:{form}}" if key in figures else "-"
            for key, form in (
                ("bleu_greedy", ".2f"),
                ("bleu_beam", ".2f"),
                ("exact_match", ".3f"),
                ("aer", ".3f"),
            )
        )
        rows.append(
            f"| {values['title']} | {greedy} / {beam} | {exact} | {aer} | "
            f"{training['parameters']:,} | {training['minutes']:.1f} | `{values['command']}` |"
        )
    return "\n".join(rows)


def write_readme(check: bool) -> int:
    """Put the table between its marks, or say whether it is there already."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
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
    commands.add_parser("demo")
    readme = commands.add_parser("readme")
    readme.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.command == "run":
        print(record_run(options.folder, options.name, options.title))
        return 0
    if options.command == "demo":
        print(record_demo(sys.stdin))
        return 0
    return write_readme(options.check)


if __name__ == "__main__":
    sys.exit(main())

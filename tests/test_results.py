"""README's table of results is what `results/*.json` say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNS = [
    p for p in sorted((ROOT / "results").glob("*.json")) if "title" in json.loads(p.read_text())
]


def test_readme_shows_the_results_as_they_stand():
    check = [sys.executable, ROOT / "benchmarks" / "record.py", "readme", "--check"]
    assert subprocess.run(check).returncode == 0, "run: python benchmarks/record.py readme"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_result_says_how_to_repeat_it(path):
    values = json.loads(path.read_text("utf-8"))
    assert {"command", "figures", "training", "seed", "versions", "date", "hardware"} <= set(values)
    assert values["command"].startswith(("keras-attention train ", "keras-attention demo"))

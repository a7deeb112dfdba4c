"""Build translation.ipynb from translation.py, or say with --check whether it is built.

The script is in jupytext's percent format. The notebook holds no outputs, and equal scripts give
equal bytes.
"""

import argparse
import sys
from pathlib import Path

import jupytext
import nbformat

SCRIPT = Path(__file__).with_name("translation.py")
NOTEBOOK = SCRIPT.with_suffix(".ipynb")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def built(script: str) -> str:
    """The text of the notebook; what stands above the first cell is for readers of the script."""
    _, marker, cells = script.partition("# %%")
    notebook = jupytext.reads(marker + cells, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # drawn at random otherwise
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    options = parser.parse_args()
    text = built(SCRIPT.read_text("utf-8"))
    if not options.check:
        NOTEBOOK.write_text(text, "utf-8")
    elif not NOTEBOOK.exists() or NOTEBOOK.read_text("utf-8") != text:
        print(f"{NOTEBOOK.name} is not that of {SCRIPT.name}: run {Path(__file__).name}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

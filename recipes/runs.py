"""A run is a folder: `config.json`, vocabularies, `model.keras`, `metrics.json`, `checkpoints/`."""

import dataclasses
import json
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import keras

from keras_attention.export.places import replacing

from .errors import RunError
from .tokenizers import Tokenizer


@dataclasses.dataclass
class Run:
    """A loaded run."""

    config: Any
    model: keras.Model
    source: Tokenizer
    target: Tokenizer
    folder: Path


def write_config(folder: Path, config) -> None:
    """Write `config.json`, which makes the folder a run."""
    write_json(folder / "config.json", {"recipe": config.recipe, **dataclasses.asdict(config)})


def load_config(folder: Path, kinds: Iterable[type]):
    """The config of a run's folder, as that of the dataclasses `kinds` which is of its recipe.

    Raises:
        RunError: naming what is missing or broken.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise RunError(f"{folder} is not a run: it holds no config.json")
    try:
        values = json.loads(path.read_text("utf-8"))
        recipe = values.pop("recipe", None)
        [kind] = [kind for kind in kinds if kind.recipe == recipe] or [None]
        if kind is None:
            raise ValueError(f"no recipe is called {recipe!r}")
        return kind(**values)
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is broken: {first_line(error)}") from None


def load_model(folder: Path) -> keras.Model:
    """The model that a run kept.

    Raises:
        RunError: when there is none, or it cannot be read.
    """
    path = Path(folder) / "model.keras"
    if not path.exists():
        raise RunError(
            f"{folder} holds no model.keras: its training never finished an epoch; "
            "go on with train --resume"
        )
    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:
        reason = first_line(error) if zipfile.is_zipfile(path) else "truncated, or no such file"
        raise RunError(f"{path} is not a readable model ({reason})") from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its name."""
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def write_json(path: Path, values: dict) -> None:
    """Write JSON, beside and renamed."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")


def versions() -> dict[str, str]:
    """The versions a figure depends on."""
    names = ("keras-attention-layers", "keras", "tensorflow", "tensorflow-text", "numpy")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found

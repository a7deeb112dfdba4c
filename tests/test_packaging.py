"""What the source distribution holds, and what an installation of it puts into site-packages."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"keras_attention": "", "recipes": "recipes", "export": "export"}  # folder: where it lands

pytestmark = pytest.mark.xdist_group("packaging")  # one build, whatever the number of workers


class Installed(NamedTuple):
    sdist: list[str]
    site: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    """The tree as a source distribution, and that distribution installed into a folder."""
    folder = tmp_path_factory.mktemp("packaging")
    tree, site = folder / "tree", folder / "site"
    # A copy: a build leaves folders beside setup.py, which another build would pick up.
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    for room in [*ROOMS, "tests", "bin"]:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    run("setup.py", "-q", "sdist", "--dist-dir", folder, cwd=tree)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    run(*pip, "--disable-pip-version-check", "--target", site, archive, cwd=folder)
    return Installed(names, site)


def run(*arguments: object, cwd: Path) -> str:
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def metadata(site: Path) -> Distribution:
    (folder,) = site.glob("*.dist-info")
    return Distribution.at(folder)


def test_one_name_appears_in_site_packages(installed):
    names = {path.name for path in installed.site.iterdir()} - {"bin", "Scripts"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"keras_attention"}
    assert len(names) == 2


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_a_room_is_installed(installed, room):
    target = installed.site / "keras_attention" / ROOMS[room]
    expected = {path.name for path in (ROOT / room).glob("*.py")}
    assert expected <= {path.name for path in target.glob("*.py")}


def test_type_hints_are_announced(installed):
    assert (installed.site / "keras_attention" / "py.typed").is_file()


def test_rooms_import_from_the_installation(installed):
    code = (
        "import keras_attention, keras_attention.export, keras_attention.recipes as last\n"
        "print(keras_attention.__version__)\n"
        "for room in (keras_attention, keras_attention.export, last): print(room.__file__)\n"
    )
    version, *files = run("-c", code, cwd=installed.site).splitlines()
    assert version == metadata(installed.site).version
    assert all(Path(file).is_relative_to(installed.site) for file in files)


def test_command_is_installed(installed):
    assert (installed.site / "bin" / "keras-attention").is_file()


def test_plain_install_brings_keras_and_numpy_only(installed):
    requires = metadata(installed.site).requires
    core = {re.match(r"[\w-]+", line)[0] for line in requires if "extra ==" not in line}
    assert core == {"keras", "numpy"}


def test_extras_are_named_and_all_of_them_bounded(installed):
    distribution = metadata(installed.site)
    extras = "all baselines cli dev jax litert onnx plot quantization serving tensorboard"
    extras = [*extras.split(" "), "tensorflow", "text", "vectors"]
    assert sorted(distribution.metadata.get_all("Provides-Extra")) == extras
    unbounded = [line for line in distribution.requires if ">=" not in line]
    assert not unbounded


def test_source_distribution_can_be_tested(installed):
    wanted = {"pyproject.toml", "setup.py", "constraints.txt", "LICENSE", "README.md", "Makefile"}
    wanted |= {f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")}
    assert wanted <= set(installed.sdist)


def test_constraints_hold_every_requirement_of_the_extras():
    from importlib.metadata import requires

    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lines if "==" in line}
    named = {
        canonical(re.match(r"[\w.-]+", line)[0]) for line in requires("keras-attention-layers")
    }
    assert named <= pinned

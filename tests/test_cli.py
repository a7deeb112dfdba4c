"""The command line: what it prints where, its exit codes, and that a mistake is one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_attention.recipes import cli
from keras_attention.recipes.phrasebook import generate

pytestmark = pytest.mark.xdist_group("cli")

SIZES = "--embedding 12 --encoder-units 8 --units 16 --batch-size 32 --max-length 20".split()
SIZES += "--normalize none --warmup-steps 5 --learning-rate 0.01 --beam-width 2".split()


@pytest.fixture(scope="module")
def pairs_file(phrases_file):
    path = phrases_file(240, seed=2)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    lines.insert(3, "one column only\n")
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def run_folder(pairs_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train = ["train", "translation", "--pairs", str(pairs_file), "--epochs", "1", *SIZES]
    assert cli.main([*train, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def tflite(run_folder):
    assert cli.main(["export", str(run_folder), "--to", "tflite"]) == 0
    return run_folder / "export" / "tflite" / "translation.tflite"


@pytest.fixture
def said(command_line, capsys):
    return command_line(capsys)


def test_every_command_explains_itself(said):
    commands = "list demo train evaluate predict export inspect plot".split()
    code, out, _ = said("--help")
    assert code == 0 and all(any(line.strip().startswith(c) for line in out) for c in commands)
    recipes = ["translation", "transformer", "sentences", "documents", "stories"]
    for command in commands:
        code, out, _ = said(command, "--help")
        wanted = recipes if command == "train" else ["--json"]
        assert code == 0 and all(any(name in line for line in out) for name in wanted)
    for recipe in recipes:
        code, out, _ = said("train", recipe, "--help")
        assert code == 0 and any("--json" in line for line in out)


def test_list_names_recipes_data_and_scores(said, tmp_path, monkeypatch):
    code, out, _ = said("list", "--json")
    [values] = map(json.loads, out)
    assert code == 0 and {"recipes", "data", "attention"} == set(values)
    (tmp_path / "multi30k" / "tok").mkdir(parents=True)
    monkeypatch.delenv("KERAS_ATTENTION_DATA", raising=False)
    lines = said("list", "--data-dir", tmp_path)[1]
    [multi30k] = [line for line in lines if "multi30k" in line]
    [tatoeba] = [line for line in lines if "tatoeba-cmn" in line]
    assert multi30k.endswith("found") and "not here" in tatoeba


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["train", "translation"],
        ["train", "origami", "--out", "x"],
        ["train", "translation", "--out", "x", "--attention", "psychic"],
        ["train", "translation", "--out", "x", "--epochs", "0"],
        ["train", "translation", "--out", "x", "--dropout", "-1"],
        ["train", "translation", "--out", "x", "--data", "multi30k", "--pairs", "y"],
        ["export", "x", "--to", "paper"],
        ["plot", "x", "text", "--out", "picture.docx"],
        ["plot", "x", "text", "--out", "nowhere/picture.png"],
        ["export", "x", "--to", "saved_model", "--quantize", "dynamic"],
    ],
)
def test_wrong_use_is_exit_code_2(said, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(*arguments)
    assert code == 2 and not out and err
    assert list(tmp_path.iterdir()) == []


def test_training_says_what_it_skips_and_measures(said, run_folder, pairs_file, tmp_path):
    train = ["train", "translation", "--pairs", pairs_file, "--epochs", "1", *SIZES]
    code, out, err = said(*train, "--json", "--out", tmp_path / "run")
    assert code == 0
    [figures] = map(json.loads, out)
    assert figures["best_epoch"] == 1 and figures["parameters"] > 0
    assert any("pairs.tsv" in line and "4" in line and "column" in line for line in err)
    assert any(line.startswith("epoch 1: loss") for line in err)


def test_evaluate_ends_with_one_json_line(said, run_folder):
    code, out, _ = said("evaluate", run_folder, "--json", "--limit", "5")
    [figures] = map(json.loads, out)
    assert code == 0 and {"bleu", "exact_match", "perplexity", "bleu_signature"} <= set(figures)
    assert json.loads((run_folder / "evaluation.json").read_text("utf-8")) == figures


def test_a_run_and_its_tflite_predict_the_same(said, run_folder, tflite):
    texts = generate(3, seed=9).source
    by_run = said("predict", run_folder, *texts)
    by_file = said("predict", tflite, *texts)
    assert by_run[0] == by_file[0] == 0
    assert by_run[1] == by_file[1] and len(by_run[1]) == 3
    greedy = [said("predict", place, "--greedy", *texts)[1] for place in (run_folder, tflite)]
    assert greedy[0] == greedy[1]


def test_predict_reads_lines_and_writes_json(said, run_folder, tflite, monkeypatch):
    import io

    for place in (run_folder, tflite):
        monkeypatch.setattr(sys, "stdin", io.StringIO("早上 好\r\n我 是 一名 演员\n"))
        code, out, _ = said("predict", place, "--json")
        rows = [json.loads(line) for line in out]
        assert code == 0 and [row["text"] for row in rows] == ["早上 好", "我 是 一名 演员"]
        for row in rows:
            assert len(row["alignment"]) == len(row["target"])
            assert all(len(weights) == len(row["source"]) for weights in row["alignment"])


@pytest.mark.parametrize(("content", "says"), [(b"ok\nca\xe9\n", "UTF-8"), (b"ok\na\0b\n", "NUL")])
def test_lines_that_are_no_text_are_refused_by_number(said, run_folder, monkeypatch, content, says):
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code, out, err = said("predict", run_folder)
    assert code == 1 and not out and "line 2" in err[-1] and says in err[-1]


def test_predict_shows_an_alignment_in_the_terminal(said, run_folder):
    code, out, _ = said("predict", run_folder, "--alignment", "早上 好")
    assert code == 0 and len(out) > 2 and any("早上" in line for line in out)


def test_inspect_lists_signatures_and_operators(said, tflite):
    code, out, _ = said("inspect", tflite)
    assert code == 0 and "flex operators: none" in out and "custom operators: none" in out
    assert "signature greedy" in out
    [values] = map(json.loads, said("inspect", tflite, "--json")[1])
    assert values["flex"] == values["custom"] == []
    assert values["signatures"]["greedy"]["inputs"]["source"]


def test_export_to_a_saved_model(said, run_folder):
    code, out, _ = said("export", run_folder, "--to", "saved_model", "--json")
    [values] = map(json.loads, out)
    assert code == 0 and values["verified"] and Path(values["path"], "saved_model.pb").exists()
    assert values["bytes"] > 10_000


def test_plot_draws_a_picture(said, run_folder, tmp_path):
    path = tmp_path / "alignment.svg"
    code, out, _ = said("plot", run_folder, "我 是 一名 演员", "--out", path)
    assert code == 0 and out == [str(path)] and "<svg" in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate", "{tmp}/nothing"], "is not a run"),
        (["predict", "{tmp}/nothing", "x"], "nothing"),
        (["predict", "{tmp}/fake.tflite", "x"], "is not a TFLite file"),
        (["inspect", "{tmp}/fake.tflite"], "is not a TFLite file"),
        (["inspect", "{tmp}"], "folder"),
        (["predict", "{run}", "我 " + "我 " * 40], "pieces, the model takes 20 at most"),
        (["predict", "{tflite}", "我 " + "我 " * 40], "pieces, the model takes 20 at most"),
        (["train", "translation", "--pairs", "{tmp}/gone.tsv", "--out", "{tmp}/r"], "gone.tsv"),
        (["train", "translation", "--pairs", "{tmp}/empty.tsv", "--out", "{tmp}/r"], "empty"),
        (["train", "translation", "--pairs", "{tmp}/latin.tsv", "--out", "{tmp}/r"], "latin.tsv"),
        (["train", "translation", "--pairs", "{tmp}/few.tsv", "--out", "{tmp}/r"], "too few"),
        (["train", "translation", "--data", "multi30k", "--data-dir", "{tmp}", "--out", "{tmp}/r"],
         "multi30k"),
        (["train", "translation", "--resume", "--out", "{tmp}/r"], "is not a run"),
        (["train", "translation", "--out", "{run}"], "holds a run already"),
        (["train", "translation", "--out", "{tmp}/empty.tsv"], "is a file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_1(said, run_folder, tflite, tmp_path, arguments, says):
    (tmp_path / "fake.tflite").write_text("no model")
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "latin.tsv").write_bytes("größe\tsize\n".encode("latin-1") * 3)
    (tmp_path / "few.tsv").write_text("a\tb\n")
    before = sorted(tmp_path.iterdir())
    places = {"tmp": tmp_path, "run": run_folder, "tflite": tflite}
    code, out, err = said(*(a.format(**places) for a in arguments))
    assert code == 1 and not out
    assert err[-1].startswith("keras-attention: ") and says in err[-1]
    assert sorted(tmp_path.iterdir()) == before


def test_resuming_with_other_options_is_refused(said, run_folder):
    train = ["train", "translation", "--resume", "--out", run_folder, "--units", "32"]
    code, _, err = said(*train)
    assert code == 2 and "was started with --units 16" in err[-1]


def test_a_defect_of_ours_is_not_hidden_as_a_mistake(monkeypatch):
    def broken(options):
        raise KeyError("ours")

    monkeypatch.setitem(cli.COMMANDS, "list", broken)
    with pytest.raises(KeyError):
        cli.main(["list"])


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 75)],
)
def test_a_stopped_training_says_how_to_go_on(pairs_file, tmp_path, number, code):
    folder = tmp_path / "run"
    command = [sys.executable, str(Path(__file__).parents[1] / "bin" / "keras-attention")]
    train = [*command, "train", "translation", "--out", str(folder)]
    options = ["--pairs", str(pairs_file), "--epochs", "9999", *SIZES]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    process = subprocess.Popen([*train, *options], stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 120
    while not (folder / "model.keras").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    last = err.decode().splitlines()[-1]
    assert last.startswith("keras-attention: stopped by") and "go on with --resume" in last
    if number == signal.SIGTERM:
        resumed = cli.main(
            ["train", "translation", "--resume", "--epochs", "1", "--out", str(folder)]
        )
        assert resumed == 0
        shutil.rmtree(folder)


def test_nothing_but_the_answer_is_printed(run_folder):
    command = [sys.executable, str(Path(__file__).parents[1] / "bin" / "keras-attention")]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [*command, "predict", str(run_folder), "早上 好"],
        capture_output=True, text=True, env=environment, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""

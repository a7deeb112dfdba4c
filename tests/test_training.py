"""The training loop: its loss, its schedule, and that nothing is lost when it is stopped."""

import csv
import math
import os
import resource
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export.places import replacing
from keras_attention.recipes.batches import batches, few_boundaries
from keras_attention.recipes.checkpoints import Checkpoints
from keras_attention.recipes.errors import Interrupted, RunError
from keras_attention.recipes.files import alone_in
from keras_attention.recipes.objective import accuracy
from keras_attention.recipes.precision import computing_in
from keras_attention.recipes.schedules import SCHEDULES
from keras_attention.recipes.training import Trainer

VOCABULARY = 11


def tagger(dropout=0.0, seed=3):
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(VOCABULARY, 6)(tokens)
    x = keras.layers.Dropout(dropout, seed=seed)(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY)(x))


def rows(count, seed, length=5):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, VOCABULARY, (count, length)).astype("int32")
    labels = (ids * 3 + 1) % VOCABULARY
    labels[0, 2:] = 0  # padding
    return {"tokens": ids}, labels


def epoch_data(epoch):
    order = np.random.default_rng(epoch).permutation(6)
    return [rows(4, seed) for seed in order]


def reference_loss(logits, labels, smoothing):
    """Cross-entropy of float64 by the definition, over real tokens, one by one."""
    total, count = 0.0, 0
    for logits_row, labels_row in zip(logits, labels, strict=True):
        for vector, label in zip(logits_row, labels_row, strict=True):
            if label == 0:
                continue
            vector = vector.astype("float64")
            log_p = vector - math.log(np.sum(np.exp(vector - vector.max()))) - vector.max()
            total += -(1 - smoothing) * log_p[label] - smoothing * np.mean(log_p)
            count += 1
    return total / count


def follow_once(model, batch, **options):
    """One step against the gradient, as long as it is."""
    options |= {"optimizer": keras.optimizers.SGD(), "learning_rate": 1.0, "warmup_steps": 0}
    Trainer(model, **options, schedule="constant").fit(lambda epoch: [batch], epochs=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_step_follows_the_gradient_of_the_smoothed_loss_over_real_tokens(smoothing):
    model = tagger()
    inputs, labels = rows(4, 0)
    start = [w.copy() for w in model.get_weights()]
    follow_once(model, (inputs, labels), label_smoothing=smoothing, clip=None)
    moved = [a - b for a, b in zip(start, model.get_weights(), strict=True)]  # the gradient

    def loss(weights):
        model.set_weights(weights)
        return reference_loss(np.asarray(model(inputs["tokens"])), labels, smoothing)

    rng = np.random.default_rng(1)
    direction = [rng.normal(size=w.shape).astype("float32") for w in start]
    h = 1e-2
    above = loss([w + h * d for w, d in zip(start, direction, strict=True)])
    below = loss([w - h * d for w, d in zip(start, direction, strict=True)])
    wanted = sum(np.sum(g * d) for g, d in zip(moved, direction, strict=True))
    # Central difference in float32: about h^2 of curvature and 1e-6 / h of rounding.
    assert wanted == pytest.approx((above - below) / (2 * h), rel=5e-3, abs=1e-3)


def test_evaluation_counts_real_tokens_only():
    model = tagger()
    inputs, labels = rows(4, 0)
    found = Trainer(model).evaluate([(inputs, labels), rows(2, 5)])
    batches = [(inputs, labels), rows(2, 5)]
    logits = [np.asarray(model(x["tokens"])) for x, _ in batches]
    counts = [np.sum(y != 0) for _, y in batches]
    losses = [reference_loss(z, y, 0.0) for z, (_, y) in zip(logits, batches, strict=True)]
    right = sum(
        np.sum((z.argmax(-1) == y) & (y != 0)) for z, (_, y) in zip(logits, batches, strict=True)
    )
    assert found["loss"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["token_accuracy"] == pytest.approx(right / sum(counts))


def test_gradients_are_clipped_by_their_global_norm():
    model = tagger()
    start = [w.copy() for w in model.get_weights()]
    follow_once(model, rows(4, 0), clip=1e-3)
    moved = [a - b for a, b in zip(start, model.get_weights(), strict=True)]
    norm = math.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in moved))
    assert norm == pytest.approx(1e-3, rel=1e-2)  # weights of about 0.05 keep 4 digits of 1e-3


def test_the_learning_rate_is_the_given_optimizers():
    assert Trainer(tagger(), optimizer=keras.optimizers.SGD(0.25)).learning_rate == 0.25
    assert Trainer(tagger()).learning_rate == pytest.approx(1e-3)


def test_the_learning_rate_rises_and_falls_to_nothing():
    rates = []
    Trainer(tagger(), learning_rate=0.1, warmup_steps=1000).fit(
        epoch_data,
        epochs=4,
        steps=6,
        on_step=lambda step, figures: rates.append(figures["learning_rate"]),
    )
    assert len(rates) == 24
    assert rates[:6] == sorted(rates[:6])  # a quarter of all steps, fewer than the 1000
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert max(rates) == pytest.approx(0.1, rel=0.15)
    assert rates[-1] < 0.001


class StopAfter:
    """Batches that send this process a signal before batch `index` of epoch `epoch`."""

    def __init__(self, epoch, index, number):
        self.place = (epoch, index)
        self.number = number

    def __call__(self, epoch):
        for index, batch in enumerate(epoch_data(epoch)):
            if (epoch, index) == self.place:
                os.kill(os.getpid(), self.number)
            yield batch


def assert_bit_identical(model, other):
    for one, another in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one.value), np.asarray(another.value))


@pytest.mark.parametrize("place", [(0, 3), (1, 0), (1, 5)])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, place):
    whole = tagger(dropout=0.4)
    history = Trainer(whole).fit(epoch_data, epochs=3, steps=6)

    stopped = Trainer(tagger(dropout=0.4))
    with pytest.raises(Interrupted, match="SIGTERM; its state is saved"):
        stopped.fit(StopAfter(*place, signal.SIGTERM), epochs=3, steps=6, folder=tmp_path)
    resumed = tagger(dropout=0.4)
    again = Trainer(resumed).fit(epoch_data, epochs=3, steps=6, folder=tmp_path, resume=True)

    assert_bit_identical(resumed, whole)
    losses = [[figures["train_loss"] for figures in run] for run in (history, again)]
    assert losses[0] == losses[1]


def test_a_stop_without_a_folder_says_that_nothing_was_saved():
    with pytest.raises(Interrupted, match="SIGINT; nothing was saved"):
        Trainer(tagger()).fit(StopAfter(0, 1, signal.SIGINT), epochs=1, steps=6)


def test_the_handlers_of_signals_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    Trainer(tagger()).fit(epoch_data, epochs=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_best_model_is_kept_and_not_the_last(tmp_path):
    model = tagger()
    scores = iter([1.0, 3.0, 2.0])
    kept = []
    Trainer(model).fit(
        epoch_data,
        epochs=3,
        folder=tmp_path,
        validate=lambda: {"score": next(scores)},
        best_by=lambda figures: figures["score"],
        on_epoch=lambda figures: kept.append([w.copy() for w in model.get_weights()]),
    )
    best = keras.models.load_model(tmp_path / "model.keras").get_weights()
    for one, other in zip(best, kept[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_epochs_that_are_no_better_end_a_run(tmp_path):
    scores = iter([1.0, 3.0, 2.0, 3.0, 9.0, 8.0, 8.0, 8.0])
    options = {
        "epochs": 9,
        "folder": tmp_path,
        "patience": 2,
        "best_by": lambda figures: figures["score"],
        "validate": lambda: {"score": next(scores)},
    }
    history = Trainer(tagger()).fit(epoch_data, **options)
    assert [figures["best"] for figures in history] == [True, True, False, False]
    assert Trainer(tagger()).fit(epoch_data, resume=True, **options) == history  # and stays ended
    assert (
        len(Trainer(tagger()).fit(epoch_data, resume=True, **{**options, "patience": 3})) == 5 + 3
    )


def test_a_table_holds_a_line_for_each_epoch(tmp_path):
    for epochs, resume in ((2, False), (3, True)):
        history = Trainer(tagger()).fit(epoch_data, epochs=epochs, folder=tmp_path, resume=resume)
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == [figures["loss"] for figures in history]


def test_minutes_end_a_run_early():
    history = Trainer(tagger()).fit(epoch_data, epochs=10_000, minutes=1e-4)
    assert len(history) == 1


def test_a_loss_that_is_not_finite_stops_with_advice():
    model = tagger()
    model.set_weights([np.full_like(w, np.nan) for w in model.get_weights()])
    with pytest.raises(RunError, match="not finite in epoch 1, step 1: try a smaller"):
        Trainer(model).fit(epoch_data, epochs=1)


def in_buckets(epoch):
    """Batches of sentences of 1 to 16 tokens, of few shapes."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 17, 60)
    tokens = tf.RaggedTensor.from_row_lengths(rng.integers(4, VOCABULARY, lengths.sum()), lengths)
    tokens = tf.cast(tokens, "int32")
    form = {"boundaries": few_boundaries(16), "fixed_shapes": True}
    for inputs, labels in batches(tokens, tokens, 4, epoch, **form):
        yield {"tokens": inputs["source"]}, labels


def test_a_compiled_step_is_compiled_once_for_each_bucket():
    trainers = [Trainer(tagger(), jit=jit) for jit in (True, False)]
    histories = [trainer.fit(in_buckets, epochs=3) for trainer in trainers]
    shapes = {labels.shape for _, labels in in_buckets(0)}
    assert 3 <= len(shapes) <= 5
    assert trainers[0].traces == len(shapes)
    assert trainers[1].traces == 1
    losses = [[figures["loss"] for figures in history] for history in histories]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert histories[0][-1]["loss"] < histories[0][0]["loss"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_learns_what_float32_does(policy):
    """The loss of evaluation, which no rounding of the last step decides, within 1 %."""
    found = {}
    for name in ("float32", policy):
        with computing_in(name):
            trainer = Trainer(tagger(), learning_rate=0.05, warmup_steps=2)
        trainer.fit(epoch_data, epochs=8)
        found[name] = trainer.evaluate(epoch_data(0))
        assert all(v.dtype == "float32" for v in trainer.model.trainable_variables)
    scaled = isinstance(trainer.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    assert found[policy]["loss"] == pytest.approx(found["float32"]["loss"], rel=0.01)
    assert found["float32"]["token_accuracy"] > 0.9


def test_gradients_that_overflow_in_half_precision_are_left_out():
    """The scale falls until they fit, and the weights stay finite."""
    with computing_in("mixed_float16"):
        model = tagger()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=2.0**30)
    start = [w.copy() for w in model.get_weights()]
    trainer = Trainer(model, optimizer=optimizer)
    trainer.fit(lambda epoch: [rows(4, 0)], epochs=1)
    for array, before in zip(model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(array, before)
    assert float(optimizer.dynamic_scale) == 2.0**29
    trainer.fit(lambda epoch: [rows(4, 0)] * 30, epochs=1)
    assert float(optimizer.dynamic_scale) < 2.0**20
    assert any((a != b).any() for a, b in zip(model.get_weights(), start, strict=True))
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_schedules_rise_to_the_highest_rate(schedule):
    rates = [SCHEDULES[schedule](step, 10, step / 100) for step in range(101)]
    assert rates[:9] == sorted(rates[:9])
    assert max(rates) == pytest.approx(1.0, abs=0.15)
    ends = {"cosine": 0, "linear": 0, "inverse_sqrt": math.sqrt(10 / 101), "constant": 1}
    assert rates[-1] == pytest.approx(ends[schedule])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": "sideways"}, "`schedule` must be in .*cosine.* Received: 'sideways'"),
        ({"accumulate": 0}, "Received: accumulate=0"),
        ({"optimizer": keras.optimizers.Adam(clipnorm=1.0)}, "leave it to `clip`.*clipnorm=1"),
        (
            {"optimizer": keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9))},
            "leave how it changes to `schedule`.*CosineDecay",
        ),
        ({"loss": accuracy, "label_smoothing": 0.1}, "Received: label_smoothing=0.1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Trainer(tagger(), **options)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (({"words": np.ones((2, 3), "int32")}, np.ones((2, 3), "int32")), r"\['tokens'\].*words"),
        ((np.ones((2, 3), "int32"),), "a batch is"),
    ],
)
def test_a_batch_of_another_form_is_refused(batch, says):
    with pytest.raises(ValueError, match=says):
        Trainer(tagger()).fit(lambda epoch: [batch], epochs=1)


def tagged(**changed):
    inputs, labels = rows(4, 0)
    return (changed.get("inputs", inputs), changed.get("labels", labels), *changed.get("more", ()))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (tagged(labels=np.full((4, 5), VOCABULARY)), "labels from 11 to 11"),
        (tagged(labels=np.full((4, 5), -1)), "labels from -1 to -1"),
        (tagged(labels=np.ones((4, 5), "float32")), "Received: float32"),
        (tagged(labels=np.ones((4, 5, 2), int)), r"labels of the shape \(4, 5, 2\)"),
        (tagged(labels=np.ones((3, 5), int)), "'tokens': 4, 'labels': 3"),
        (tagged(more=[np.ones(3)]), "'labels': 4, 'weights': 3"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(batch, says):
    with pytest.raises(ValueError, match=says):
        Trainer(tagger()).fit(lambda epoch: [batch], epochs=1)


def test_labels_of_rows_have_no_padding_and_those_of_sequences_have():
    tokens = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(5, 4)(tokens)
    of_rows = keras.Model(tokens, keras.layers.Dense(2)(keras.layers.Flatten()(x)))
    of_tokens = keras.Model(tokens, keras.layers.Dense(2)(x))
    ids = np.ones((4, 3), "int32")
    for model, labels, wanted in (
        (of_rows, np.zeros(4, int), math.log(2)),
        (of_tokens, np.zeros((4, 3), int), 0.0),
    ):
        loss = Trainer(model).evaluate([(ids, labels)])["loss"]
        assert loss == pytest.approx(wanted, abs=0.3) and (loss == 0) == (wanted == 0)


def test_a_sequential_model_is_trained():
    model = keras.Sequential(
        [keras.Input((None,)), keras.layers.Embedding(VOCABULARY, 6), keras.layers.Dense(11)]
    )
    data = [(x["tokens"], y) for x, y in epoch_data(0)]
    first, *_, last = Trainer(model, learning_rate=0.1).fit(lambda epoch: data, epochs=4)
    assert last["loss"] < first["loss"]


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Subclassed(), "must be functional.*Subclassed"),
        (keras.Sequential([keras.layers.Dense(3)]), "must be functional, or Sequential and built"),
        (keras.Model(x := keras.Input((2,)), [x, x]), "must have one output. Received: 2"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model, says):
    with pytest.raises(ValueError, match=says):
        Trainer(model)


def test_data_that_is_no_function_of_the_epoch_is_refused():
    with pytest.raises(ValueError, match=r"as `lambda epoch: dataset`. Received: list"):
        Trainer(tagger()).fit(epoch_data(0), epochs=1)


def test_a_generator_that_is_used_up_is_not_trained_on():
    batch = iter([rows(4, 0)])
    with pytest.raises(RunError, match="epoch 1 holds no label, or padding alone"):
        Trainer(tagger()).fit(lambda epoch: batch, epochs=1)  # the first pass counts


def test_a_folder_with_checkpoints_is_not_begun_anew(tmp_path):
    Trainer(tagger()).fit(epoch_data, epochs=1, folder=str(tmp_path))
    before = Checkpoints(tmp_path / "checkpoints").paths()
    with pytest.raises(RunError, match="resume it, or choose another folder"):
        Trainer(tagger()).fit(epoch_data, epochs=1, folder=tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").paths() == before


def test_a_training_that_is_complete_says_so(tmp_path):
    said = []
    for resume in (False, True):
        options = {"folder": tmp_path, "resume": resume, "report": said.append}
        Trainer(tagger()).fit(epoch_data, epochs=1, **options)
    assert said == ["nothing is left to train: all 1 epochs are done"]


def test_a_loss_must_have_a_value_for_each_label():
    trainer = Trainer(tagger(), loss=lambda labels, logits: keras.ops.mean(logits))
    with pytest.raises(ValueError, match="must give a value for each label"):
        trainer.fit(epoch_data, epochs=1)


def test_one_input_needs_no_name():
    losses = []
    for unnamed in (False, True):
        data = [(x["tokens"] if unnamed else x, y) for x, y in epoch_data(0)]
        losses.append(Trainer(tagger()).fit(lambda epoch, data=data: data, epochs=1)[0]["loss"])
    assert losses[0] == losses[1]


def test_data_without_a_batch_is_refused():
    with pytest.raises(RunError, match="nothing to train on"):
        Trainer(tagger()).fit(lambda epoch: [], epochs=1)


def test_resuming_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        Trainer(tagger()).fit(epoch_data, epochs=1, folder=tmp_path, resume=True)


def damaged(path, how):
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "text":
        path.write_text("not a checkpoint")
    elif how == "empty":
        path.write_bytes(b"")
    else:  # one byte of the array data flipped: the archive's checksum sees it
        middle = content.index(b"NUMPY") + 200
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("how", ["cut", "text", "empty", "flipped"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, how):
    whole = tagger(dropout=0.4)
    Trainer(whole).fit(epoch_data, epochs=3, steps=6)
    Trainer(tagger(dropout=0.4)).fit(
        StopAfter(9, 9, signal.SIGTERM), epochs=3, steps=6, folder=tmp_path, checkpoint_steps=2
    )
    newest, before = Checkpoints(tmp_path / "checkpoints").paths()
    assert [newest.name, before.name] == ["step-00000018.npz", "step-00000016.npz"]
    damaged(newest, how)
    news = []
    again = tagger(dropout=0.4)
    Trainer(again).fit(
        epoch_data, epochs=3, steps=6, folder=tmp_path, resume=True, report=news.append
    )
    [line] = news
    assert f"{newest} is broken" in line and "going on from step-00000016.npz" in line
    assert_bit_identical(again, whole)


def test_no_whole_checkpoint_is_named(tmp_path):
    Trainer(tagger()).fit(epoch_data, epochs=2, folder=tmp_path)
    paths = Checkpoints(tmp_path / "checkpoints").paths()
    assert len(paths) == 2
    for path in paths:
        damaged(path, "cut")
    with pytest.raises(RunError, match=r"step-\d+.npz is broken, as all.*is not touched") as error:
        Trainer(tagger()).fit(
            epoch_data, epochs=3, folder=tmp_path, resume=True, report=lambda line: None
        )
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_other_options_is_refused(tmp_path):
    Trainer(tagger()).fit(epoch_data, epochs=1, folder=tmp_path, made_by={"batch_size": 4})
    with pytest.raises(RunError, match="other options or another batch size"):
        Trainer(tagger()).fit(
            epoch_data, epochs=2, folder=tmp_path, resume=True, made_by={"batch_size": 8}
        )


def test_auto_begins_where_there_is_nothing_to_go_on_with(tmp_path):
    histories = [
        Trainer(tagger()).fit(epoch_data, epochs=epochs, folder=tmp_path, resume="auto")
        for epochs in (1, 2)
    ]
    assert [len(history) for history in histories] == [1, 2]
    assert histories[1][0] == histories[0][0]


def test_a_full_disk_loses_no_older_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    old = checkpoints.save(1, {"x": np.ones(3)}, {"epoch": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save(2, {"x": np.ones(99_999)}, {"epoch": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "checkpoints").iterdir()) == [old]
    assert checkpoints.load().state == {"epoch": 0}


def test_what_a_killed_process_began_to_write_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".123.step-00000003.npz").write_text("half")
    path = checkpoints.save(4, {"x": np.ones(3)}, {})
    assert list(tmp_path.iterdir()) == [path]


def test_one_checkpoint_alone_is_not_enough():
    with pytest.raises(ValueError, match="Received: keep=1"):
        Checkpoints("anywhere", keep=1)


def test_a_folder_is_trained_in_by_one_process(tmp_path):
    hold = (
        "import sys; from keras_attention.recipes.files import alone_in\n"
        "with alone_in(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="another process trains in"), alone_in(tmp_path):
            pass
        other.kill()
    with alone_in(tmp_path):  # the system has let go of it
        pass


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    Trainer(tagger()).fit(epoch_data, epochs=1, folder=tmp_path)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(VOCABULARY, 7)(tokens)
    other = keras.Model(tokens, keras.layers.Dense(VOCABULARY)(keras.layers.Dropout(0.1)(x)))
    with pytest.raises(RunError, match=r"of another model|of other sizes"):
        Trainer(other).fit(epoch_data, epochs=2, folder=tmp_path, resume=True)


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), replacing(path) as beside:
        beside.write_text("half of the n")
        raise OSError("disk full")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["figures.json"]


def test_a_model_that_was_changed_is_traced_anew():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(VOCABULARY, 6)(tokens)
    bent = keras.layers.Activation("linear")
    model = keras.Model(tokens, keras.layers.Dense(VOCABULARY)(bent(x)))
    batch = [rows(4, 0)]
    trainer = Trainer(model)
    before = trainer.evaluate(batch)["loss"]
    bent.activation = keras.activations.sigmoid
    assert trainer.evaluate(batch)["loss"] == before
    trainer.retrace()
    after = trainer.evaluate(batch)["loss"]
    assert after != before
    assert after == pytest.approx(Trainer(model).evaluate(batch)["loss"], rel=1e-6)


def test_folders_that_a_failed_write_made_are_gone(tmp_path):
    (tmp_path / "kept").mkdir()
    path = tmp_path / "kept" / "new" / "newer" / "figures.json"
    with pytest.raises(OSError, match="disk full"), replacing(path):
        raise OSError("disk full")
    assert [p.name for p in tmp_path.rglob("*")] == ["kept"]
    with replacing(path) as beside:
        beside.write_text("whole")
    assert path.read_text() == "whole"


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "artifact"
    path.mkdir()
    (path / "old").write_text("")
    with replacing(path) as beside:
        beside.mkdir()
        (beside / "new").write_text("")
    assert [p.name for p in path.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["artifact"]

"""The mean over the last epochs: of what is kept, while the training goes on with its own."""

import keras
import numpy as np
import pytest

from keras_attention.recipes.errors import RunError
from keras_attention.recipes.training import Trainer

EPOCHS, COUNT = 4, 3


def model_of():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Dropout(0.3, seed=1)(keras.layers.Embedding(9, 4)(tokens))
    return keras.Model(tokens, keras.layers.Dense(9)(x))


def epoch_data(epoch):
    ids = np.random.default_rng(epoch).integers(1, 9, (6, 5)).astype("int32")
    return [({"tokens": ids}, ids)] * 3


def fitted(folder=None, epochs=EPOCHS, average=COUNT, resume=False):
    """The trainer, and the weights that each epoch was validated with."""
    seen = []
    trainer = Trainer(model_of(), learning_rate=0.1, warmup_steps=1, schedule="constant")

    def validate():
        seen.append([w.copy() for w in trainer.model.get_weights()])
        return {"score": len(seen)}

    trainer.fit(
        epoch_data,
        epochs=epochs,
        average=average,
        folder=folder,
        resume=resume,
        validate=validate,
        best_by=lambda figures: figures["epoch"],
    )
    return trainer, seen


def assert_all_equal(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_what_is_validated_and_kept_is_the_mean_of_the_last_epochs(tmp_path):
    plain, own = fitted(average=1)
    trainer, seen = fitted(tmp_path)
    for epoch in range(EPOCHS):
        past = own[max(epoch - COUNT + 1, 0) : epoch + 1]
        assert_all_equal(seen[epoch], [np.mean(w, axis=0) for w in zip(*past, strict=True)])
    kept = keras.models.load_model(tmp_path / "model.keras")
    assert_all_equal(kept.get_weights(), seen[-1])
    # Training goes on from its own weights, not from a mean.
    assert_all_equal(trainer.model.get_weights(), plain.model.get_weights())
    assert np.abs(seen[-1][0] - own[-1][0]).max() > 1e-3


def test_a_resumed_training_takes_the_same_mean(tmp_path):
    _, whole = fitted(tmp_path / "whole")
    fitted(tmp_path / "parts", epochs=2)
    _, resumed = fitted(tmp_path / "parts", resume=True)
    for one, other in zip(resumed, whole[2:], strict=True):
        for array, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, wanted)
    files = sorted(path.name for path in (tmp_path / "parts/checkpoints").glob("epoch-*"))
    assert files == ["epoch-00001.npz", "epoch-00002.npz", "epoch-00003.npz"]


def test_without_one_no_file_is_written(tmp_path):
    fitted(tmp_path, average=1)
    assert not list((tmp_path / "checkpoints").glob("epoch-*"))


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_file_that_is_gone_or_broken_is_named(tmp_path, damage):
    fitted(tmp_path, epochs=3)
    damage(tmp_path / "checkpoints" / "epoch-00001.npz")
    with pytest.raises(RunError, match=r"epoch-00001.npz is missing or broken [^\n]*folder$"):
        fitted(tmp_path, resume=True)


@pytest.mark.parametrize("average", [0, -1, 1.5, True])
def test_a_number_that_cannot_be_is_refused(average):
    with pytest.raises(ValueError, match="Received: average="):
        fitted(average=average)

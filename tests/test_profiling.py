"""The profile of some steps."""

import keras
import pytest

from keras_attention.recipes.profiling import Profile


@pytest.mark.parametrize("steps", [2, 3, 9])
def test_a_profile_is_of_the_steps_that_were_asked_for(tmp_path, monkeypatch, steps):
    """And a training that ends too early, or goes on for long, is no harder to profile."""
    profile = Profile(tmp_path, skip=1, steps=2)
    for step in range(1, steps + 1):
        keras.ops.ones(3) + step
        profile.on_step(step, {})
    profile.close()
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1
    profile.close()  # again: nothing


def test_a_training_that_ends_before_its_profile_begins_says_so(tmp_path):
    said = []
    profile = Profile(tmp_path, skip=3, report=said.append)
    profile.on_step(1, {})
    profile.close()
    assert said == ["no profile: it begins after 3 steps, 1 were done"]
    assert list(tmp_path.iterdir()) == []

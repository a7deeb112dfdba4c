"""Layers and other objects that are arguments of a layer, and come back from its config."""

import keras


def revived(given):
    """The object of a config, not built, so that the layer around it builds it at its place.

    With its build config it would arrive built, and that layer could not. What is no config
    stays as it is.
    """
    if not isinstance(given, dict):
        return given
    return keras.saving.deserialize_keras_object(_unbuilt(given))


def _unbuilt(config):
    """A config without what would build the object, or one inside it."""
    if isinstance(config, dict):
        return {key: _unbuilt(x) for key, x in config.items() if key != "build_config"}
    return [_unbuilt(x) for x in config] if isinstance(config, list) else config

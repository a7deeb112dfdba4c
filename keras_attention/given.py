"""Layers and other objects that are arguments of a layer, and come back from its config."""

import inspect

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


def given_layer(layer, kind, name):
    """A layer that is an argument: as it is or made from its config; None stays None.

    Raises:
        ValueError: when it is of another kind.
    """
    layer = revived(layer)
    if not (layer is None or isinstance(layer, kind)):
        raise ValueError(f"{name} must be a {kind.__name__} or None. Received: {name}={layer!r}")
    return layer


def build_given(layer, *shapes):
    """Build a layer that was an argument, at its place below the layer around it."""
    if layer.built and isinstance(layer, keras.Model):
        return  # a model that has its inputs is built, and comes so out of a config
    if layer.built:
        # Two layers around one would be saved as two and load as two.
        raise ValueError(
            "a layer that is given to another belongs to that one: give each its own. "
            f"Received: {layer.name!r}, which is already built"
        )
    layer.build(*shapes)


def takes(layer, argument):
    """Whether the call of a layer has that argument."""
    return argument in inspect.signature(layer.call).parameters

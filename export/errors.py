"""What can go wrong with an artifact. Kept apart so that reading one needs no TensorFlow."""


class ArtifactError(ValueError):
    """A file is not the artifact it is taken for; one line with its name and the reason."""


class ExportError(RuntimeError):
    """An artifact could not be written; says what to change."""


class ParityError(ExportError):
    """An artifact does not compute what its model computes, within the tolerance."""


def telling_line(error: Exception) -> str:
    """The line of an error that says what is wrong; a graph's stands before the node's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = next((i for i, line in enumerate(lines) if line.startswith("[[")), 1)
    return lines[max(after - 1, 0)][:300] if lines else type(error).__name__


# What helps where an operator, by a part of its name, is in no format but TensorFlow's own.
OF_ANY_TARGET = {
    "BitwiseAnd": "keras.ops.argmax of floats: use keras.ops.squeeze(keras.ops.top_k(x, 1)[1], -1)",
    "StatelessRandom": "pass random numbers in as an input",
    "String": "strings are prepared outside: give ids to the model",
}

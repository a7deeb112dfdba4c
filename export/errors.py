"""What can go wrong with an artifact. Kept apart so that reading one needs no TensorFlow."""


class ArtifactError(ValueError):
    """A file is not the artifact it is taken for; one line with its name and the reason."""


class ExportError(RuntimeError):
    """An artifact could not be written; says what to change."""


class ParityError(ExportError):
    """An artifact does not compute what its model computes, within the tolerance."""

"""Checksums inside artifacts: a file that is not what was exported is found before it is used.

A sealed content holds `keras_attention-sha256:` and the SHA-256 of itself, for which the digest's
own 64 digits count as zeros. So it can be checked as bytes, before anything is read of it. It
finds damage; it is no signature that would tell who wrote a file.
"""

import hashlib
import re

MARK = "keras_attention-sha256:"
UNSEALED = MARK + 64 * "0"
_SEAL = re.compile(MARK.encode() + b"([0-9a-f]{64})")


def sealed(content: bytes) -> bytes:
    """The content, of which the first `UNSEALED` got its digest."""
    start = content.index(UNSEALED.encode()) + len(MARK)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(digest) :]


def is_sealed(content: bytes) -> bool:
    """Whether a digest in the content is that of the content."""
    return any(_digest(content, *seal.span(1)) == seal[1] for seal in _SEAL.finditer(content))


def _digest(content, start, stop):
    view = memoryview(content)
    digest = hashlib.sha256(view[:start])
    digest.update((stop - start) * b"0")
    digest.update(view[stop:])
    return digest.hexdigest().encode()

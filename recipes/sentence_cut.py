"""Where a sentence of a text ends: behind `.!?`, and what closes it, if a space follows.

The same cut in the graph and without TensorFlow, for files of exported models.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

# In RE2 and in Python: the end of a sentence, and the space that is not part of one.
SENTENCE_END = r"([.!?]+[\"')\]]*)[ \t\n\f\r]+"
_CUT = "\x01"


def sentences_of(texts) -> "tf.RaggedTensor":
    """The sentences (B, S) of texts (B,); of an empty text one that is empty."""
    import tensorflow as tf

    texts = tf.convert_to_tensor(texts, tf.string)
    texts = tf.strings.regex_replace(texts, _CUT, " ")
    marked = tf.strings.regex_replace(tf.strings.strip(texts), SENTENCE_END, rf"\1{_CUT}")
    return tf.strings.split(marked, _CUT)


def say_what_is_left_out(texts: Iterable[str], lines: int, report: Callable[[str], None]) -> None:
    """Tell of stories, with a question behind each, that have more sentences than are kept."""
    for text in texts:
        told = len(cut(text)) - 1
        if told > lines:
            report(f"of {told} sentences the last {lines} are read: {text[:40]!r}...")


def cut(text: str) -> list[str]:
    """The sentences of a text, as `sentences_of` cuts them."""
    # As `tf.strings.strip`, which knows no other spaces.
    text = text.replace(_CUT, " ").strip(" \t\n\v\f\r")
    return re.sub(SENTENCE_END, rf"\1{_CUT}", text).split(_CUT)

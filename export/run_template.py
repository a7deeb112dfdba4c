"""Translate with a .tflite file, without TensorFlow.

    pip install numpy tokenizers ai-edge-litert
    python run.py "ein Satz" "noch einer"        or lines on standard input
    python run.py --beam --alignment "ein Satz"

All that the program needs lies in the .tflite: the model, and behind it a ZIP archive with both
vocabularies and translation.json. The steps are: text -> pieces -> ids -> model -> ids -> text.
A model of fixed sizes takes ids of one length, filled up; a folder holds a file for each of several
lengths, and the shortest that fits is used.
"""

import argparse
import importlib
import json
import sys
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
from tokenizers.models import WordPiece

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:
    try:
        from tflite_runtime.interpreter import Interpreter
    except ImportError:
        # An attribute that TensorFlow makes on demand, not a module to import from.
        Interpreter = importlib.import_module("tensorflow").lite.Interpreter

LONGEST_WORD = 100  # A word of more characters is unknown.
OTHER_SPACES = dict.fromkeys(map(ord, "\t\n\v\f\r"), " ")


class Text:
    """One language: its pieces (a line's number is its id), text to ids and back."""

    def __init__(self, vocabulary, split, normalize):
        self.pieces = vocabulary.decode().removesuffix("\n").split("\n")
        self.split, self.normalize = split, normalize
        # WordPiece marks what continues a word by a space instead of "##", and the first three
        # pieces by two: no word holds a space, so "##" or "[END]" in a text is only text.
        entries = [f" {p[2:]}" if self.continues(p) else p for p in self.pieces]
        entries[:3] = [f"  {p}" for p in entries[:3]]
        self.wordpiece = WordPiece(
            {entry: i for i, entry in enumerate(entries)},
            unk_token="[UNK]",
            continuing_subword_prefix=" ",
            max_input_chars_per_word=LONGEST_WORD,
        )

    def continues(self, piece):
        return piece.startswith("##") and len(piece) > 2

    def encode(self, text):
        if self.normalize != "none":
            text = unicodedata.normalize("NFKC", text)
        if self.normalize == "nfkc_lower":
            text = text.lower()
        words = text.translate(OTHER_SPACES).split(" ")
        if self.split == "characters":
            words = "".join(words)
        return [token.id for word in words if word for token in self.wordpiece.tokenize(word)]

    def words(self, ids):
        """The words that the ids spell: [(word, positions of its pieces)]."""
        words = []
        for position, piece in enumerate(self.pieces[i] for i in ids):
            if words and self.continues(piece):
                word, positions = words.pop()
                words.append((word + piece[2:], [*positions, position]))
            else:
                words.append((piece, [position]))
        return words

    def decode(self, ids):
        return ("" if self.split == "characters" else " ").join(w for w, _ in self.words(ids))


class Translator:
    def __init__(self, path):
        paths = sorted(path.glob("*.tflite")) if path.is_dir() else [path]
        if not paths:
            raise ValueError("it holds no .tflite file")
        with zipfile.ZipFile(paths[0]) as files:
            self.config = json.loads(files.read("translation.json"))
            self.source, self.target = (
                Text(files.read(f"{side}_vocabulary.txt"), **self.config[side])
                for side in ("source", "target")
            )
        self.by_length = {}
        for file in paths:
            interpreter = Interpreter(model_path=str(file))
            details = interpreter.get_signature_runner("encode").get_input_details()["source"]
            length = int(details["shape_signature"][1])
            self.by_length[self.config["max_source_length"] if length < 0 else length] = interpreter
        self.is_dynamic = length < 0
        self.limit = max(self.by_length)
        self.signatures = interpreter.get_signature_list()
        self.end = self.config["end_id"]

    def runner(self, ids):
        """The model for ids, and the ids as it takes them."""
        length = min(length for length in self.by_length if length >= len(ids))
        if not self.is_dynamic:
            ids = [*ids, *[self.config["pad_id"]] * (length - len(ids))]
        return self.by_length[length].get_signature_runner, np.array([ids], np.int32)

    def ids(self, text):
        ids = [*self.source.encode(text), self.end]
        if len(ids) > self.limit:
            sys.exit(
                f"error: the text has {len(ids)} pieces, the model reads {self.limit}: {text[:40]}"
            )
        return ids

    def translate(self, ids, beam=False):
        """Target ids and their alignment (target, source): where each looked."""
        runner, source = self.runner(ids)
        found = runner("beam" if beam else "greedy")(source=source)
        best = (0, 0) if beam else 0  # first of the batch; with beams the first is the best
        tokens = found["tokens"][best].tolist()
        length = tokens.index(self.end) if self.end in tokens else len(tokens)
        return tokens[:length], found["alignment"][best][:length, : len(ids)]

    def stream(self, ids):
        """Greedy translation one piece at a time: the loop that a program writes by itself."""
        runner, source = self.runner(ids)
        memory = runner("encode")(source=source)
        token = self.config["start_id"]
        for _ in range(self.config["max_target_length"]):
            found = runner("decode_step")(token=np.array([token], np.int32), **memory)
            token = int(found["logits"][0].argmax())
            if token == self.end:
                return
            yield token
            states = {k.removeprefix("next_"): v for k, v in found.items() if "next_" in k}
            memory.update(states)

    def aligned(self, ids, tokens, alignment):
        """For each target word the source word that it looked at most."""
        sources = self.source.words(ids)
        for word, rows in self.target.words(tokens):
            looked = alignment[rows].sum(axis=0)
            yield word, max(sources, key=lambda source: looked[source[1]].sum())[0]


def main():
    parser = argparse.ArgumentParser(description="Translate with a .tflite file.")
    parser.add_argument("text", nargs="*", help="texts; without any, lines of standard input")
    parser.add_argument("--model", type=Path, help="a .tflite or a folder of them")
    parser.add_argument("--beam", action="store_true", help="search with beams")
    parser.add_argument("--alignment", action="store_true", help="show what each word looked at")
    parser.add_argument("--step", action="store_true", help="decode piece by piece, as they come")
    options = parser.parse_args()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")
    here = Path(__file__).resolve().parent
    beside = [*here.glob("*.tflite"), *{file.parent for file in here.glob("*/*.tflite")}]
    if options.model is None and len(beside) != 1:
        sys.exit(f"error: {len(beside)} models beside run.py: choose with --model FILE")
    path = options.model or beside[0]
    try:
        translator = Translator(path)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        sys.exit(
            f"error: {path} is truncated or no translation model ({str(error).splitlines()[0]})"
        )
    if options.beam and "beam" not in translator.signatures:
        sys.exit(f"error: {path} has no search with beams, as no model in integers has")
    for text in options.text or (line.rstrip("\r\n") for line in sys.stdin):
        ids = translator.ids(text)
        if options.step:
            tokens = []
            for token in translator.stream(ids):
                tokens.append(token)
                print("\r" + translator.target.decode(tokens), end="", flush=True)
            print()
            continue
        tokens, alignment = translator.translate(ids, options.beam)
        print(translator.target.decode(tokens))
        if options.alignment:
            for word, source in translator.aligned(ids, tokens, alignment):
                print(f"  {word} <- {source}")


if __name__ == "__main__":
    main()

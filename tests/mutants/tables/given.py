"""Arguments that come back from a config."""

from .. import Mutant, contracts

FILE = "keras_attention/given.py"
SAVING = contracts("(attention_bilinear_key or hierarchical) and saving")

MUTANTS = [
    Mutant(FILE, 'if key != "build_config"}', "}", SAVING),
    Mutant(FILE, "[_unbuilt(x) for x in config]", "config", SAVING),
]

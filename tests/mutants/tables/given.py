"""Arguments that come back from a config."""

from .. import Mutant, contracts

FILE = "keras_attention/given.py"
SAVING = contracts("(attention_bilinear_key or hierarchical) and saving")
ENCODERS = "tests/test_ensemble.py -k of_several_layers"

MUTANTS = [
    Mutant(FILE, 'if key != "build_config"}', "}", SAVING),
    Mutant(FILE, "[_unbuilt(x) for x in config]", "config", ENCODERS),
    Mutant(FILE, "layer.built and isinstance(layer, keras.Model)", "False", ENCODERS),
]

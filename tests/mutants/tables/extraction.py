"""`attention_model`."""

from .. import Mutant

FILE = "keras_attention/extraction.py"
TESTS = "tests/test_extraction.py -k 'not every_layer and not file'"

MUTANTS = [
    Mutant(FILE, "copies = tree.map_structure(self._copy, inputs)", "copies = inputs", TESTS),
    Mutant(FILE, "if given.get(ASK) or _keeps_its_output(self.layer):", "if True:", TESTS),
    Mutant(FILE, "(x for x in numbered if x not in self._of_layers)", "numbered", TESTS),
    Mutant(FILE, "if id(layer) not in self._layers:", "if True:", TESTS),
    Mutant(FILE, "if id(model) not in self._models:", "if True:", TESTS),
    Mutant(FILE, "        telling.supports_masking = model.supports_masking\n", "", TESTS),
    Mutant(FILE, "self.supports_masking = layer.supports_masking", "pass", TESTS),
    Mutant(
        FILE,
        "return self.layer.compute_mask(inputs[0], previous_mask and previous_mask[0])",
        "return None",
        TESTS,
    ),
    Mutant(FILE, "{**kwargs, ASK: False}", "kwargs", TESTS),
    Mutant(FILE, "places = _places(asked, without)", "places = [1]", TESTS),
    Mutant(FILE, "x if i in places else next(outputs)", "x", TESTS),
    Mutant(FILE, "        if kwargs.get(ASK):", "        if False:", TESTS),
    Mutant(
        FILE, 'found.update({f"{name}/{inner}"', 'found.update({f"{operation.name}/{inner}"', TESTS
    ),
    Mutant(
        FILE,
        "weights[0] if len(weights) == 1 else tuple(weights)",
        "tuple(weights)",
        "tests/test_extraction.py -k 'every_layer and attention_dot or shared'",
    ),
]

"""`AttentionDecoder`."""

from .. import Mutant, contracts

FILE = "keras_attention/recurrent.py"
TESTS = "tests/test_recurrent.py -k {}"
REFERENCE = contracts("decoder and reference")
MASKS = contracts("decoder_bahdanau and (padd or masks or masked)")

MUTANTS = [
    Mutant(
        FILE,
        "readable = (inputs, context, self._top(states))",
        "readable = (context, inputs, self._top(states))",
        REFERENCE,
    ),
    Mutant(
        FILE,
        "states = self._move((inputs, context, *fed), states)",
        "states = self._move((inputs, context, *map(ops.zeros_like, fed)), states)",
        REFERENCE,
    ),
    Mutant(
        FILE,
        "            states = self._move((inputs, *fed), states)\n"
        "            context, weights = self._look(states, values, keys, memory_mask, training)\n",
        "            context, weights = self._look(states, values, keys, memory_mask, training)\n"
        "            states = self._move((inputs, *fed), states)\n",
        REFERENCE,
    ),
    Mutant(FILE, "return states[-_STATES[self.cell]]", "return states[-1]", REFERENCE),
    Mutant(FILE, "return states[-_STATES[self.cell]]", "return states[0]", REFERENCE),
    Mutant(FILE, "states[i * count : (i + 1) * count]", "states[:count]", REFERENCE),
    Mutant(
        FILE, "            output = output * noise\n", "            pass\n", TESTS.format("dropout")
    ),
    Mutant(
        FILE,
        "return output, (*states, output) if self.input_feeding else states, weights",
        "return output, (*states, *fed), weights",
        REFERENCE,
    ),
    Mutant(FILE, "if self.dropout and training:", "if self.dropout:", TESTS.format("dropout")),
    Mutant(
        FILE,
        '            memory = masking.select(memory, ops.cast(memory_mask, "bool"))\n',
        "            pass\n",
        MASKS,
    ),
    Mutant(
        FILE,
        '            inputs = masking.select(inputs, ops.cast(inputs_mask, "bool"))\n',
        "            pass\n",
        MASKS,
    ),
    Mutant(FILE, "mask = masking.over_keys(memory_mask)", "mask = None", MASKS),
    Mutant(
        FILE,
        "ops.where(real, new, old) for new, old",
        "new for new, old",
        TESTS.format("padding_at_the_end"),
    ),
    Mutant(
        FILE,
        "ops.where(real, output, 0.0), ops.where(real, weights, 0.0)",
        "ops.where(real, output, 0.0), weights",
        MASKS,
    ),
    Mutant(
        FILE,
        "ops.where(real, output, 0.0), ops.where(real, weights, 0.0)",
        "output, ops.where(real, weights, 0.0)",
        MASKS,
    ),
    Mutant(
        FILE,
        "states = [self._computed(bridge(encoder_state)) for bridge in self._bridges]",
        "states = [self._computed(self._bridges[0](encoder_state)) for _ in self._bridges]",
        REFERENCE,
    ),
    Mutant(
        FILE,
        "return ops.cast(x, self.compute_dtype)",
        "return x",
        contracts("decoder_luong"),
        reason="Only JAX's tanh gives another type.",
    ),
    Mutant(FILE, '            "seed": self.seed,\n', "", contracts("decoder_luong and config")),
    Mutant(
        FILE,
        '            "num_layers": self.num_layers,\n',
        "",
        contracts("decoder_options and config"),
    ),
    Mutant(FILE, "        check_batches(**shapes)\n", "", contracts("built_layer")),
    Mutant(
        FILE,
        "keras.KerasTensor((batch, length, memory.shape[1]), self.compute_dtype)",
        "keras.KerasTensor((batch, length, length), self.compute_dtype)",
        contracts("decoder_luong and symbolic"),
    ),
]

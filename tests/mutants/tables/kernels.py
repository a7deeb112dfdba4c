"""What is said of kernels."""

from .. import Mutant, contracts

FILE = "keras_attention/kernels.py"
OPTIONS = "tests/test_known_failures.py -k options_of"

MUTANTS = [
    Mutant(FILE, "return initializer.clone()", "return initializer", contracts("kernels_of_one")),
    Mutant(
        FILE,
        "return ops.cast(initializer(shape, dtype=wide_dtype(dtype)), dtype)",
        "return initializer(shape, dtype=dtype)",
        contracts("decoder_luong and bfloat16"),
    ),
    Mutant(
        FILE,
        '"kernel_regularizer": self.kernel_regularizer,',
        "",
        contracts("regularizers_and_constraints"),
    ),
    Mutant(
        FILE,
        '"kernel_constraint": self.kernel_constraint,',
        "",
        contracts("regularizers_and_constraints"),
    ),
    Mutant(FILE, '"kernel_initializer": fresh(self.kernel_initializer),', "", OPTIONS),
    Mutant(
        FILE,
        '{"use_bias": False, **self.kernel_arguments(), **kwargs}',
        '{**self.kernel_arguments(), **kwargs, "use_bias": False}',
        OPTIONS,
    ),
    Mutant(FILE, '{"use_bias": self.use_bias, **super().kernel_arguments()}', "{}", OPTIONS),
]

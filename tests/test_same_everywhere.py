"""A training comes out the same on one device, on several, in several processes, and on JAX.

With `--matrix` every model and case runs everywhere, and a table is printed; `WRITE_PARITY=1` in
the environment writes it into `results/parity.json`, too.
"""

import os
from typing import NamedTuple

import numpy as np
import pytest
from strategies import matrix, models, properties
from strategies.processes import CONFIGURATIONS, REFERENCE, Outcome, run

pytestmark = [
    pytest.mark.xdist_group("strategies"),
    pytest.mark.tensorflow("the reference is one device of TensorFlow; JAX is started from here"),
]
pytest.importorskip("jax")

TOLERANCE = 1e-5
MIRRORED, JAX_MIRRORED = "tensorflow x2", "jax x2"
WHOLE = [
    f"{model}/{case}"
    for model in ("translation", "transformer", "classifier")
    for case in ("masked", "clipped", "odd")
]
MORE = ["classifier/accumulated", "classifier/weighted", "classifier/single", "regularised/masked"]
# Of a small model alone, whose compiling takes little.
SMALL = [
    "classifier/masked",
    "classifier/clipped",
    "classifier/odd",
    "classifier/accumulated",
    "dropout",
    "batch_norm",
]
SAMPLE = {
    str(REFERENCE): SMALL,
    MIRRORED: SMALL,
    "tensorflow, 2 processes": ["classifier/clipped", "classifier/odd"],
    JAX_MIRRORED: ["classifier/odd", "classifier/masked", "classifier/accumulated", "dropout"],
}
PLAIN = [f"plain/{name}" for name in WHOLE]


@pytest.fixture(scope="module")
def is_whole(request):
    return request.config.getoption("--matrix")


@pytest.fixture(scope="module")
def workers_of(is_whole, tmp_path_factory):
    """A function: what each worker of a configuration trained, run once."""
    known = {}

    def trained(where: str) -> list[dict[str, Outcome]]:
        if where not in known:
            names = SAMPLE.get(where, ["dropout"])
            if is_whole:
                more = MORE if where in SAMPLE else []
                names = list(dict.fromkeys([*WHOLE, *names, *more]))  # each once
                names += PLAIN if where in (str(REFERENCE), MIRRORED) else []
            configuration = {**CONFIGURATIONS, str(REFERENCE): REFERENCE}[where]
            known[where] = run(configuration, names, tmp_path_factory.mktemp("strategies"))
        return known[where]

    return trained


@pytest.fixture(scope="module")
def reference(workers_of):
    return workers_of(str(REFERENCE))[0]


def rows_of(where, workers_of, reference) -> list[matrix.Row]:
    [chief, *_] = workers_of(where)
    names = [name for name in chief if name.split("/")[0] in models.MODELS]
    return [matrix.row(name, where, chief[name], reference[name]) for name in names]


@pytest.mark.parametrize("where", CONFIGURATIONS)
def test_a_training_is_that_of_one_device(where, is_whole, workers_of, reference):
    if where not in SAMPLE and not is_whole:
        pytest.skip("runs with --matrix")
    rows = rows_of(where, workers_of, reference)
    for row in rows:
        assert row.weights <= TOLERANCE, row
        assert row.loss <= TOLERANCE, row
        assert row.accuracy <= TOLERANCE, row
        assert row.counts, row
    assert rows


@pytest.mark.parametrize("where", CONFIGURATIONS)
def test_replicas_and_workers_stay_bit_for_bit_together(where, is_whole, workers_of):
    if where not in SAMPLE and not is_whole:
        pytest.skip("runs with --matrix")
    [chief, *others] = workers_of(where)
    for name, outcome in chief.items():
        assert outcome.figures.get("replicas_apart", 0.0) == 0, name
        for other in others:
            for key, array in outcome.arrays.items():
                np.testing.assert_array_equal(other[name].arrays[key], array, err_msg=name)


def test_the_reference_counts_the_labels_of_each_batch(reference):
    for name, outcome in reference.items():
        model, _, case = name.partition("/")
        if model not in models.MODELS:
            continue
        counts = [
            [
                models.labels_in(model, batch)
                for batch in models.batches(model, models.CASES[case], epoch)
            ]
            for epoch in range(models.EPOCHS)
        ]
        assert outcome.figures["trained_labels"] == counts[0] + counts[1], name
        assert outcome.figures["measured_labels"] == counts[0], name


def test_the_cases_are_different_trainings(reference):
    """So that a clip that never acts, or weights that are lost, cannot pass."""
    pairs = [
        ("classifier/masked", "classifier/weighted"),
        ("classifier/masked", "regularised/masked"),
        ("translation/masked", "translation/clipped"),
        ("transformer/masked", "transformer/clipped"),
        ("classifier/masked", "classifier/clipped"),
    ]
    pairs = [(one, other) for one, other in pairs if {one, other} <= set(reference)]
    assert pairs
    for one, other in pairs:
        assert matrix.difference(reference[one], reference[other]) > 1e-3


@pytest.mark.parametrize("where", [str(REFERENCE), MIRRORED, JAX_MIRRORED])
def test_a_batch_in_parts_is_the_batch(where, workers_of):
    [chief] = workers_of(where)
    row = matrix.row("-/-", where, chief["classifier/accumulated"], chief["classifier/masked"])
    assert row.weights <= 1e-6
    assert row.counts


@pytest.mark.parametrize("where", [MIRRORED, JAX_MIRRORED])
def test_devices_draw_dropout_masks_of_their_own(where, workers_of):
    [chief] = workers_of(where)
    masks = chief["dropout"].arrays["masks"]  # (steps, rows, features)
    first, second = np.split(masks, 2, axis=1)
    for others in (first != second, masks[1:] != masks[:-1]):
        # Half of all places where nothing connects them; of 100 and more, 5 standard deviations.
        assert 0.3 < others.mean() < 0.7
    assert 0.3 < masks.mean() < 0.7


def test_seeds_count_on_as_on_one_device(workers_of, reference):
    [wanted] = reference["dropout"].arrays["seeds"]
    for where in (MIRRORED, JAX_MIRRORED):
        seeds = workers_of(where)[0]["dropout"].arrays["seeds"]
        for seed in seeds:
            np.testing.assert_array_equal(seed, wanted)
    assert len(workers_of(MIRRORED)[0]["dropout"].arrays["seeds"]) == 2


def test_dropout_over_jax_devices_is_that_of_one(is_whole, workers_of):
    """The compiler sees one batch; TensorFlow's replicas draw for themselves."""
    if not is_whole:
        pytest.skip("runs with --matrix")
    one, two = (workers_of(where)[0]["dropout"].arrays["masks"] for where in ("jax x1", "jax x2"))
    np.testing.assert_array_equal(one, two)


def expected_averages(parts: int):
    """Moving mean and variance, as the mean over the parts of each batch."""
    mean, variance = np.zeros(properties.FEATURES), np.ones(properties.FEATURES)
    for inputs, _ in properties.normalised_batches():
        halves = np.split(inputs["x"].astype("float64"), parts)
        keep = properties.MOMENTUM
        mean = keep * mean + (1 - keep) * np.mean([x.mean(0) for x in halves], 0)
        variance = keep * variance + (1 - keep) * np.mean([x.var(0) for x in halves], 0)
    return mean, variance


@pytest.mark.parametrize(("where", "parts"), [(str(REFERENCE), 1), (MIRRORED, 2)])
def test_moving_averages_are_the_means_over_the_replicas(where, parts, workers_of):
    found = workers_of(where)[0]["batch_norm"].arrays
    pairs = zip((found["mean"], found["variance"]), expected_averages(parts), strict=True)
    for array, wanted in pairs:
        assert len(array) == parts
        for of_replica in array:
            np.testing.assert_allclose(of_replica, wanted, rtol=1e-5, atol=1e-6)


class Plain(NamedTuple):
    """How far a plain `fit` on two replicas is from a plain `fit` on one device."""

    model: str
    case: str
    weights: float
    ours: float  # how far our training is, of the same


def test_the_whole_matrix(is_whole, workers_of, reference, tmp_path, capsys):
    if not is_whole:
        pytest.skip("runs with --matrix")
    rows = [row for where in CONFIGURATIONS for row in rows_of(where, workers_of, reference)]
    [mirrored] = workers_of(MIRRORED)
    plain = []
    for name in WHOLE:
        of_fit, of_ours = (
            matrix.difference(mirrored[key], reference[key]) for key in (f"plain/{name}", name)
        )
        plain.append(Plain(*name.split("/"), of_fit, of_ours))
    workers = run(CONFIGURATIONS["tensorflow, 2 processes"], PLAIN[:1], tmp_path)
    error = workers[0][PLAIN[0]].figures["error"]
    with capsys.disabled():
        print(f"\n\n{matrix.table(rows)}\n\nKeras's own fit, mirrored x2:\n{matrix.table(plain)}")
        print(f"Keras's own fit, 2 processes: {error}")
    if os.environ.get("WRITE_PARITY"):
        matrix.write(rows, plain, error)

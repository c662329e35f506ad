"""The fuzzer knows every layer, optimizer, loss and metric of the installed Keras, and draws programs that Python can read."""

from __future__ import annotations

import inspect
import json

import keras
import pytest

from fuzz import counted, layers, training
from fuzz.draw import draw
from fuzz.graph import LAYERS
from fuzz.program import names, program
from fuzz.shrink import candidates

BACKENDS = ("jax", "tensorflow", "torch")


def public(module: object) -> set[str]:
    return {name for name in dir(module) if inspect.isclass(getattr(module, name)) or name == "Input"}


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (keras.layers, {*layers.LAYERS, *layers.ALIASES, *layers.LEFT_OUT}),
        (keras.optimizers, {*training.OPTIMIZERS, *training.NO_OPTIMIZERS}),
        (keras.losses, {*training.LOSSES, *training.NO_LOSSES}),
        (
            keras.metrics,
            {*(name for group in training.METRICS.values() for name in group), *training.NO_METRICS},
        ),
    ],
    ids=["layers", "optimizers", "losses", "metrics"],
)
def test_tables_name_every_public_class(module, known):
    assert public(module) == known


def test_an_alias_is_another_name_of_one_class():
    for alias, name in layers.ALIASES.items():
        assert getattr(keras.layers, alias) is getattr(keras.layers, name)


def test_a_layer_left_out_of_a_backend_has_a_reason():
    for name, kind in LAYERS.items():
        assert kind.only == BACKENDS or kind.why_only, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seeds_draw_every_layer(backend):
    """As many seeds as there are layers have each of them, in programs that compile."""
    met: set[str] = set()
    for seed in range(len(layers.drawable(backend))):
        text = program(draw(seed, backend), main=True)
        compile(text, "<drawn>", "exec")
        met |= names(text)
    assert set(layers.drawable(backend)) <= met | {"RNN"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_spec_is_plain_data_and_repeatable_from_its_seed(backend):
    for seed in range(40):
        spec = draw(seed, backend)
        assert json.loads(json.dumps(spec)) == spec == draw(seed, backend)
        assert draw(seed, backend, attempt=1)["must"] == spec["must"]


def test_every_smaller_candidate_is_a_program():
    for seed in range(30):
        spec = draw(seed, "jax")
        before = json.dumps(spec)
        for candidate in candidates(spec):
            compile(program(candidate, main=True), "<candidate>", "exec")
            assert candidate != spec
        assert json.dumps(spec) == before


def test_a_model_counts_once_and_a_failed_one_not_at_all():
    one = {"must": "Dense", "layers": ["Dense"], "outcome": "equal", "identity": "proven", "cpu": 3600.0}
    first = counted.added({}, [{**one, "seed": 1}, {**one, "seed": 2, "outcome": "failed"}])
    assert first["seeds"] == [[1, 1]]
    assert (first["models"], first["equal"], first["proven"], first["cpu_hours"]) == (1, 1, 1, 1.0)
    again = {**one, "must": "GRU", "identity": "twin"}
    second = counted.added(first, [{**one, "seed": 1}, {**again, "seed": 2}])
    assert second["seeds"] == [[1, 2]]
    assert (second["models"], second["proven"], second["twin"]) == (2, 1, 1)
    assert second["layers"] == ["Dense", "GRU"]


def test_the_page_has_the_counts_that_are_kept():
    assert counted.table(counted.read()) in counted.PAGE.read_text(encoding="utf-8")

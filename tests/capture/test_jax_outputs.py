"""What a tapped program on JAX has more than the user's own: few operations, few outputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

jax = pytest.importorskip("jax")

import fitscope as fs  # noqa: E402
from fitscope.capture.backends import _jax_programs as programs  # noqa: E402
from fitscope.capture.backends.jax import LONGEST, JaxAdapter  # noqa: E402

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX")


@pytest.fixture
def seen(tmp_path, monkeypatch) -> Any:
    """A step of a small network, traced with taps, and its run."""
    found: list[Any] = []
    one = programs.Fit._one

    def traced(self: Any, state: Any, data: Any) -> Any:
        if not found:
            found.append(self._whole(state).trace(state, data, programs._ZERO))
        return one(self, state, data)

    monkeypatch.setattr(programs.Fit, "_one", traced)
    stack = [keras.layers.Dense(8, activation="relu", name=name) for name in ("first", *"abcde")]
    wide = keras.layers.Dense(2_000, name="wide")  # only some rows of its output leave the step
    model = keras.Sequential([keras.Input((4,)), *stack, wide, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    scope = fs.Scope(tmp_path, every=1)
    x = np.random.default_rng(0).standard_normal((40, 4)).astype("float32")
    model.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[scope])
    return found[0], fs.open(scope.path)


def test_a_joined_vector_is_copied_once_and_its_layout_is_not_an_output(seen):
    traced, run = seen
    sites = len(run.sites)
    outputs = jax.tree.leaves(traced.out_info[1])
    copies = [eqn for eqn in traced.jaxpr.jaxpr.eqns if eqn.primitive.name == "xor"]
    assert sites > 24
    assert len(copies) == len(outputs) < sites / 3
    assert all(np.issubdtype(output.dtype, np.floating) for output in outputs)


def test_each_batch_size_has_the_shapes_of_its_own_trace(seen):
    _, run = seen
    wide = run.frame("activations/wide")
    assert [tuple(shape) for shape in wide["shape"]] == [(32, 2_000), (8, 2_000)]
    small = run.frame("activations/first")
    assert [tuple(shape) for shape in small["shape"]] == [(32, 8), (8, 8)]


def test_no_joined_vector_is_so_long_that_xla_divides_its_copy(tmp_path, monkeypatch):
    vectors: list[Any] = []
    joined = JaxAdapter.joined

    def noted(self: Any, tensors: Any) -> Any:
        found = joined(self, tensors)
        vectors.extend(vector for vector, _ in found)
        return found

    monkeypatch.setattr(JaxAdapter, "joined", noted)
    stack = [keras.layers.Dense(32, activation="relu", name=f"layer{n}") for n in range(12)]
    model = keras.Sequential([keras.Input((4,)), *stack, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    scope = fs.Scope(tmp_path, every=1)
    x = np.random.default_rng(0).standard_normal((96, 4)).astype("float32")
    model.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[scope])
    run = fs.open(scope.path)
    assert not run.errors
    assert run.identity == "proven"
    sizes = [vector.size * vector.dtype.itemsize for vector in vectors]
    assert len(sizes) > 2
    assert max(sizes) <= LONGEST
    assert {f"gradients/layer{n}" for n in range(12)} <= {str(site) for site in run.sites}

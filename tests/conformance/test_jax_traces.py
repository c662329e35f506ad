"""Functions under `jax.jit` or `jax.checkpoint` inside a step, which JAX traces once and keeps, with all that they close over.

The user's own program and the one with taps must not find each other's traces: a tracer of the other program raises, and a tap of it
would stay in the training.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="a case of JAX")
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(12, 5)).astype("float32"), RNG.normal(size=(12, 2)).astype("float32")


class Block(layers.Layer):
    """A layer that calls two others inside a function, which closes over their weights."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.wide, self.narrow = (
            layers.Dense(6, activation="tanh", name="wide"),
            layers.Dense(5, name="narrow"),
        )

    def build(self, shape):
        self.wide.build(shape)
        self.narrow.build((None, 6))
        self.function = self.traced(lambda x: self.narrow(self.wide(x)))

    def call(self, x):
        return self.function(x)


class Jitted(Block):
    def traced(self, function):
        import jax

        return jax.jit(function)


class Rematerialized(Block):
    def traced(self, function):
        return keras.remat(function)


def model(block: type) -> keras.Model:
    keras.utils.set_random_seed(0)
    parts = [layers.Dense(5, name="first"), block(name="block"), layers.Dense(2, name="last")]
    made = keras.Sequential([keras.Input((5,)), *parts])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("block", [Rematerialized, Jitted])
@pytest.mark.parametrize("watch", [[fs.loss()], None])
def test_a_function_that_jax_traces_by_itself_keeps_the_trace_of_the_user(watch_fit, block, watch):
    """The last batch is smaller, so the captured step is the first that traces the function for it."""
    seen = watch_fit(lambda: model(block), X, Y, watch=watch)
    assert len(seen.run.series("loss")) == 2
    if watch is None:
        assert {"activations/block", "activations/last", "gradients/first"} <= set(seen.run.sites)
        assert "(`jax.jit`, `keras.remat`)" in seen.run.unseen["activations/block/wide"]


@pytest.mark.parametrize("block", [Rematerialized, Jitted])
def test_the_steps_of_the_user_are_traced_without_taps(tmp_path, block):
    import jax

    made = model(block)
    made.fit(X, Y, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path / "runs", every=1)])
    state = made._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    for samples in (8, 4):
        program = jax.make_jaxpr(made.train_step)(state, (X[:samples], Y[:samples], None))
        assert "fitscope" not in str(program)

"""Layers that the backward pass computes again, to save memory (`keras.remat`): they are recorded once, with their gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from watching import EACH_MODE

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(16, 5)).astype("float32"), RNG.normal(size=(16, 2)).astype("float32")


class Block(layers.Layer):
    """Two layers inside one function, which may be rematerialized."""

    def __init__(self, remat: bool, calls: int = 1, **settings):
        super().__init__(**settings)
        self.remat, self.calls = remat, calls
        self.wide, self.narrow = (
            layers.Dense(6, activation="tanh", name="wide"),
            layers.Dense(5, name="narrow"),
        )

    def build(self, shape):
        self.wide.build(shape)
        self.narrow.build((None, 6))
        self.function = keras.remat(self._body) if self.remat else self._body

    def _body(self, x):
        return fs.tap("inside", self.narrow(self.wide(x)))

    def call(self, x):
        for _ in range(self.calls):
            x = self.function(x)
        return x


def model(remat: bool, mode: dict[str, bool], calls: int = 1) -> keras.Model:
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(5, name="first"),
            Block(remat, calls, name="block"),
            layers.Dense(2, name="last"),
        ]
    )
    made.compile("sgd", "mse", **mode)
    return made


@pytest.mark.skipif(BACKEND == "jax", reason="see test_jax_traces.py")
@EACH_MODE
def test_a_rematerialized_layer_is_recorded_once_with_its_gradient(tmp_path, watch_fit, mode):
    plain = model(remat=False, mode=mode)
    plain.fit(
        X,
        Y,
        batch_size=8,
        shuffle=False,
        verbose=0,
        callbacks=[fs.Scope(tmp_path / "plain", watching(), every=1)],
    )
    expected = fs.open(tmp_path / "plain")
    seen = watch_fit(lambda: model(remat=True, mode=mode), X, Y, watch=watching())
    assert set(seen.run.sites) == set(expected.sites)
    assert seen.run.unseen == expected.unseen == {}
    for site in (
        "activations/block/wide",
        "gradients/block/wide",
        "gradients/block/narrow",
        "gradients/first",
        "taps/inside",
    ):
        np.testing.assert_allclose(seen.at(site, 1), expected.array(site, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="elsewhere each call has its gradient")
def test_a_layer_that_is_rematerialized_twice_gives_the_reason_for_its_gradients(watch_fit):
    seen = watch_fit(lambda: model(remat=True, mode={}, calls=2), X, Y, watch=watching()[:-1])
    assert {
        "activations/block/wide",
        "activations/block/wide#2",
        "gradients/block",
        "gradients/first",
    } <= set(seen.run.sites)
    assert "#3" not in " ".join(seen.run.sites)
    for site in ("gradients/block/wide", "gradients/block/narrow#2"):
        assert "computes the layer again, to save memory" in seen.run.unseen[site]


def watching() -> list[object]:
    return [fs.activations(keep="both"), fs.gradients(keep="both"), fs.loss(), fs.taps(keep="both")]

"""Statistics of large tensors are those of every 2ᵏ-th row, the same rows at every layer, and the record says of how many elements.

"Large" is made small here. What was seen is compared with whole tensors of the same training, run again and kept.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import asked
from fitscope.plan import sampling
from fitscope.reduce import oracle
from fitscope.reduce.stats import ZERO_BUCKET
from watching import EACH_MODE, MODES

ENOUGH, FEWEST = 40, 2
LAYER_KINDS = (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(sampling, "ENOUGH", ENOUGH)
    monkeypatch.setattr(sampling, "FEWEST", FEWEST)
    monkeypatch.setattr(sampling, "SHORT", 0)


def fit(scope, mode, *, together=1):
    keras.utils.set_random_seed(5)
    # With sums, norms and activations that a compiler would like to fuse.
    inputs = layers.Input((6, 6, 2))
    x = skip = layers.Conv2D(5, 3, name="conv")(inputs)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(x))
    x = layers.BatchNormalization(name="norm2")(layers.Conv2D(5, 3, padding="same", name="conv2")(x))
    x = layers.ReLU(name="relu2")(layers.Add(name="sum")([x, skip]))
    x = layers.Dense(12, activation="relu", name="wide")(layers.Flatten(name="flat")(x))
    model = keras.Model(inputs, layers.Dense(3, name="head")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=together, **mode)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(29, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 29)
    model.fit(x, y, batch_size=11, epochs=1, shuffle=False, verbose=0, callbacks=[scope])  # 11, 11, 7


def rows_seen(array: np.ndarray, *, batched: bool) -> np.ndarray:
    """The rule, once more and in other words."""
    table = (
        array.reshape(len(array), -1) if batched or array.ndim == 1 else array.reshape(-1, array.shape[-1])
    )
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        seen = table[::step]
        if seen.size <= ENOUGH or len(seen) <= FEWEST:
            return seen
    raise AssertionError(array.shape)


@EACH_MODE
def test_stats_of_a_sampled_tensor_are_those_of_its_sampled_rows(mode, tmp_path):
    fit(fs.Scope(tmp_path / "sampled", [kind() for kind in LAYER_KINDS], every=1), mode)
    fit(fs.Scope(tmp_path / "whole", [kind(keep="tensor") for kind in LAYER_KINDS], every=1), mode)
    sampled, whole = fs.open(tmp_path / "sampled"), fs.open(tmp_path / "whole")
    assert sampled.errors == whole.errors == []
    assert sampled.sites == whole.sites
    thinned = 0
    for site in set(asked(sampled)) - {"learning_rate"}:
        batched = site.startswith(("activations/", "gradients/"))
        frame, histogram = sampled.frame(site), sampled.histogram(site)
        for step, size in enumerate((11, 11, 7)):
            tensor = whole.tensor(site).sel(step=step).values
            tensor = tensor[:size] if batched else tensor
            seen = rows_seen(tensor, batched=batched)
            want, got = oracle.reduce(seen), frame.loc[step]
            assert tuple(got["shape"]) == tensor.shape, site
            assert got["count"] == seen.size, site
            assert (got["zeros"], got["negatives"], got["min"], got["max"]) == (
                want.zeros, want.negatives, want.min, want.max,
            ), site  # fmt: skip
            assert (got["mean"], got["std"], got["rms"]) == pytest.approx((want.mean, want.std, want.rms)), (
                site
            )
            counted = histogram.sel(step=step)
            buckets = counted.bucket.values.tolist()
            assert {b: n for b, n in zip(buckets, counted.values.tolist(), strict=True) if n} == {
                place - ZERO_BUCKET: int(n) for place, n in enumerate(want.hist) if n
            }, site
            thinned += seen.size < tensor.size
    assert thinned > 20


def test_the_rows_of_a_larger_tensor_are_among_those_of_a_smaller_one():
    for rows in (1, 2, 3, 7, 11, 64, 1000):
        before = set(range(rows))
        for length in (1, 3, 10, 50, 200, 10**6):
            seen = set(range(0, rows, sampling.stride(rows, length)))
            assert 0 in seen
            assert seen <= before
            assert len(seen) * length <= ENOUGH or len(seen) <= FEWEST
            before = seen


def test_exact_reads_every_row(tmp_path):
    watch = [fs.activations("conv", exact=True), fs.activations("flat"), fs.weights()]
    fit(fs.Scope(tmp_path / "some", watch, every=1), MODES[0])
    run = fs.open(tmp_path / "some")
    assert list(run.frame("activations/conv")["count"]) == [11 * 80, 11 * 80, 7 * 80]
    assert list(run.frame("activations/flat")["count"]) == [160, 160, 160]  # two rows: 0 and 8, 0 and 4
    assert run.frame("weights/wide/kernel")["count"][0] == 3 * 12
    fit(fs.Scope(tmp_path / "all", every=1, exact=True), MODES[0])
    exact = fs.open(tmp_path / "all")
    for site in exact.sites:
        frame = exact.frame(site)
        assert list(frame["count"]) == [int(np.prod(shape)) for shape in frame["shape"]], site


def test_a_kept_tensor_is_not_sampled(tmp_path):
    fit(
        fs.Scope(
            tmp_path,
            [fs.activations("conv", keep="both"), fs.activations("wide", keep=("stats", "average"))],
            every=1,
        ),
        MODES[0],
    )
    run = fs.open(tmp_path)
    assert list(run.frame("activations/conv")["count"]) == [11 * 80, 11 * 80, 7 * 80]
    assert list(run.frame("activations/wide")["count"]) == [11 * 12, 11 * 12, 7 * 12]


def test_a_nan_in_an_unsampled_row_shows_in_the_loss_and_the_bias_gradients(tmp_path):
    """In the loss, and in the gradients of biases: sums over all rows and too small to be sampled."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [layers.Input((60,)), layers.Dense(30, name="first"), layers.Dense(2, name="head")]
    )
    model.compile("sgd", "mse", jit_compile=MODES[0].get("jit_compile", False))
    x, y = np.ones((8, 60), "float32"), np.ones((8, 2), "float32")
    x[3] = np.nan  # rows 0 and 4 are read
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    run = fs.open(tmp_path)
    assert run.frame("activations/first")["nans"][0] == 0
    assert np.isnan(run.series("loss")[0])
    assert run.frame("weight_gradients/first/bias")["nans"][0] == 30


def test_scope_batch_has_only_tensors_that_were_not_sampled(tmp_path):
    scope = fs.Scope(tmp_path, [fs.activations("head"), fs.activations("conv"), fs.loss()], every=1)
    fit(scope, MODES[0])
    assert scope.batch["activations/head"].shape == (7, 3)
    assert scope.batch["loss"].shape == ()
    with pytest.raises(fs.WatchError, match="keep='tensor'"):
        scope.batch["activations/conv"]


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: next(f"{k}={v}" for k, v in mode.items()))
def test_a_site_without_statistics_does_not_affect_others(mode, tmp_path):
    """A complex number among the small tensors that leave the step as one."""

    class Odd(layers.Layer):
        def call(self, x):
            fs.tap("complex", keras.ops.cast(x, "complex64"))
            fs.tap("whether", x > 0)
            fs.tap("whole", keras.ops.cast(x, "int32"))
            return x

    model = keras.Sequential([layers.Input((4,)), Odd(), layers.Dense(2, name="head")])
    model.compile("sgd", "mse", **mode)
    x = np.arange(-10, 10, dtype="float32").reshape(5, 4)
    with pytest.warns(fs.FitscopeWarning, match=r"taps/complex.*real numbers"):
        model.fit(
            x, x[:, :2], batch_size=5, shuffle=False, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)]
        )
    run = fs.open(tmp_path)
    assert run.series("taps/whether", "mean")[0] == pytest.approx(9 / 20)
    assert run.series("taps/whole", "min")[0] == -10
    assert run.frame("taps/whole")["dtype"][0] == "int32"
    assert "activations/head" in run.sites

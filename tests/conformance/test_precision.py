"""Mixed precision: recorded in the type the step computed in, gradients as the step computed them, with the loss scale beside them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_is_recorded_in_its_own_types(watch_fit, tools, xy, policy, mode):
    x, y = xy
    scaled = policy == "mixed_float16"

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                layers.Input((5,)),
                layers.Dense(4, name="first", dtype=policy),
                layers.Dense(2, name="last", dtype="float32"),
            ]
        )
        # The first steps overflow float16: the scale is halved and the batch left out. Then it grows.
        optimizer = keras.optimizers.SGD(0.1)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(
                optimizer, initial_scale=2.0**17, dynamic_growth_steps=2
            )
        model.compile(optimizer, "mse", **mode)
        return model

    seen = watch_fit(make, x, y, epochs=2)
    at, run = seen.at, seen.run
    short = policy.removeprefix("mixed_")
    for kind, dtype in [
        ("activations", short),
        ("gradients", short),
        ("weights", "float32"),
        ("updates", "float32"),
    ]:
        name = f"{kind}/first" + ("/kernel" if kind in ("weights", "updates") else "")
        assert set(run.frame(name)["dtype"]) == {dtype}, name
        assert at(name).dtype.name == dtype
        assert seen.scope.batch[name].dtype.name == dtype
        assert run.tensor(name).dtype.name in (dtype, "float32")
    scale = run.series("loss_scale") if scaled else None
    for step in range(6):
        kernel = at("weights/first/kernel", step).astype(short).astype("float64")
        inputs = at("inputs", step).astype(short).astype("float64")
        h = inputs @ kernel + at("weights/first/bias", step)
        tools.close(at("activations/first", step), h, rtol=2e-2, atol=2e-2)
        g = 2 * (at("predictions", step) - at("targets", step)) / at("targets", step).size
        factor = scale.loc[step] if scaled else 1.0
        tools.close(at("gradients/last", step), g * factor, rtol=1e-3, atol=1e-3)  # as the step computed it
        wanted = at("activations/first", step).astype("float64").T @ at("gradients/last", step)
        tools.close(
            at("weight_gradients/last/kernel", step), wanted, rtol=1e-3 if scaled else 2e-2, atol=1e-2
        )
        if np.isfinite(at("weight_gradients/first/kernel", step)).all():
            # Looser for bfloat16: inside of a program XLA goes on with more digits than the type has.
            tools.close(
                at("updates/last/kernel", step),
                -0.1 * wanted / factor,
                rtol=1e-3 if scaled else 2e-2,
                atol=1e-4,
            )
        else:
            assert scaled
            assert not at("updates/last/kernel", step).any()
    if scaled:
        assert scale.iloc[0] == 2.0**17
        assert len(set(scale)) > 1  # it moved, and the record with it
        assert list(scale.index) == list(range(6))  # a batch left out has its own step all the same
    else:
        assert "loss_scale" not in run.sites


def test_the_loss_scale_comes_with_gradients_only(watch_fit, xy):
    x, y = xy

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Input((5,)), layers.Dense(2, dtype="mixed_float16", name="only")])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
        return model

    seen = watch_fit(
        make, x, y, watch=[fs.activations(), fs.weight_gradients(keep="tensor", every=2)], every=1
    )
    assert list(seen.run.series("loss_scale").index) == [0, 2]
    assert list(seen.run.series("activations/only", "mean").index) == [0, 1, 2]


def test_stats_of_layers_in_two_dtypes_equal_those_of_their_tensors(watch_fit, xy):
    """A compiled step hands out one joined vector for each type."""
    x, y = xy

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [layers.Input((5,)), layers.Dense(4, name="half", dtype="float16"), layers.Dense(2, name="full")]
        )
        model.compile("sgd", "mse")
        return model

    seen = watch_fit(make, x, y, watch=fs.activations(keep="both"))
    types = set()
    for name in ("half", "full"):
        frame = seen.run.frame(f"activations/{name}")
        types |= set(frame["dtype"])
        for step, row in frame.iterrows():
            tensor = seen.at(f"activations/{name}", step).astype("float64")
            np.testing.assert_allclose((row["mean"], row["max"]), (tensor.mean(), tensor.max()), rtol=1e-5)
    assert types == {"float16", "float32"}


def test_the_loss_scale_is_recorded_with_changes_reduced_in_the_step(tmp_path):
    """The next batch is compared with this one; the scale recorded beside it is not."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="head")])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    x = np.ones((16, 3), "float32")
    scope = fs.Scope(tmp_path, [fs.changes(of="gradients")], every=fs.steps(1, 3), reduce="step")
    model.fit(x, x[:, :2], batch_size=4, epochs=1, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run.series("loss_scale").index.tolist() == [1, 3]
    assert run.series("changes/gradients/head", "rms").index.tolist() == [1, 3]

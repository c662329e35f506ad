"""Row 3: the average activation over all batches. Compared with np.mean and np.std over all captured samples, to float64's precision, and
with the training written by hand, to float32's."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs
from complete import asked


@pytest.mark.parametrize("every", [1, 3])
def test_the_average_covers_every_captured_sample(watch_fit, tools, every):
    x, y = by_hand.data()
    watch = fs.activations("hidden", keep=["average", "tensor"])
    seen = watch_fit(tools.make, x, y, watch=watch, every=every, epochs=3)
    steps = range(0, 9, every)
    samples = np.concatenate([seen.run.array("activations/hidden", step) for step in steps]).astype(float)
    by = by_hand.train(by_hand.weights(), x, y, epochs=3)
    true = np.concatenate([by[step]["activations/hidden"] for step in steps])
    for average in (seen.scope.average("activations/hidden"), seen.run.average("activations/hidden")):
        assert average.mean.shape == (5,)
        assert (average.count, average.captures) == (len(samples), len(steps))
        assert (average.first_step, average.last_step) == (0, steps[-1])
        np.testing.assert_allclose(average.mean, samples.mean(0), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(average.std, samples.std(0), rtol=1e-12)
        tools.close(average.mean, true.mean(0))
        tools.close(average.std, true.std(0))
    assert seen.run.averages == ["activations/hidden"]


def test_no_tensor_is_stored(watch_fit, tools):
    x, y = by_hand.data()
    seen = watch_fit(tools.make, x, y, watch=fs.activations("hidden", keep="average"))
    assert asked(seen.run) == ["activations/hidden"]
    assert "activations/hidden" not in set(seen.run.stats["site"])
    with pytest.raises(fs.FitscopeError):
        seen.run.tensor("activations/hidden")
    assert seen.run.average("activations/hidden").count == 22


def test_the_average_can_be_read_during_training(tools, tmp_path):
    x, y = by_hand.data()
    counts: list[int] = []
    scope = fs.Scope(tmp_path, fs.activations("hidden", keep="average"), every=1)

    class Live(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            average = scope.average("activations/hidden")
            counts.append(average.count)
            tools.close(
                average.mean, np.concatenate([s["activations/hidden"] for s in by[: 3 * epoch + 3]]).mean(0)
            )

    by = by_hand.train(by_hand.weights(), x, y, epochs=2).steps
    tools.make().fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[scope, Live()])
    assert counts == [22, 44]


def test_a_mean_of_means_is_not_the_mean(page_says):
    """The usual way, on an epoch whose last batch is smaller."""
    x, y = by_hand.data(17)  # 8, 8, 1
    by = by_hand.train(by_hand.weights(), x, y)
    batches = [step["activations/hidden"] for step in by]
    true = np.concatenate(batches).mean(0)
    usual = np.mean([batch.mean(0) for batch in batches], axis=0)
    worst = np.abs(usual - true).argmax()
    page_says(f"returns {usual[worst]:.2f}; the mean is {true[worst]:.2f}")


def test_a_small_variance_with_a_large_mean_is_exact(tools, tmp_path, page_says):
    """The usual way sums squares, in float32, and subtracts."""
    x = (by_hand.data(64)[0] + 3000).astype("float32")
    scope = fs.Scope(tmp_path, fs.inputs(keep="average"), every=1)
    tools.make().predict(x, batch_size=8, verbose=0, callbacks=[scope])
    variance = x.astype(float).var(0)
    np.testing.assert_allclose(scope.average("predict/inputs").var, variance, rtol=1e-9)

    squares, sums = np.zeros(6, "float32"), np.zeros(6, "float32")
    for i in range(0, 64, 8):
        squares += (x[i : i + 8] ** 2).sum(0)
        sums += x[i : i + 8].sum(0)
    usual = squares / np.float32(64) - (sums / np.float32(64)) ** 2
    page_says(f"returns {usual[0]:.1f} instead of {variance[0]:.1f}")

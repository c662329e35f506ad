"""Row 5: a layer's output at each epoch's end. Compared with the training written by hand, to float32's precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs


@pytest.mark.parametrize(("batch", "steps"), [("last", (2, 5, 8)), ("first", (0, 3, 6)), (1, (1, 4, 7))])
def test_one_batch_of_each_epoch_is_recorded(watch_fit, tools, batch, steps):
    x, y = by_hand.data()
    watch = fs.activations("head", keep="tensor", every=fs.epochs(batch=batch))
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=3)
    by = by_hand.train(by_hand.weights(), x, y, epochs=3)
    tools.every_value(seen.run, "activations/head", by, steps)
    assert list(seen.run.tensor("activations/head").epoch.values) == [0, 1, 2]


def test_the_last_batch_of_a_generator_is_recorded(watch_fit, tools):
    x, y = by_hand.data()
    rows = [slice(i, i + 8) for i in range(0, 22, 8)]
    watch = fs.activations("head", keep="tensor", every=fs.epochs(1))
    seen = watch_fit(
        tools.make, lambda: ((x[r], y[r]) for r in rows * 2), watch=watch, epochs=2, steps_per_epoch=3
    )
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    tools.every_value(seen.run, "activations/head", by, [5])


def test_statistics_cover_the_whole_epoch(watch_fit, tools):
    x, y = by_hand.data()
    seen = watch_fit(tools.make, x, y, watch=fs.activations("head"), epochs=2)
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    of = seen.run.frame("activations/head", by="epoch")
    assert list(of.index) == [0, 1]
    for epoch in (0, 1):
        values = np.concatenate([by[3 * epoch + i]["activations/head"] for i in range(3)])
        assert of["count"][epoch] == values.size
        assert of["captures"][epoch] == 3
        for stat in ("mean", "std", "min", "max"):
            tools.close(of[stat][epoch], getattr(values, stat)())
        tools.close(of["rms"][epoch], np.sqrt((values**2).mean()))


def test_the_symbolic_output_of_a_layer_has_no_value(watch_fit, tools, page_says):
    """Two usual ways: the symbolic output, which has a shape only, and a pass over the data with the weights of afterwards."""
    x, y = by_hand.data()
    symbols, late = [], []

    class Usual(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            symbols.append(self.model.get_layer("head").output)
            late.append(self.model.predict(x[16:], verbose=0))

    watch = fs.activations("head", keep="tensor", every=fs.epochs())
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=2, callbacks=lambda: [Usual()])
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    assert symbols[0].shape == (None, 3)
    with pytest.raises(Exception, match="KerasTensor"):
        np.asarray(symbols[0])
    tools.close(late[-1], by_hand.forward(by.final, x[16:])["head"])
    off = max(np.abs(late[-2 + i] - seen.run.array("activations/head", 3 * i + 2)).max() for i in (0, 1))
    size = np.abs(by[5]["activations/head"]).mean()
    page_says(f"off by up to {off:.2f}; an average value is {size:.2f}")

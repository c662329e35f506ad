"""Row 16: all that in a hand-written epoch loop, with checkpoints.

A checkpoint found by its step has the weights of the training written by hand after so many updates, to float32's precision, and those
that the run recorded, exactly."""

from __future__ import annotations

import keras
import numpy as np

import by_hand
import fitscope as fs

EPOCHS = 3


def test_checkpoints_of_a_custom_loop_are_matched_with_their_steps(tools, tmp_path):
    x, y = by_hand.data()
    xv, yv = by_hand.data(12, seed=5)

    def loop(model: keras.Model, scope: fs.Scope | None, to: str) -> list[float]:
        told = []
        for epoch in range(EPOCHS):
            for i in range(0, 22, 8):
                model.train_on_batch(x[i : i + 8], y[i : i + 8])
            told.append(model.evaluate(xv, yv, verbose=0, batch_size=8, callbacks=[scope] if scope else None))
            model.save(tmp_path / f"{to}{epoch}.keras")
            if scope:
                scope.epoch_end()
        return told

    twin, model = tools.make(), tools.make()
    wanted = loop(twin, None, "plain")
    watch = [fs.loss(), fs.weights(keep="tensor"), fs.predictions(on="validation")]
    scope = fs.Scope(tmp_path / "runs", watch, every=1)
    with scope.attach(model):
        assert loop(model, scope, "e") == wanted
    tools.same(model, twin)

    run = fs.open(tmp_path / "runs")
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    assert list(run.checkpoints["step"]) == [3, 6, 9]
    assert list(run.checkpoints["epoch"]) == [0, 1, 2]
    tools.close(run.series("loss"), [step["loss"] for step in by])
    for step, epoch in ((3, 0), (5, 0), (6, 1), (8, 1), (100, 2)):
        path = run.checkpoint(step)
        assert path == str(tmp_path / f"e{epoch}.keras")
        found = keras.saving.load_model(path)
        saved = 3 * (epoch + 1)
        for variable in found.trainable_variables:
            name = "/".join(variable.path.split("/")[-2:])
            value = keras.ops.convert_to_numpy(variable)
            tools.close(value, by.after(saved)[name])
            if saved < 9:  # the step after the checkpoint began with these very weights
                np.testing.assert_array_equal(value, run.array(f"weights/{name}", saved))
    for step in (3, 6, 9):
        out = by_hand.forward(by.after(step), xv)["head"]
        tools.close(run.array("validation/predictions", step), out)


def test_checkpoints_of_fit_are_matched_with_their_steps(watch_fit, tools, tmp_path, page_says):
    """What the usual callback calls epoch 1 is what every other callback, and `history`, call epoch 0."""
    x, y = by_hand.data()

    def keep() -> list[keras.callbacks.Callback]:
        to = str(tmp_path / "e{epoch}.weights.h5")
        return [keras.callbacks.ModelCheckpoint(to, save_weights_only=True)]

    seen = watch_fit(tools.make, x, y, watch=fs.loss(), epochs=EPOCHS, callbacks=keep)
    assert list(seen.run.checkpoints["step"]) == [3, 6, 9]
    assert list(seen.run.checkpoints["epoch"]) == [0, 1, 2]
    assert seen.run.checkpoint(4) == str(tmp_path / "e1.weights.h5")

    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    model = tools.make()
    model.load_weights(seen.run.checkpoint(4))
    loss = {n: by_hand.crossentropy(by_hand.forward(by.after(n), x)["head"], y)[0].mean() for n in (3, 6)}
    tools.close(model.evaluate(x, y, verbose=0), loss[3])
    page_says(f"a loss of {loss[3]:.2f}, but epoch 1 ended with {loss[6]:.2f}")

"""Row 14: the final layer's output at each epoch as an `.npy` file. Compared with the training written by hand, to float32's precision, and
with what the run has, exactly."""

from __future__ import annotations

import json

import keras
import numpy as np

import by_hand
import fitscope as fs


def test_each_epoch_writes_one_file(watch_fit, tools, tmp_path, page_says):
    x, y = by_hand.data()
    late: list[np.ndarray] = []

    class Save(keras.callbacks.Callback):
        """The usual way."""

        def on_epoch_end(self, epoch, logs=None):
            late.append(self.model.predict(x[16:], verbose=0))

    watch = fs.predictions(every=fs.epochs())
    live = {"npy": tmp_path / "live"}
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=3, scope=live, callbacks=lambda: [Save()])
    by = by_hand.train(by_hand.weights(), x, y, epochs=3)
    fs.export_run(seen.run.path, "npy", tmp_path / "arrays")
    names = sorted(path.name for path in (tmp_path / "arrays").glob("*.npy"))
    assert names == [f"epoch_000{epoch}_predictions.npy" for epoch in range(3)]
    saved = [np.load(tmp_path / "arrays" / name) for name in names]
    for epoch, values in enumerate(saved):
        np.testing.assert_array_equal(values, seen.run.array("predictions", 3 * epoch + 2))
        np.testing.assert_array_equal(values, np.load(tmp_path / "live" / names[epoch]))
        tools.close(values, by[3 * epoch + 2]["predictions"])
    listed = json.loads((tmp_path / "arrays/index.json").read_text())["files"]
    assert [(entry["file"], entry["epoch"], entry["step"]) for entry in listed] == [
        (name, epoch, 3 * epoch + 2) for epoch, name in enumerate(names)
    ]

    off = max(np.abs(values - again).max() for values, again in zip(saved, late[3:], strict=True))
    page_says(f"off by up to {off:.2f}")
    page_says(f"; an average value is {np.abs(saved).mean():.2f}")


def test_a_validation_file_holds_the_whole_pass(watch_fit, tools, tmp_path):
    x, y = by_hand.data()
    seen = watch_fit(
        tools.make, x, y, watch=fs.predictions(on="validation"), epochs=2, validation_data=by_hand.data(20, seed=5)
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    fs.export_run(seen.run.path, "npy", tmp_path / "arrays")
    files = sorted((tmp_path / "arrays").glob("*.npy"))
    assert len(files) == 2
    for epoch, file in enumerate(files):
        true = by_hand.forward(by.after(3 * epoch + 3), by_hand.data(20, seed=5)[0])["head"]
        tools.close(np.load(file), true)

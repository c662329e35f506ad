"""Row 9: activation histograms in TensorBoard. Its own reader reads the event file; counts and scalars are compared with those of the
training written by hand. That the real server shows them is tested with the export."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs

pytest.importorskip("tensorboard", reason="needs the tensorboard package: pip install tensorboard")


def events(logs: Path) -> dict[str, list[tuple[int, np.ndarray]]]:
    """By tag: step and value of each event."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[str, list[tuple[int, np.ndarray]]] = {}
    for file in sorted(logs.rglob("*tfevents*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, make_ndarray(value.tensor)))
    return found


@pytest.mark.parametrize("when", ["afterwards", "live"])
def test_tensorboard_shows_histograms_and_scalars_of_every_step(watch_fit, tools, tmp_path, when):
    x, y = by_hand.data()
    watch = [fs.activations("hidden", "head"), fs.loss()]
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=2, scope={"tensorboard": tmp_path / "live"})
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    if when == "afterwards":
        fs.export_run(seen.run.path, "tensorboard", tmp_path / "logs")
    found = events(tmp_path / ("logs" if when == "afterwards" else "live"))
    assert [step for step, _ in found["loss"]] == list(range(6))
    tools.close([float(value) for _, value in found["loss"]], [step["loss"] for step in by])
    for name in ("hidden", "head"):
        values = [step[f"activations/{name}"] for step in by]
        for stat in ("mean", "std", "min", "max"):
            told = [float(value) for _, value in found[f"activations/{name}/{stat}"]]
            tools.close(told, [getattr(value, stat)() for value in values])
        histograms = found[f"activations/{name}/histogram"]
        assert [step for step, _ in histograms] == list(range(6))
        for (_, told), value in zip(histograms, values, strict=True):
            counted(told, value)


def counted(buckets: np.ndarray, values: np.ndarray) -> None:
    """Each bucket (left, right, count) has as many values as there are, but for those that float32 rounds over an edge."""
    assert buckets[:, 2].sum() == values.size
    for left, right, count in buckets:
        margin = 1e-4 * max(abs(left), abs(right))
        inside = ((values > left + margin) & (values < right - margin)).sum()
        around = ((values >= left - margin) & (values <= right + margin)).sum()
        assert inside <= count <= around


def test_the_tensorboard_callback_has_only_weights_and_only_epochs(tools, tmp_path, page_says):
    pytest.importorskip("tensorflow", reason="Keras's own TensorBoard callback needs TensorFlow")
    x, y = by_hand.data()
    usual = keras.callbacks.TensorBoard(
        tmp_path / "usual", histogram_freq=1, write_graph=False, profile_batch=0
    )
    tools.make().fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[usual])
    found = events(tmp_path / "usual")
    histograms = {tag: len(told) for tag, told in found.items() if "histogram" in tag}
    assert histograms
    assert all("kernel" in tag or "bias" in tag for tag in histograms)
    assert set(histograms.values()) == {2}  # in two epochs of three batches
    page_says(f"{len(histograms)} histograms of weights at 2 of 6 steps")

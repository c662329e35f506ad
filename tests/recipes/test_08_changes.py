"""Row 8: how far things move between consecutive batches. Compared with the training written by hand, to float32's precision."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import by_hand
import fitscope as fs
from complete import asked

EPOCHS, STEPS = 4, 12


def expected(before: np.ndarray, after: np.ndarray, batched: bool) -> dict[str, float]:
    if batched:  # of the samples that both have
        n = min(len(before), len(after))
        before, after = before[:n], after[:n]
    moved = np.abs(after - before)
    return {
        "count": moved.size, "mean": moved.mean(), "max": moved.max(), "rms": np.sqrt((moved**2).mean()),
        "cosine": (before * after).sum() / np.sqrt((before**2).sum() * (after**2).sum()),
    }  # fmt: skip


def check(run, site: str, of: str, by, steps, close, *, batched: bool = True) -> None:
    assert list(run.series(site, "mean").index) == list(steps)
    for stat in ("count", "mean", "max", "rms", "cosine"):
        true = [expected(by[step - 1][of], by[step][of], batched)[stat] for step in steps]
        close(run.series(site, stat), true)


@pytest.mark.parametrize("every", [1, 5])
def test_changes_are_between_consecutive_batches(watch_fit, tools, every):
    """22 samples in batches of 8: the third of each epoch is smaller, and the next one larger again."""
    x, y = by_hand.data()
    watch = [
        fs.changes("hidden", "head"), fs.changes(of="predictions"), fs.changes("head", of="weights"),
        fs.changes("hidden", of="gradients"),
    ]  # fmt: skip
    seen = watch_fit(tools.make, x, y, watch=watch, every=every, epochs=EPOCHS)
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    steps = range(1, STEPS) if every == 1 else [5, 10]  # nothing comes before step 0
    assert asked(seen.run) == [
        "changes/activations/head", "changes/activations/hidden", "changes/gradients/hidden", "changes/predictions",
        "changes/weights/head/bias", "changes/weights/head/kernel",
    ]  # fmt: skip
    for site in asked(seen.run):
        of = site.removeprefix("changes/")
        check(seen.run, site, of, by, steps, tools.close, batched=not of.startswith("weights"))


def test_unwatched_values_are_not_kept(watch_fit, tools):
    """The batch before is captured for the change alone."""
    x, y = by_hand.data()
    watch = [fs.changes("head"), fs.activations("head", keep="both")]
    seen = watch_fit(tools.make, x, y, watch=watch, every=5, epochs=EPOCHS)
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    tools.every_value(seen.run, "activations/head", by, [0, 5, 10])
    assert list(seen.run.series("activations/head", "mean").index) == [0, 5, 10]
    check(seen.run, "changes/activations/head", "activations/head", by, [5, 10], tools.close)


def test_the_usual_way_compares_with_the_last_one_it_kept(watch_fit, tools, page_says):
    x, y = by_hand.data()
    seen = watch_fit(tools.make, x, y, watch=fs.changes("head/kernel", of="weights"), every=5, epochs=EPOCHS)
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    kept = [step["weights/head/kernel"] for step in by.steps[::5]]
    usual = np.mean([np.abs(b - a).mean() for a, b in pairwise(kept)])
    true = seen.run.series("changes/weights/head/kernel", "mean").mean()
    page_says(f"a mean change of {usual:.3f} per batch; the real one is {true:.3f}")

    with pytest.raises(ValueError, match="shapes"):  # the last batch of an epoch is smaller
        _ = by[2]["activations/head"] - by[1]["activations/head"]

"""Which losses are out of the ordinary."""

from __future__ import annotations

import numpy as np

from fitscope.pipeline.batch_loss import HEAD
from fitscope.pipeline.spikes import Spikes
from fitscope.record import Stretch

rng = np.random.default_rng(0)


def stretch(values, first: int = 0, error: float = 1e-4) -> Stretch:
    n = len(values)
    counted, zeros = np.arange(first, first + n), np.zeros(n, np.int64)
    errors = np.where(np.isfinite(values), error, 0.0)
    return Stretch(HEAD, counted, zeros, counted, zeros * 1.0, np.asarray(values, float), errors, zeros + 1)


def usual(n: int) -> np.ndarray:
    return np.exp(rng.normal(0, 0.2, n))


def test_a_spike_and_a_nan_are_found_at_their_step():
    spikes = Spikes()
    assert spikes.in_stretch(stretch(usual(100))) is None
    values = usual(100)
    values[30] = 20.0
    assert spikes.in_stretch(stretch(values, 100)) == 130
    values = usual(100)
    values[7] = np.nan
    assert spikes.in_stretch(stretch(values, 200)) == 207
    assert spikes.is_one(30.0)
    assert spikes.is_one(float("nan"))
    assert not spikes.is_one(1.2)


def test_losses_are_compared_with_those_before_them():
    values = usual(100)
    values[:10] *= 20
    assert Spikes().in_stretch(stretch(values)) is None, "a training begins with high losses"
    values[80] *= 400
    assert Spikes().in_stretch(stretch(values)) == 80


def test_noise_and_a_falling_loss_are_ordinary():
    spikes = Spikes()
    for i in range(50):
        assert spikes.in_stretch(stretch(usual(200) * 0.95**i, 200 * i)) is None


def test_an_uncertain_loss_is_not_a_spike():
    spikes = Spikes()
    spikes.in_stretch(stretch(usual(100)))
    values = usual(100)
    values[30] = 20.0
    assert spikes.in_stretch(stretch(values, 100, error=30.0)) is None
    values[30] = np.nan
    unknown = stretch(values, 200, error=np.inf)
    assert spikes.in_stretch(Stretch(HEAD, *[getattr(unknown, name) for name in ("steps", "epochs", "batches", "times", "values")],
        np.full(100, np.inf), unknown.over)) is None  # fmt: skip

"""Single samples in words: what was true, what was predicted, and whether that was wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.record import Moment, Samples
from fitscope.show.data.gather import Gathered
from fitscope.show.data.samples import said, worst_of_batch

from .conftest import Written, steady

NAN, INF = float("nan"), float("inf")


def words(truth: list[float], predicted: list[float]) -> tuple[Any, ...]:
    told = said(truth, predicted)
    return told["truth"], told["predicted"], told["p"], told["wrong"]


@pytest.mark.parametrize(
    ("truth", "predicted", "told"),
    [
        ([2.0], [0.1, 0.7, 0.2], ("2", "1", 0.7, True)),
        ([1.0], [-3.0, 8.0, 2.0], ("1", "1", None, False)),
        ([0.0, 0.0, 1.0], [0.1, 0.7, 0.2], ("2", "1", 0.7, True)),
        ([1.0], [0.2], ("1", "0.2", None, True)),
        ([0.0], [0.2], ("0", "0.2", None, False)),
    ],
)
def test_classes_are_named(truth: list[float], predicted: list[float], told: tuple[Any, ...]) -> None:
    assert words(truth, predicted) == told


@pytest.mark.parametrize(
    ("truth", "predicted", "told"),
    [
        ([2.0], [NAN] * 10, ("2", "NaN", None, False)),
        ([0.0, 1.0], [0.5, NAN], ("1", "NaN", None, False)),
        ([1.0], [0.5, INF], ("1", "Inf", None, False)),
        ([1.0], [NAN], ("1", "NaN", None, False)),
        ([NAN], [0.25, 0.75], ("NaN", "0.25, 0.75", None, False)),
        ([NAN], [0.25], ("NaN", "0.25", None, False)),
        ([INF], [0.25, -INF], ("Inf", "0.25, -Inf", None, False)),
    ],
)
def test_a_prediction_that_is_not_finite_has_no_class(
    truth: list[float], predicted: list[float], told: tuple[Any, ...]
) -> None:
    assert words(truth, predicted) == told


@pytest.mark.parametrize(
    ("truth", "predicted"),
    [
        ([1.5, 2.5, 0.5], [1.0, 3.0, 0.25]),  # a vector of its own
        ([0.5, 0.5], [0.25, 0.75]),
        ([1.0, 1.0, 0.0], [0.25, 0.75, 1.0]),  # several things are so at once
        ([2.5], [0.25, 0.75, 1.0]),
        ([3.0], [0.25, 0.75, 1.0]),
        ([-1.0], [0.25, 0.75, 1.0]),
        ([1.0, 0.0], [0.25, 0.75, 1.0]),
        ([], [0.25, 0.75]),
        ([1.0], []),
        ([], []),
    ],
)
def test_numbers_that_name_no_class_stay_numbers(truth: list[float], predicted: list[float]) -> None:
    told = [", ".join(f"{number:g}" for number in numbers) or "–" for numbers in (truth, predicted)]
    assert words(truth, predicted) == (*told, None, False)


def test_a_batch_with_targets_that_are_missing_is_shown(written: Callable[..., Written]) -> None:
    run = written()
    batch = Samples(
        Moment(0, 0, 0, 1_800_000_000.0), "train", loss=np.array([NAN, 1.0]), target=np.array([[NAN], [1.0]]),
        prediction=np.array([[0.5, 0.5], [NAN, NAN]]),
    )  # fmt: skip
    run.writer.write([], [batch])
    run.add(range(3), steady("abc"))
    g = Gathered(fs.open(run.path))
    g.update()
    assert [(s["truth"], s["predicted"]) for s in worst_of_batch(g, 2)["samples"]] == [
        ("NaN", "0.5, 0.5"),
        ("1", "NaN"),
    ]

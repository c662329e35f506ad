"""What the writer derives from tensors: windows are bounded, classes are told apart, and nothing but a reason comes of what is odd."""

from __future__ import annotations

import numpy as np
import pytest

from fitscope.pipeline import evidence
from fitscope.pipeline.classes import Classes, NotDerived
from fitscope.pipeline.evidence import Evidence, Window
from fitscope.plan.plan import Want
from fitscope.sites import Site


class Border:
    def to_numpy(self, tensor):
        return np.asarray(tensor)

    def nbytes(self, tensor):
        return tensor.nbytes


def make(configuration=None):
    told: dict[str, str | None] = {}
    errors: list[str] = []
    return Evidence(Border(), configuration or {}, errors.append, told.__setitem__), told, errors


def test_a_window_holds_about_256_samples_in_at_most_16_batches():
    for size, batches in ((1, 16), (8, 16), (32, 8), (100, 3), (256, 1), (1000, 1)):
        window = Window(Site("activity", "a"), 2)
        for step in range(40):
            share = window.add(np.array([size, 0 if step >= 20 else size], np.int32), size, size)
            after = max(step - 19, 0)
            assert share[0] == 1
            np.testing.assert_allclose(
                share[1], max(min(step + 1, batches) - after, 0) / min(step + 1, batches)
            )
        assert len(window._batches) == batches


def test_a_window_of_a_wide_layer_is_bounded_in_numbers(monkeypatch):
    monkeypatch.setattr(evidence, "NUMBERS", 100)
    window = Window(Site("activity", "a"), 40)
    for _ in range(5):
        window.add(np.ones(40, np.int32), 1, 1)
    assert len(window._batches) == 2


def test_a_layer_that_changes_its_width_begins_anew():
    mine, told, errors = make()
    want = Want(activity="relu")
    for units in (3, 4):
        (row,) = mine.take(Site("activations", "a"), want, np.ones((2, units), np.float32), None)
        assert row.head.shape == (units,)
        assert row.head.site == "activity/a"
    assert errors == []
    assert told == {"activity/a": None}


def test_nan_is_not_stuck():
    mine, _, _ = make()
    values = np.array([[np.nan, -1, 1], [np.nan, -1, np.inf]], np.float32)
    for family, expected in (
        ("relu", [1, 0, 1]),
        ("sigmoid", [1, 0, 0]),
        ("tanh", [1, 0, 0]),
        ("softmax", [1, 0, 0]),
    ):
        (row,) = mine.take(Site("activations", family), Want(activity=family), values, None)
        assert row.array.tolist() == expected


def test_what_cannot_be_derived_is_a_reason_and_no_error():
    mine, told, errors = make()
    want = Want(data=True)
    mine.take(Site("inputs"), want, np.ones((4, 5000), np.float32), None)
    mine.take(Site("inputs", suffix="/one"), want, np.ones(4, np.float32), None)
    mine.take(Site("inputs", suffix="/text"), want, np.array([["a"]]), None)
    mine.take(Site("inputs", suffix="/far"), want, {"shape": np.array([4, 5])}, None)
    assert "4,096" in told["features/inputs"]
    assert "no axis" in told["features/range/one"]
    assert "no numbers" in told["features/mean/text"]
    assert "device" in told["features/duplicates/far"]
    assert errors == []


def test_an_error_of_ours_is_told_and_costs_only_what_it_is_about(monkeypatch):
    mine, told, errors = make()
    monkeypatch.setattr(evidence, "count_active", lambda *_: 1 / 0)
    assert mine.take(Site("activations", "a"), Want(activity="relu"), np.ones((2, 3), np.float32), None) == []
    assert "division" in told["activity/a"]
    assert len(errors) == 1


LOSS = {"output": "o", "class": "SparseCategoricalCrossentropy", "classification": "labels"}


def test_labels_that_are_none_of_the_classes_count_for_nobody():
    classes = Classes({"losses": [LOSS]})
    shares = classes.targets("", np.array([0, 1, 1, 7, -1], np.int64), np.zeros((5, 3), np.float32))
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.0])


def test_predictions_that_are_nan_have_no_class():
    classes = Classes({"losses": [LOSS]})
    predictions = np.array([[np.nan, 1, 0], [0, 1, 0], [np.nan] * 3], np.float32)
    assert classes.predictions("", np.zeros(3, np.int64), predictions).tolist() == [0, 1, 0]


def test_several_classes_at_once_are_no_shares():
    classes = Classes({"losses": [{"output": "o", "classification": "binary"}]})
    with pytest.raises(NotDerived, match="several classes"):
        classes.targets("", np.array([[1, 1, 0]], np.float32), np.zeros((1, 3), np.float32))


def test_positions_of_a_sequence_are_counted_one_by_one():
    classes = Classes({"losses": [LOSS]})
    targets = np.array([[0, 1], [2, 2]])
    np.testing.assert_allclose(
        classes.targets("", targets, np.zeros((2, 2, 3), np.float32)), [0.25, 0.25, 0.5]
    )


def test_without_a_loss_whole_numbers_are_labels_of_as_many_classes_as_the_output_has_units():
    classes = Classes({})
    assert classes.targets("", np.array([0, 1]), np.zeros((2, 2), np.float32)).tolist() == [0.5, 0.5]
    for targets, predictions in (
        (np.zeros(2, np.float32), np.zeros((2, 2), np.float32)),
        (np.array([0, 1]), np.zeros((2, 1), np.float32)),
        (np.array([0, 1]), None),
    ):
        with pytest.raises(NotDerived):
            classes.targets("", targets, predictions)

"""What the writer derives from tensors: windows are bounded, classes are told apart, and nothing but a reason comes of what is odd."""

from __future__ import annotations

import numpy as np
import pytest

from fitscope.pipeline.activity import Activity, Vector
from fitscope.pipeline.classes import Classes, NotDerived
from fitscope.pipeline.derived import Derived
from fitscope.pipeline.handover import Slot
from fitscope.plan.wants import Want
from fitscope.sites import TRAIN, Site


class Adapter:
    def to_numpy(self, tensor):
        return np.asarray(tensor)

    def nbytes(self, tensor):
        return tensor.nbytes


def make(configuration=None):
    told: dict[str, str | None] = {}
    errors: list[str] = []
    return Derived(Adapter(), configuration or {}, errors.append, told.__setitem__), told, errors


def shares(vector: Vector) -> dict[str, list[float]]:
    pieces = np.split(vector.flat, vector.starts[1:-1])
    return {head.site: piece.tolist() for head, piece in zip(vector.heads, pieces, strict=True)}


@pytest.mark.parametrize(("size", "batches"), [(1, 16), (8, 16), (32, 8), (100, 3), (256, 1), (1000, 1)])
def test_a_window_holds_about_256_samples_in_at_most_16_batches(size, batches):
    activity = Activity()
    number = activity.number(Site("activity", "a"), (size, 2), "relu")
    for step in range(40):
        on = np.ones((size, 2), np.float32)
        on[:, 1] = step < 20
        activity.count(number, on, on.shape)
        held = min(step + 1, batches)
        silent = min(max(step - 19, 0), batches)
        np.testing.assert_allclose(shares(activity.slide())["activity/a"], [1, (held - silent) / held])


def test_each_layer_has_a_separate_window():
    activity = Activity()
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 4), "b": (100, 2), "c": (7, 5, 3)}
    seen: dict[str, list[np.ndarray]] = {name: [] for name in shapes}
    for step in range(50):
        for name, shape in shapes.items():
            if (name == "b" and step % 3) or (name == "c" and step < 5):  # not in every step, or only later
                continue
            values = rng.normal(size=shape).astype(np.float32)
            seen[name].append(values)
            activity.count(activity.number(Site("activity", name), shape, "relu"), values, shape)
        found = shares(activity.slide())
        assert ("activity/b" in found) == (step % 3 == 0)
        for site, got in found.items():
            name = site.partition("/")[2]
            newest = seen[name][-min(16, -(-256 // shapes[name][0])) :]
            of = np.concatenate(newest).reshape(-1, shapes[name][-1])
            np.testing.assert_allclose(got, (of > 0).mean(axis=0), rtol=1e-6)


def test_a_step_without_layers_has_no_activity():
    activity = Activity()
    assert activity.slide() is None
    activity.number(Site("activity", "a"), (2, 3), "relu")
    assert activity.slide() is None


def test_a_layer_with_too_many_units_gives_a_reason(monkeypatch):
    monkeypatch.setattr("fitscope.pipeline.activity.MOST_IN_ALL", 10)
    mine, told, errors = make()
    for name in "ab":
        mine.take(Site("activations", name), Want(activity="relu"), np.ones((2, 6), np.float32), None)
    assert told["activity/a"] is None
    assert "6 units" in told["activity/b"]
    assert errors == []
    assert list(shares(mine.rest(TRAIN)[1])) == ["activity/a"]


def test_activity_counts_start_again_if_a_layer_changes_its_width():
    mine, told, errors = make()
    for units in (3, 4, 3):
        mine.take(Site("activations", "a"), Want(activity="relu"), np.ones((2, units), np.float32), None)
        assert shares(mine.rest(TRAIN)[1]) == {"activity/a": [1.0] * units}
    assert errors == []
    assert told == {"activity/a": None}


def test_a_step_keeps_its_layers_when_a_later_one_has_more():
    mine, _, _ = make()
    steps = []
    for names in ("a", "ab"):
        for name in names:
            mine.take(Site("activations", name), Want(activity="relu"), np.ones((2, 3), np.float32), None)
        steps.append(mine.rest(TRAIN)[1])
    one, two = steps
    assert [head.site.layer for head in one.heads] == ["a"]
    assert [head.site.layer for head in two.heads] == ["a", "b"]
    assert one.heads is not two.heads  # `digest.Taken.key` tells steps apart by it


def test_a_joined_vector_and_single_tensors_give_the_same_counts():
    mine, _, _ = make()
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 2, 5)).astype(np.float32)
    vector = np.concatenate([np.zeros(2, np.float32), one.ravel(), two.ravel()])
    slots = [Slot("activations/a", one.shape, 2, 14), Slot("activations/b", two.shape, 14, 54)]
    sites = [Site("activations", "a"), Site("activations", "b")]
    joined = mine.joined(zip(sites, ("relu", "tanh"), slots, strict=True))
    for dtype in (np.float32, np.float64, np.float16):
        mine.take_joined(TRAIN, vector.astype(dtype), joined)
        from_vector = shares(mine.rest(TRAIN)[1])
        other, _, _ = make()
        other.take(sites[0], Want(activity="relu"), one, None)
        other.take(sites[1], Want(activity="tanh"), two, None)
        assert from_vector == shares(other.rest(TRAIN)[1])


def test_nan_is_not_stuck():
    mine, _, _ = make()
    values = np.array([[np.nan, -1, 1], [np.nan, -1, np.inf]], np.float32)
    expected = {"relu": [1, 0, 1], "sigmoid": [1, 0, 0], "tanh": [1, 0, 0], "softmax": [1, 0, 0]}
    for family in expected:
        mine.take(Site("activations", family), Want(activity=family), values, None)
    assert shares(mine.rest(TRAIN)[1]) == {
        f"activity/{family}": shares for family, shares in expected.items()
    }


def test_a_value_that_cannot_be_derived_has_a_reason():
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


def test_an_error_of_fitscope_costs_only_its_own_site(monkeypatch):
    mine, told, errors = make()
    monkeypatch.setattr("fitscope.reduce.units.count_active", lambda *_: 1 / 0)
    mine.take(Site("activations", "a"), Want(activity="relu"), np.ones((2, 3), np.float32), None)
    mine.take(Site("inputs"), Want(data=True), np.ones((2, 3), np.float32), None)
    rows, activity = mine.rest(TRAIN)
    assert activity is None
    assert len(rows) == 4
    assert "division" in told["activity/a"]
    assert len(errors) == 1


LOSS = {"output": "o", "class": "SparseCategoricalCrossentropy", "classification": "labels"}


def test_unknown_labels_are_ignored():
    classes = Classes({"losses": [LOSS]})
    shares = classes.targets("", np.array([0, 1, 1, 7, -1], np.int64), np.zeros((5, 3), np.float32))
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.0])


def test_predictions_that_are_nan_have_no_class():
    classes = Classes({"losses": [LOSS]})
    predictions = np.array([[np.nan, 1, 0], [0, 1, 0], [np.nan] * 3], np.float32)
    assert classes.predictions("", np.zeros(3, np.int64), predictions).tolist() == [0, 1, 0]


def test_multi_label_targets_have_no_shares():
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

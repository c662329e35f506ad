"""The numbers of a run, kept up to date: rows, measures, modes, facts and the exact numbers of a moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.errors import RunError
from fitscope.read.parts import Part
from fitscope.read.tables import Table
from fitscope.record import Moment, Record
from fitscope.reduce import host
from fitscope.show.data import exact, page_facts, payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack, plain_json
from fitscope.show.data.rows import rows_of
from fitscope.sites import Site
from fitscope.store import Memory, RunWriter

from .conftest import Written, described, steady
from .gathering import NAMES, gathered, numbers


def test_rows_follow_the_model_with_inputs_and_outputs_around() -> None:
    sites = [
        "loss", "activations/b", "activations/a", "gradients/a", "weights/a/kernel", "updates/a/kernel",
        "activations/b#2", "inputs", "predictions", "taps/mine", "validation/activations/a", "validation/loss",
        "changes/activations/a", "metrics/accuracy", "odd", "odd/kind/of/site", "sample_loss",
    ]  # fmt: skip
    rows = rows_of(described(["a", "b"]), sites)
    assert [row.name for row in rows] == ["inputs", "a", "b", "b#2", "taps/mine", "predictions"]
    a = rows[1]
    assert a.sites["activations"] == ("activations/a",)
    assert a.sites["weights"] == ("weights/a/kernel",)
    assert a.sites["validation/activations"] == ("validation/activations/a",)
    assert a.sites["changes/activations"] == ("changes/activations/a",)
    assert rows[2].after == ("a",)


def test_the_first_of_several_losses_is_shown(written: Callable[..., Written]) -> None:
    """A step with several optimizers has no `loss` and no `learning_rate` without a name."""
    run = written().add(
        range(3),
        lambda step: {"loss/d_optimizer": step, "loss/g_optimizer": -step, "learning_rate/d_optimizer": 0.5},
    )
    g = gathered(run)
    assert g.survey.loss.values.tolist() == [0.0, 1.0, 2.0]
    assert page_facts.rates(g)[0] == (0, 0.5)
    assert payload.series(g)[0]["count"] == 3


def test_a_run_without_a_model_description_still_has_rows() -> None:
    assert [row.name for row in rows_of(None, ["activations/x", "weights/y/kernel"])] == ["x", "y"]


def test_measures_equal_those_of_the_table(written: Callable[..., Written]) -> None:
    rng = np.random.default_rng(0)

    def at(step: int) -> dict[str, Any]:
        return {
            "activations/a": np.maximum(rng.normal(size=(4, 5)), 0),
            "gradients/a": rng.normal(size=(4, 5)) * 1e-3,
            "weights/a/kernel": rng.normal(size=(3, 5)),
            "weights/a/bias": rng.normal(size=5),
            "updates/a/kernel": rng.normal(size=(3, 5)) * 1e-2,
            "updates/a/bias": rng.normal(size=5) * 1e-1,
        }

    run = written().add(range(8), at)
    g, table = gathered(run), fs.open(run.path)
    assert 2.0 ** numbers(g, "gradients.rms")[0] == pytest.approx(
        table.series("gradients/a", "rms"), rel=6e-3
    )
    frame = table.frame("activations/a")
    assert numbers(g, "activations.zeros")[0] == pytest.approx(frame["zeros"] / frame["count"], abs=1e-4)
    assert 2.0 ** numbers(g, "activations.max")[0] == pytest.approx(frame["max"], rel=6e-3)

    def length(kind: str) -> Any:
        parts = [table.frame(f"{kind}/a/{w}") for w in ("kernel", "bias")]
        return np.sqrt(sum(part["rms"] ** 2 * part["count"] for part in parts))

    assert 2.0 ** numbers(g, "updates.ratio")[0] == pytest.approx(
        length("updates") / length("weights"), rel=6e-3
    )


def test_following_a_run_gives_the_same_as_reading_it_once(written: Callable[..., Written]) -> None:
    run = written()
    tensors = steady(NAMES, lambda step, name, value: value * (1 + (step * 7 % 13) / 10))
    run.add(range(30), tensors)
    g = gathered(run)
    g.matrix("gradients.rms", "past"), g.matrix("gradients.rms", "change")
    assert not g.update()
    for first in (30, 55, 56):
        run.add(range(first, first + {30: 25, 55: 1, 56: 20}[first]), tensors)
        assert g.update()
    fresh = gathered(run)
    for mode in ("absolute", "past", "change", "start"):
        assert np.array_equal(
            numbers(g, "gradients.rms", mode), numbers(fresh, "gradients.rms", mode), equal_nan=True
        )
    assert g.generation == 0
    assert page_facts.head(g) | {"speed": None} == page_facts.head(fresh) | {"speed": None}


def test_a_layer_that_appears_later_gets_its_row(written: Callable[..., Written]) -> None:
    run = written().add(range(5), steady("ab"))
    g = gathered(run)
    assert [row.name for row in g.rows] == ["a", "b"]
    run.add(range(5, 10), steady("abc"))
    g.update()
    assert [row.name for row in g.rows] == ["a", "b", "c"]
    assert g.generation == 1
    assert np.isnan(numbers(g, "activations.rms")[2, :5]).all()
    assert np.isfinite(numbers(g, "activations.rms")[2, 5:]).all()


def test_a_moment_has_the_exact_numbers_of_this_and_the_previous_step(
    written: Callable[..., Written],
) -> None:
    run = written()
    for first in (0, 10, 20):
        run.add(range(first, first + 10, 2), steady(NAMES, lambda s, n, v: v + s))
    found = payload.moment(gathered(run), "b", 20, "activations.rms")
    site = next(site for site in found["sites"] if site["site"] == "activations/b")
    assert (site["now"]["step"], site["now"]["mean"]) == (20, 20.5)
    assert (site["before"]["step"], site["before"]["mean"]) == (18, 18.5)
    with pytest.raises(RunError, match="layer"):
        payload.moment(gathered(run), "nobody", 20, "activations.rms")


def test_the_step_that_a_cell_of_many_steps_shows_is_found(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, object]:
        value = {21: 64.0, 27: 2.0**-9, 29: float("nan")}.get(step, 1.0)
        return {"activations/a": np.full((2, 3), value), "activations/b": np.full((2, 3), 4.0)}

    g = gathered(written(("a", "b")).add(range(0, 200, 1), at))

    def shown(mark: str, row: str = "a") -> int:
        cell = payload.Cell(row, 4, 1, mark)  # steps 16 to 31
        facts, arrays = payload.single(g, "activations.rms", "absolute", None, 0, cell=cell)
        assert arrays["flags"].shape == (2, 1), "all rows, that step alone"
        return int(facts["step"])

    assert (shown("high"), shown("low"), shown("nan"), shown("high", "b")) == (21, 27, 29, 16)
    assert payload.single(g, "activations.rms", "absolute", None, 21)[1]["low"][0, 0] == (6 + 128) * 64
    with pytest.raises(RunError, match="a column of the picture"):
        payload.single(g, "activations.rms", "absolute", None, 0, cell=payload.Cell("a", 4, 99, "low"))


def test_recorded_steps_are_counted(written: Callable[..., Written]) -> None:
    g = gathered(written(("a",)).add(range(0, 100, 10), steady(("a",))))
    for measure in ("activations.rms", ""):
        moved = [
            payload.single(g, measure, "absolute", None, step, by)[0]["step"]
            for step, by in ((50, 1), (50, -1), (50, 0), (55, 1), (55, -1), (90, 3), (0, -2))
        ]
        assert moved == [60, 40, 50, 60, 50, 90, 0]


def test_a_distribution_keeps_a_value_that_occurred_once(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        found = np.ones((100, 10))
        if step == 700:
            found[0, 0] = 2.0**20
        return {"activations/a": found}

    run = written()
    for first in range(0, 1000, 250):
        run.add(range(first, first + 250), at)
    facts, arrays = payload.distribution(gathered(run), ["activations/a"], 100)["activations/a"]
    share = arrays["share"]
    top = facts["low"] + share.shape[1] - 1
    assert top == 20 + 129
    assert np.flatnonzero(share[:, -1]).tolist() == [70]


def test_an_empty_run_is_not_an_error(written: Callable[..., Written]) -> None:
    g = gathered(written())
    assert g.rows == []
    assert page_facts.head(g)["measures"] == []
    json.dumps(plain_json(page_facts.head(g)), allow_nan=False)


def test_a_later_attempt_replaces_repeated_steps(written: Callable[..., Written], tmp_path: Any) -> None:
    from fitscope.store import RunWriter

    run = written().add(range(20), steady(NAMES))
    g = gathered(run)
    again = RunWriter.attempt(tmp_path / "runs", "first", {"model": described(NAMES)}, start_step=10)
    run.writer.close("interrupted")
    run.writer = again
    run.add(range(10, 15), steady(NAMES, lambda s, n, v: 2 * v))
    g.update()
    assert g.generation == 1
    assert g.matrix("activations.rms").steps.tolist() == list(range(15))
    assert numbers(g, "activations.rms")[0].tolist() == [0.0] * 10 + [1.0] * 5


def test_packed_arrays_are_at_the_offsets_in_the_header() -> None:
    codes = np.array([[1, 258], [0, 65535]], np.uint16)
    data = pack({"x": float("nan")}, {"a": codes, "b": np.array([2.5]), "c": codes[:, :0]})
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    arrays = [["a", "uint16", [2, 2]], ["b", "float64", [1]], ["c", "uint16", [2, 0]]]
    assert header == {"facts": {"x": "NaN"}, "arrays": arrays}
    body = data[4 + length :]
    assert (4 + length) % 8 == 0
    # +1, +257; -1 (to above), -1 (to the left, past 0): as 2, 514, 1, 1.
    assert list(body[:8]) == [0, 2, 0, 0, 2, 2, 1, 1], "high bytes first, then the low ones"
    assert np.frombuffer(body[8:16], "<f8").tolist() == [2.5]


def test_kept_matrices_are_bounded_and_read_again_on_request(
    written: Callable[..., Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fitscope.show.data.gather.KEEP_BYTES", 20_000)
    g = gathered(written().add(range(300), steady(NAMES, lambda s, n, v: v * (1 + s % 7))))
    asked = [(m.key, mode) for m in g.measures for mode in ("absolute", "past", "change")]
    first = {question: numbers(g, *question) for question in asked}
    assert len(g._modes) <= 1
    assert len(g._filled) <= 3, "what the facts need, and the one asked for last"
    for question in asked:
        assert np.array_equal(numbers(g, *question), first[question], equal_nan=True), question


def test_rows_that_become_a_part_are_not_taken_twice(
    written: Callable[..., Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a long run the newest rows wait for a part: what was seen of them before is not begun anew."""
    monkeypatch.setattr("fitscope.store.parts.SHARE", 2)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 3, 2, 3))

    def at(step: int) -> dict[str, Any]:
        found = {f"activations/{name}": values[step, n] for n, name in enumerate(NAMES)}
        return {"loss": values[step, 0, 0, 0], **found}

    run = written().add(range(4), at)
    g = gathered(run)
    exchanged = 0
    for step in range(4, 60):
        run.add([step], at)
        if step % 4 == 1:  # some of what has become a part was not seen before
            continue
        before = set(g.parts)
        g.update()
        exchanged += any(part.becomes for part in before - set(g.parts))
        fresh = gathered(run)
        for measure in ("activations.rms", "activations.max"):
            assert np.array_equal(numbers(g, measure), numbers(fresh, measure), equal_nan=True)
        assert g.survey.scalars["loss"].steps.tolist() == list(range(step + 1))
        assert np.array_equal(g.survey.scalars["loss"].values, fresh.survey.scalars["loss"].values)
        assert g.survey.sites == fresh.survey.sites
        assert [part.key for part in g.parts] == sorted(part.key for part in g.parts)
        assert exact.rows_at(g, ["activations/a"], step, ["rms"]) == exact.rows_at(
            fresh, ["activations/a"], step, ["rms"]
        )
    assert exchanged > 3
    assert g.generation == 0
    run.writer.close()
    g.update()
    assert g.generation == 0
    steps, counts = exact.histograms(g, ["activations/a"])["activations/a"]
    assert steps.tolist() == list(range(60))
    assert counts.sum() == 60 * 6
    late = numbers(g, "activations.std")  # read only now, from the parts
    assert np.array_equal(late, numbers(gathered(run), "activations.std"), equal_nan=True)


def test_histograms_of_a_large_part_are_added_up(written: Callable[..., Written]) -> None:
    """A part with more steps than a picture has columns: every value is still in one of them."""
    run = written().add(range(100), lambda step: {"activations/a": np.full((2, 3), 2.0 ** (step % 10))})
    g = gathered(run)
    steps, counts = exact.histograms(g, ["activations/a"], most=20)["activations/a"]
    assert steps.tolist() == list(range(0, 100, 5))
    assert (counts.sum(axis=1) == 5 * 6).all()
    assert (counts[:, 256 + 129 : 256 + 139].sum(axis=0) == 60).all()


def test_the_learning_rate_is_given_where_it_changes(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        rate = 0.1 if step < 40 else 0.05 if step < 80 else 0.0125
        return {"activations/a": np.ones(3), "learning_rate": np.float32(rate)}

    told = page_facts.rates(gathered(written().add(range(100), at)))
    assert told == [(0, 0.1), (39, 0.1), (40, 0.05), (79, 0.05), (80, 0.0125), (99, 0.0125)]


def test_a_long_schedule_of_the_learning_rate_is_few_points(written: Callable[..., Written]) -> None:
    run = written().add(range(1000), lambda step: {"learning_rate": np.float32(0.1 * 0.99**step)})
    told = page_facts.rates(gathered(run))
    assert len(told) <= 128
    assert told[0] == (0, 0.1)
    assert told[-1] == (999, float(f"{np.float32(0.1 * 0.99**999):.4g}"))


def test_a_run_without_a_learning_rate_has_no_lane_for_it(written: Callable[..., Written]) -> None:
    g = gathered(written().add(range(3), steady(NAMES, lambda s, n, v: v)))
    assert [lane for lane in page_facts.now(g)["lanes"] if lane.get("curve")] == []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the parts that are read, as often as they are."""
    found: list[str] = []
    take = Table.take

    def counted(self: Table, part: Part, *args: Any) -> Any:
        found.append(part.key)
        return take(self, part, *args)

    monkeypatch.setattr(Table, "take", counted)
    return found


def test_the_first_look_reads_each_part_once(written: Callable[..., Written], reads: list[str]) -> None:
    run = written()
    for first in range(0, 40, 10):
        run.add(range(first, first + 10), steady(NAMES, lambda s, n, v: v))
    g = gathered(run)
    g.matrix(g.measures[0].key)
    assert len(reads) == len(set(reads)) == 4


def test_a_row_that_appears_later_keeps_the_data_read_before(
    written: Callable[..., Written], reads: list[str]
) -> None:
    run = written()
    tensors = steady(NAMES, lambda s, n, v: v * (1 + s))

    def without_b(step: int) -> dict[str, Any]:
        return {site: tensor for site, tensor in tensors(step).items() if not site.endswith("/b")}

    run.add(range(10), without_b).add(range(10, 20), tensors)
    g = gathered(run)
    assert len(reads) == len(set(reads)) == 2
    seen = numbers(g, "activations.rms")
    places = {row.name: i for i, row in enumerate(g.rows)}
    assert np.isnan(seen[places["b"], :10]).all()
    assert np.isfinite(seen[places["b"], 10:]).all()
    for name in set(NAMES) - {"b"}:
        assert seen[places[name]] == pytest.approx(
            np.log2(1 + np.arange(20)) + seen[places[name], 0], abs=0.02
        )


def test_a_row_takes_in_a_weight_that_appears_later(
    written: Callable[..., Written], reads: list[str]
) -> None:
    kernel = {"weights/a/kernel": np.full(3, 2.0)}
    run = written().add(range(5), lambda step: kernel)
    run.add(range(5, 10), lambda step: {**kernel, "weights/a/bias": np.full(3, 4.0)})
    g = gathered(run)
    assert len(reads) == len(set(reads)) == 2
    both = np.log2(np.sqrt((2**2 + 4**2) / 2))
    assert numbers(g, "weights.rms")[0] == pytest.approx([1.0] * 5 + [both] * 5, abs=0.02)


def test_a_large_run_is_read_in_several_updates() -> None:
    """The first rank first; what is left comes with the next updates, and in the end all is as if it were taken at once."""
    store = Memory()
    writers = [RunWriter.share(store, "r", {}, attempt=0, start_step=0, world=3, rank=n) for n in range(3)]
    for step in range(4):
        for writer in writers:
            tensor = np.full((2, 3), 1 + step + writer.rank, np.float32)
            at = Moment(step, 0, step, 1e9 + step)
            writer.write([Record(Site("activations", "d"), at, tensor.shape, "float32", host.reduce(tensor))])
            writer.flush()
    g, whole = Gathered(fs.open(store)), Gathered(fs.open(store))
    assert g.update(most=4)
    assert {part.key.split("/")[1] for part in g.parts} == {"r00000"}
    assert g.survey.last_step == 3
    assert g.update(most=4)
    assert g.update(most=4)
    assert not g.update(most=4)
    whole.update()
    assert list(g.parts.values()) == list(whole.parts.values())
    one, other = (each.matrix("activations.rms").window(0, 0, 4) for each in (g, whole))
    assert repr(one) == repr(other)

"""Small forged documents that list many ranks, layers or sites: the work of a reader grows no faster than the documents."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from campaign.ground import write
from faults.forged import used
from fitscope import read
from fitscope.diagnose import Evidence, Finding, diagnose
from fitscope.diagnose.history import columns_of
from fitscope.diagnose.network import Network
from fitscope.errors import one_of
from fitscope.read import sources, untrusted
from fitscope.record import Block, Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.show.data import exact, fill, page_facts, survey
from fitscope.show.data.facts import placed
from fitscope.show.data.gather import Gathered
from fitscope.show.data.rows import Row, rows_of
from fitscope.show.overview import Overview
from fitscope.show.summary import summary
from fitscope.show.text import Pen
from fitscope.sites import Site
from fitscope.store import Memory, RunWriter

pytestmark = pytest.mark.filterwarnings("ignore::fitscope.errors.FitscopeWarning")


def lines(action: Callable[[], object]) -> int:
    """How many lines of Python an action runs, also those of a comprehension for each item."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def linear(make: Callable[[int], Callable[[], object]], few: int) -> None:
    """Twice as much takes about twice the work, not four times."""
    for number in (few, 2 * few):  # what is imported or computed once
        make(number)()
    assert lines(make(2 * few)) < 2.6 * lines(make(few))


def flat(number: int) -> list[dict[str, Any]]:
    return [{"path": f"l{n}"} for n in range(number)]


def marked(number: int) -> list[dict[str, Any]]:
    return [{"path": f"block_{n}"} for n in range(number)]


def nested(number: int) -> list[dict[str, Any]]:
    return [{"path": f"block{n // 2}/l{n}", "from": [f"block{n // 2}/l{n - 1}"]} for n in range(number)]


@pytest.mark.parametrize("layers", [flat, nested])
def test_a_model_of_many_layers(layers: Callable[[int], list[dict[str, Any]]]) -> None:
    linear(lambda number: lambda: Network({"layers": layers(number)}), 200)


@pytest.mark.parametrize("layers", [flat, nested, marked])
def test_the_rows_of_many_layers(layers: Callable[[int], list[dict[str, Any]]]) -> None:
    def make(number: int) -> Callable[[], object]:
        model = {"layers": layers(number)}
        sites = [f"activations/{layer['path']}" for layer in model["layers"]]
        return lambda: rows_of(model, sites)

    linear(make, 200)


def dead(layers: int) -> Evidence:
    """Layers behind a ReLU that give only zeros, in a chain."""
    chain = [
        {"path": f"l{n}", "class": "Dense", "activation": "relu", "inbound": [f"l{n - 1}"] if n else [], "data_format": "channels_first"}
        for n in range(layers)
    ]  # fmt: skip
    evidence, steps = Evidence(None, {"layers": chain}), np.arange(8)
    columns = columns_of(count=np.full(8, 4), zeros=np.full(8, 4), mean=np.zeros(8), rms=np.zeros(8))
    for n in range(layers):
        evidence.fill(Site("activations", f"l{n}"), "float32", (4, 4), steps, columns)
    return evidence


def test_the_rules_for_many_layers() -> None:
    few = diagnose(dead(3))
    assert [each.layer for each in (few[0], *few[0].consequences)] == ["l0", "l1", "l2"]

    def make(number: int) -> Callable[[], object]:
        evidence = dead(number)
        return lambda: diagnose(evidence)

    linear(make, 300)


def test_very_many_findings_of_a_rule_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitscope.diagnose.MOST_FINDINGS", 3)
    found = diagnose(dead(10), rules=["dead_relu"])
    said = [each.message for each in (*found, *found[0].consequences)]
    assert len(said) == 4
    assert said[-1] == "7 more layers have this problem; the worst and earliest 3 are listed."


def test_more_sites_than_rules_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitscope.diagnose.evidence.MOST_SITES", 5)
    assert diagnose(dead(5)), "so many are judged"
    found = diagnose(dead(6))
    assert list(found) == []
    assert found.summary.startswith("0 of ")
    assert "the run has more than " in found.summary
    evidence = Evidence()
    evidence.take(block([f"l{n}" for n in range(6)]))
    assert evidence.crowded, "the writer's thread too"
    assert len(evidence.histories) <= 5


def test_findings_and_rows_are_matched_in_one_pass() -> None:
    def make(number: int) -> Callable[[], object]:
        found = [Finding("dead_relu", "error", layer=f"b{n}") for n in range(number)]
        rows = [Row(f"b{n}/relu", "ReLU") for n in range(number)]
        assert placed(found, rows)[-1].row == f"b{number - 1}/relu"
        return lambda: placed(found, rows)

    linear(make, 200)


def test_connections_that_a_nested_model_multiplies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its first layers takes all that the model takes."""
    sources = [{"path": f"s{n}", "from": [f"s{n - 1}"] if n else []} for n in range(20)]
    inside = [{"path": f"net/{n}", "from": [f"net/{n - 1}"] if n % 2 else []} for n in range(20)]
    model = {"layers": [*sources, {"path": "net", "from": [one["path"] for one in sources]}, *inside]}
    assert Network(model).inbound("net/0") == [f"s{n}" for n in range(20)]
    monkeypatch.setattr("fitscope.diagnose.network.MOST_EDGES", 200)
    assert not Network(model).graph


def test_the_way_between_recorded_layers_is_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [{"path": f"l{n}", "from": [f"l{n - 1}"] if n else []} for n in range(50)]
    network = Network({"layers": chain})
    monkeypatch.setattr("fitscope.diagnose.network.MOST_WALKED", 100)
    found = [network.producers(f"l{n}", ["l0"]) for n in range(49, 39, -1)]
    assert found[:2] == [["l0"]] * 2
    assert found[-1] == []


def test_the_guess_at_a_name_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"layer{n}" for n in range(1000)]
    assert "Did you mean 'layer999'" in one_of(names, "layr999")
    monkeypatch.setattr("fitscope.errors.COMPARED", 500)
    assert "Did you mean 'layer1'" in one_of(names, "layr1")
    assert "Did you mean 'layer999'" not in one_of(names, "layr999")
    assert "and 980 more" in one_of(names, "layr999")


def test_layers_between_two_that_were_recorded_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [{"path": f"l{n}", "from": [f"l{n - 1}"] if n else []} for n in range(50)]
    assert Network({"layers": chain}).producers("l49", ["l0"]) == ["l0"]
    monkeypatch.setattr("fitscope.diagnose.network.FARTHEST", 20)
    assert Network({"layers": chain}).producers("l49", ["l0"]) == []
    assert Network({"layers": chain}).producers("l49", ["l40"]) == ["l40"]


@pytest.mark.parametrize(
    "layers",
    [
        [{"path": "x" * (untrusted.LONGEST_NAME + 1)}],
        [{"path": "x" + "/x" * (untrusted.DEEPEST + 1)}],
        [{"path": f"l{n}"} for n in range(untrusted.MOST_LAYERS + 1)],
    ],
    ids=["long", "deep", "many"],
)
def test_the_layers_of_a_model_are_bounded(rank: Path, layers: list[dict[str, str]]) -> None:
    path = rank.parents[1] / "attempts" / "0000.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "model": {"name": "net", "layers": layers}}))
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert run.model == {"name": "net"}
    assert [damage.reason for damage in run.damaged] == ["its field 'layers' is a list"]


def block(names: list[str], step: int = 0, kind: str = "activations") -> Block:
    shape, tensor = ((), np.float32(1)) if kind == "metrics" else ((2, 2), np.ones((2, 2), np.float32))
    at, stats = Moment(step, 0, step, 1.0), reduce(tensor)
    (made,) = Block.of([Record(Site.parse(f"{kind}/{name}"), at, shape, "float32", stats) for name in names])
    return made


class Scans:
    """NumPy, and how often all rows of a table are looked through."""

    count = 0

    def __getattr__(self, name: str) -> Any:
        self.count += name in ("flatnonzero", "isin")
        return getattr(np, name)


@pytest.mark.parametrize("kind", ["activations", "metrics"])
def test_all_rows_are_not_looked_through_for_each_site(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def scans(sites: int) -> int:
        store, names = Memory(), [f"l{n}" for n in range(sites)]
        writer = RunWriter.create(store, "run")
        for step in range(3):
            writer.write([], blocks=[block(names, step, kind)])
        writer.close()
        counting = Scans()
        for module in (exact, fill, survey, sources):
            monkeypatch.setattr(module, "np", counting)
        gathered = Gathered(read.open(store, "run"))
        gathered.update()
        told = Overview(gathered)
        found = exact.rows_at(gathered, [f"{kind}/{name}" for name in names], 1, ["mean"])
        monkeypatch.undo()
        assert len(told.layers) == (sites if kind == "activations" else 0)
        assert [row["step"] for row in found[f"{kind}/l7"]] == [1, 0]
        monkeypatch.setattr(sources, "np", counting)
        column = pa.DictionaryArray.from_arrays(np.tile(np.arange(sites, dtype=np.int32), 2), names)
        assert sources.rows_by_site(column)["l1"][0][1].tolist() == [1, sites + 1]
        return counting.count

    assert scans(40) == scans(20)


def test_rows_beyond_the_most_that_are_drawn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitscope.show.data.gather.MOST_ROWS", 4)
    store = Memory()
    writer = RunWriter.create(store, "run")
    writer.write([], blocks=[block([f"l{n}" for n in range(10)])])
    writer.close()
    gathered = Gathered(read.open(store, "run"))
    gathered.update()
    assert len(gathered.rows) == 4
    assert "6 more layers are not drawn" in page_facts.problems(gathered)
    console = Console(file=io.StringIO(), width=100)
    console.print(summary(gathered, 100, Pen.of(console)))
    assert "6 more layers are not drawn" in console.file.getvalue()  # type: ignore[attr-defined]


class Asked(Memory):
    """A store that counts its requests."""

    count = 0

    def get(self, key: str, most: int | None = None) -> bytes:
        self.count += 1
        return super().get(key, most)

    def list(self, folder: str = "") -> list[str]:
        self.count += 1
        return super().list(folder)

    def folder(self, name: str) -> Asked:
        inner = super().folder(name)
        counting = Asked()
        counting.__dict__ = inner.__dict__
        counting.get = lambda key, most=None: self.get(f"{name.rstrip('/')}/{key}", most)  # type: ignore[method-assign]
        counting.list = lambda folder="": self.list(f"{name.rstrip('/')}/{folder}".rstrip("/"))  # type: ignore[method-assign]
        return counting


def forged(**facts: Any) -> Asked:
    store = Asked()
    write(store, steps=3)
    key = "run/attempts/0000.json"
    store.put(key, json.dumps({**json.loads(store.get(key)), **facts}).encode())
    store.count = 0
    return store


def test_ranks_without_a_folder_are_not_read() -> None:
    def requests(world: int) -> int:
        store = forged(world=world, sampled=[*range(world)])
        run = read.open(store, "run")
        assert run.last_step == 2
        assert len(run.series("activations/a", "min")) == 3
        assert len(run.ranks) == world
        assert run.ranks["status"].value_counts().to_dict() == {"complete": 1, "not started": world - 1}
        return store.count

    assert requests(untrusted.MOST_RANKS) == requests(2)


def test_many_attempts(rank: Path, tmp_path: Path) -> None:
    def make(number: int) -> Callable[[], object]:
        place = tmp_path / f"{number}"
        shutil.copytree(rank.parents[1], place, dirs_exist_ok=True)
        for n in range(1, number):
            document = {"attempt": n, "start_step": 3, "world": 2}
            (place / "attempts" / f"{n:04d}.json").write_text(json.dumps(document))
        return lambda: read.open(place).last_step

    linear(make, 250)

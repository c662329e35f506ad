"""Forged documents that name much with few bytes: the work of a reader grows no faster than the documents."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.ground import write
from faults.forged import used
from fitscope import read
from fitscope.diagnose.network import Network
from fitscope.read import untrusted
from fitscope.show.data.rows import rows_of
from fitscope.store import Memory

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


def nested(number: int) -> list[dict[str, Any]]:
    return [{"path": f"block{n // 2}/l{n}", "from": [f"block{n // 2}/l{n - 1}"]} for n in range(number)]


@pytest.mark.parametrize("layers", [flat, nested])
def test_a_model_of_many_layers(layers: Callable[[int], list[dict[str, Any]]]) -> None:
    linear(lambda number: lambda: Network({"layers": layers(number)}), 200)


@pytest.mark.parametrize("layers", [flat, nested])
def test_the_rows_of_many_layers(layers: Callable[[int], list[dict[str, Any]]]) -> None:
    def make(number: int) -> Callable[[], object]:
        model = {"layers": layers(number)}
        sites = [f"activations/{layer['path']}" for layer in model["layers"]]
        return lambda: rows_of(model, sites)

    linear(make, 200)


def test_layers_between_two_that_were_recorded_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [{"path": f"l{n}", "from": [f"l{n - 1}"] if n else []} for n in range(50)]
    assert Network({"layers": chain}).producers("l49", ["l0"]) == ["l0"]
    monkeypatch.setattr("fitscope.diagnose.network.FARTHEST", 20)
    assert Network({"layers": chain}).producers("l49", ["l0"]) == []
    assert Network({"layers": chain}).producers("l49", ["l40"]) == ["l40"]


def test_the_name_of_a_layer_is_bounded(rank: Path) -> None:
    path = rank.parents[1] / "attempts" / "0000.json"
    long = "/x" * (untrusted.LONGEST_NAME // 2 + 1)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "model": {"name": "net", "layers": [{"path": long}]}}))
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert run.model == {"name": "net"}


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

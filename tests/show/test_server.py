"""The live page's side of the server: which runs it has, and what a tick tells."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import shutil
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope.errors import RunError, StoreError
from fitscope.show.app import Pages, Parameters, Shelf, Watcher
from fitscope.show.serve import Server
from fitscope.store import RunWriter

from .conftest import Written, described, steady


def pages(tmp_path: Path) -> Pages:
    return Pages(Shelf(tmp_path / "runs"), 1.0, lambda: False)


def told(tick: bytes) -> dict[str, Any]:
    """The facts of a tick; empty if there was none."""
    if not tick:
        return {}
    data = gzip.decompress(base64.b64decode(tick))
    found: dict[str, Any] = json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["facts"]
    return found


def test_a_tick_contains_changed_columns_without_new_ones(
    written: Callable[..., Written], tmp_path: Path
) -> None:
    run = written().add(range(20), steady("abc"))
    for mode in ("absolute", "change"):
        watcher = Watcher(pages(tmp_path), Parameters({"measure": "activations.rms", "mode": mode}))
        first = told(watcher.tick())
        assert watcher.tick() == b""
        run.add([7], lambda step: {"activations/b": np.full((2, 3), 9.0)})
        then = told(watcher.tick())
        assert then["matrix"]["rewritten"] > first["matrix"]["rewritten"]
        assert then["matrix"]["count"] == first["matrix"]["count"]


def test_every_run_that_is_listed_can_be_opened(written: Callable[..., Written], tmp_path: Path) -> None:
    for name, layers in (("first", "abc"), ("second", "ab"), ("third", "a")):
        written(name=name).add(range(5), steady(layers))
    runs = tmp_path / "runs"
    (runs / "first").rename(runs / "renamed")
    shutil.copytree(runs / "second", runs / "copy")
    shelf = Shelf(runs)
    assert set(shelf.briefs()) == {"renamed", "second", "copy", "third"}
    for name, rows in (("renamed", 3), ("second", 2), ("copy", 2), ("third", 1), (None, 1)):
        with shelf.run(name) as g:
            assert len(g.rows) == rows
    with shelf.run("second") as one, shelf.run("copy") as other:
        assert one is not other
    with pytest.raises(RunError, match="'first'"), shelf.run("first"):
        pass
    with pytest.raises(RunError, match="'second'"), Shelf(runs / "renamed").run("second"):
        pass
    with Shelf(runs / "renamed").run("first") as g:  # of one run alone the id is its name
        assert len(g.rows) == 3


def test_the_newest_run_is_found_at_each_request(written: Callable[..., Written], tmp_path: Path) -> None:
    written(name="z").add(range(5), steady("a"))
    shelf = Shelf(tmp_path / "runs")
    with shelf.run(None) as g, shelf.run("z") as same:
        assert g is same
    written(name="a").add(range(5), steady("a"))
    with shelf.run(None) as g:
        assert g.run.id == "a"


def test_few_runs_are_kept_open_and_those_on_a_page_stay(
    written: Callable[..., Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fitscope.show.shelf.KEEP", 2)
    for name in "abcde":
        written(name=name).add(range(5), steady("abc"))
    all_pages = pages(tmp_path)
    shelf = all_pages._shelf
    watcher = Watcher(
        all_pages, Parameters({"run": "a", "other": "b", "mode": "run", "measure": "activations.rms"})
    )
    watcher.tick()
    seen = {}
    for name in "abcde":
        with shelf.run(name) as g:
            seen[name] = weakref.ref(g)
        del g
    gc.collect()
    assert [name for name, ref in seen.items() if ref() is not None] == ["a", "b", "d", "e"]
    with shelf.run("a") as g:
        assert g is seen["a"](), "it was not read again"
    del g, watcher
    gc.collect()
    assert [name for name, ref in seen.items() if ref() is not None] == ["a", "e"]


def test_an_impossible_path_is_an_error_before_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Server(tmp_path / "file")
    with Server(tmp_path / "file to be") as server:
        assert server.port


def test_a_port_is_taken_from_the_moment_its_address_is_known(tmp_path: Path) -> None:
    with Server(tmp_path) as server, pytest.raises(StoreError, match="free port"):
        Server(tmp_path, server.port)


def test_serving_in_a_program_leaves_its_signals_alone(tmp_path: Path) -> None:
    ours = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in ours]
    with Server(tmp_path).start() as server:
        assert [signal.getsignal(number) for number in ours] == before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert server._thread is not None
        assert server._thread.is_alive(), "it ends with the program, or when told to"
        assert not server._server.should_exit
    assert [signal.getsignal(number) for number in ours] == before


def test_a_place_is_listed_again_without_opening_its_runs_again(
    written: Callable[..., Written], tmp_path: Path
) -> None:
    """A run that has ended costs two requests, however many processes wrote it. A page opens each run once."""
    from obstore.store import LocalStore

    from fitscope.store import Remote

    runs = tmp_path / "other"
    store = Remote(LocalStore(str(runs), mkdir=True), name="local")
    about = {"model": described("ab")}
    for name in ("first", "second"):
        for rank in range(12):
            writer = RunWriter.share(store, name, about, attempt=0, start_step=0, world=12, rank=rank)
            Written(writer).add(range(5), steady("ab")).close()
    shelf = Shelf(store)
    before = shelf.briefs()
    asked = store.requests
    with shelf.run("first") as g:
        assert len(g.rows) == 2
    assert store.requests - asked < 2 * 12, "a part of each rank; their statuses were read before"
    asked = store.requests
    again = shelf.briefs()
    assert store.requests - asked == 1 + 2 * 2
    assert [*again.values()] == [*before.values()]
    assert {brief.status for brief in again.values()} == {"complete"}
    with shelf.run("first") as g, shelf.run("first") as same:
        assert g is same

    shutil.rmtree(runs / "second")
    shutil.copytree(written(name="third").add(range(7), steady("a")).close().path, runs / "second")
    found = shelf.briefs()
    assert (found["second"].id, found["second"].last_step) == ("third", 6)
    assert found["first"] == before["first"]


def test_a_listed_run_that_goes_on_is_seen(written: Callable[..., Written], tmp_path: Path) -> None:
    run = written(name="r").add(range(5), steady("a"))
    shelf = Shelf(tmp_path / "runs")
    assert shelf.briefs()["r"].last_step == 4
    run.add(range(5, 8), steady("a"))
    assert (shelf.briefs()["r"].last_step, shelf.briefs()["r"].status) == (7, "running")
    run.close()
    assert shelf.briefs()["r"].status == "complete"
    run.writer = RunWriter.attempt(tmp_path / "runs", "r", {}, start_step=8)
    run.add(range(8, 10), steady("a"))
    assert (shelf.briefs()["r"].last_step, shelf.briefs()["r"].status) == (9, "running")
    (tmp_path / "runs" / "r" / "run.json").write_text("{")
    assert "damaged" in str(shelf.briefs()["r"].problem)

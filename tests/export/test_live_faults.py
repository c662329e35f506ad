"""Live exports where something is in the way: a locked database, a sink that fails, files that are there already."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import fitscope as fs
from fitscope.errors import FitscopeWarning, WatchError
from fitscope.export import live, tensorboard
from fitscope.export.live import tables as live_tables
from fitscope.pipeline.sinks import PATIENCE, Sinks
from fitscope.record import Moment
from fitscope.store import RunWriter

from .live_training import T0, Training, ask, compare, contents

pytestmark = pytest.mark.once


# ---- what goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "duckdb here"])
def test_rows_wait_while_another_process_has_the_database(
    tmp_path: Path, steps: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, here = kind.partition(" ")
    training = Training(tmp_path, only=["database", "npy"], kind=kind)
    steps(training, 0, 2)
    path = str(tmp_path / "all.db")
    if kind == "sqlite":
        other: Any = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs, timeout=0))
    elif here:
        other = duckdb.connect(path, read_only=True)
    else:
        code = f"import duckdb; c = duckdb.connect({path!r}); print('open', flush=True); input()"
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"open\n"
    steps(training, 2, 2 + PATIENCE + 3)
    assert training.told == [], "to wait is no error"
    if isinstance(other, subprocess.Popen):
        other.communicate(b"\n")
    else:
        other.close()
    monkeypatch.undo()
    training.close()
    compare(tmp_path, kind)


def test_rows_are_bounded_if_another_process_keeps_the_database(
    tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tables, "PAUSE", 0.0)
    monkeypatch.setattr(live_tables, "MOST_MEMORY", 5_000)
    training = Training(tmp_path, only=["database"], kind="duckdb")
    training.flush()
    with duckdb.connect(str(tmp_path / "all.db"), read_only=True):
        steps(training, 0, 20)
        assert f"database is given up after {PATIENCE} errors in a row" in training.told[-1]
        assert "which another process keeps open" in training.told[0]
        assert "fitscope export" in training.told[0]
        training.told.clear()
        training.close()
    assert len(fs.open(tmp_path / "runs").series("loss")) == 20, "the run has everything"


def test_rows_do_not_wait_for_the_flush_when_there_are_many(
    tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tables, "FLUSH_MEMORY", 5_000)
    training = Training(tmp_path, only=["database"])
    monkeypatch.setattr(training, "flush", lambda: None)
    steps(training, 0, 30)
    ((count,),) = ask(tmp_path / "all.db", "SELECT count(*) FROM stats")
    assert count > 50


class Odd:
    """A sink that fails at some things."""

    def __init__(self, *fails: str) -> None:
        self.fails, self.calls = fails, []  # type: ignore[var-annotated]

    def __getattr__(self, action: str) -> Any:
        def act(*args: Any) -> None:
            self.calls.append(action)
            if action in self.fails:
                raise OSError(f"cannot {action}")

        return act


def test_a_failing_sink_is_reported_and_closed_and_others_continue(tmp_path: Path, make: Any) -> None:
    told: list[str] = []
    bad, good = Odd("flush"), Odd()

    def unmade(*_: Any) -> Any:
        raise OSError("no such place")

    sinks = Sinks({"never": unmade, "bad": lambda *_: bad, "good": lambda *_: good}, told.append)
    sinks.open(RunWriter.create(tmp_path / "runs", "r"))
    assert told == ["never: nothing is written there. OSError: no such place"]
    for _ in range(PATIENCE + 3):
        sinks.write([make("loss", 0, np.float32(1))], [])
        sinks.flush()
    sinks.close()
    assert told[1:-1] == ["bad: OSError: cannot flush"] * PATIENCE
    assert told[-1].startswith(f"bad is given up after {PATIENCE} errors in a row")
    assert bad.calls == ["write", "flush"] * PATIENCE + ["close"]
    assert good.calls == ["write", "flush"] * (PATIENCE + 3) + ["close"]


def test_a_sink_survives_single_errors_that_do_not_repeat(tmp_path: Path) -> None:
    told: list[str] = []
    bad = Odd()
    sinks = Sinks({"bad": lambda *_: bad}, told.append)
    sinks.open(RunWriter.create(tmp_path / "runs", "r"))
    for number in range(4 * PATIENCE):
        bad.fails = () if number % PATIENCE == 0 else ("flush",)
        sinks.flush()
    assert len(bad.calls) == 4 * PATIENCE
    assert len(told) == 4 * (PATIENCE - 1)


class Adapter:
    """NumPy is the framework."""

    def to_numpy(self, tensor: Any) -> Any:
        return tensor

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.nbytes)


def test_a_recorder_feeds_its_sinks_and_reports_their_errors(tmp_path: Path) -> None:
    from fitscope.pipeline.ending import COMPLETE
    from fitscope.pipeline.handover import Shown
    from fitscope.pipeline.recorder import Recorder
    from fitscope.plan.wants import Want, Wants
    from fitscope.sites import Site

    makers = live.sinks(
        tmp_path / "runs", database=f"sqlite:///{tmp_path / 'all.db'}", npy=tmp_path / "arrays"
    )
    sinks = {**makers, "odd": lambda *_: Odd("write")}
    recorder = Recorder(
        lambda step: RunWriter.create(tmp_path / "runs", "r", start_step=step), Adapter(), memory=10**9,
        when_full="block", sinks=sinks,
    )  # fmt: skip
    site = Site("activations", "a")
    wants = Wants({site.place: Want(stats=True, tensor=True)})
    assert recorder.ready(0)
    for step in range(4):
        at = Moment(step, 0, step, T0 + step)
        shown = {"activations/a": np.full((2, 2), step, np.float32)}
        recorder.put(at, Shown(shown, {"activations/a": site}, wants))
    with pytest.warns(FitscopeWarning, match="odd: OSError: cannot write"):
        recorder.finish(COMPLETE)
    run = fs.open(tmp_path / "runs")
    assert run.status == "complete"
    assert "odd: OSError: cannot write" in run.errors
    assert ask(tmp_path / "all.db", "SELECT status, last_step FROM runs") == [("complete", 3)]
    assert ask(tmp_path / "all.db", "SELECT step, mean FROM stats ORDER BY step") == [
        (s, s) for s in range(4)
    ]
    assert np.load(tmp_path / "arrays" / "epoch_0000_activations~a.npy")[0, 0] == 3.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"database": "postgres:///x"}, "There are: 'duckdb', 'sqlite'"),
        ({"database": "duckbd:///x"}, "Did you mean 'duckdb'"),
        ({"database": "stats.duckdb"}, "'duckdb:///stats.duckdb' or 'sqlite:///stats.sqlite'"),
        ({"database": "sqlite://stats.db"}, "an absolute path has four"),
        ({"database": "sqlite:///"}, "an absolute path has four"),
        ({"database": 3}, "to be an address"),
        ({"database": "sqlite:///DIR"}, "the name of a file"),
        ({"database": "sqlite:///DIR/text"}, "begins with something else"),
        ({"database": "duckdb:///DIR/text"}, "begins with something else"),
        ({"tensorboard": "DIR/text"}, "a directory"),
        ({"tensorboard": "s3://bucket/logs"}, "on this machine"),
        ({"tensorboard": ""}, "on this machine"),
        ({"npy": "DIR/text"}, "a directory"),
        ({"npy": 7}, "on this machine"),
        ({"npy": "DIR"}, "an empty directory"),
    ],
)
def test_bad_arguments_are_errors_at_once(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    (tmp_path / "text").write_text("this is somebody's text, and no database at all")
    placed = {n: v.replace("DIR", str(tmp_path)) if isinstance(v, str) else v for n, v in arguments.items()}
    with pytest.raises(WatchError, match=says):
        fs.Scope(tmp_path / "runs", **placed)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_tensorboard_sink_without_the_package_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(tensorboard.importlib, "import_module", missing)
    with pytest.raises(WatchError, match=r"pip install 'fitscope\[tensorboard\]'"):
        fs.Scope(tmp_path / "runs", tensorboard=tmp_path / "logs")


def test_arrays_of_another_run_are_not_overwritten(tmp_path: Path, steps: Any, make: Any) -> None:
    first = Training(tmp_path, only=["npy"])
    steps(first, 0, 3)
    first.close()
    before = contents(tmp_path / "arrays")
    makers = live.sinks(tmp_path / "runs" / "r", npy=tmp_path / "arrays")  # fine: the run may go on
    told: list[str] = []
    sinks = Sinks(makers, told.append)
    sinks.open(RunWriter.create(tmp_path / "runs", "another"))
    sinks.write([make("predictions", 0, np.ones((2, 3)), keep="both")], [])
    sinks.close()
    assert len(told) == 1
    assert "npy: nothing is written there" in told[0]
    assert contents(tmp_path / "arrays") == before


def test_a_database_that_has_another_run_of_the_same_name_is_refused(tmp_path: Path, steps: Any) -> None:
    first = Training(tmp_path, only=["database"])
    steps(first, 0, 2)
    first.close()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    second = Training(tmp_path, only=["database"])
    steps(second, 0, 2)
    assert "a database without this run" in second.told[0]
    assert ask(tmp_path / "all.db", "SELECT count(*) FROM stats WHERE site = 'loss'") == [(2,)]

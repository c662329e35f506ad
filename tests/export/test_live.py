"""Sinks beside a run: what they hold while the training goes on, and that it is what an export would make afterwards."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import fitscope as fs
from fitscope.errors import FitscopeWarning, WatchError
from fitscope.export import export_run, live, tensorboard
from fitscope.export.live import tables as live_tables
from fitscope.pipeline.sinks import PATIENCE, Sinks
from fitscope.record import Moment, Record, Samples
from fitscope.store import RunWriter

pytestmark = pytest.mark.once

T0 = 1_800_000_000.0
ALL = ("tensorboard", "database", "npy")
TABLES = ("runs", "stats", "histograms", "samples")


class Training:
    """An attempt at a run with sinks beside it, which are called as a recorder calls them."""

    def __init__(
        self, root: Path, start: int | None = None, *, only: Iterable[str] = ALL, kind: str = "sqlite"
    ) -> None:
        self.told: list[str] = []
        places = {
            "tensorboard": root / "logs", "database": f"{kind}:///{root / 'all.db'}", "npy": root / "arrays"
        }  # fmt: skip
        to = root / "runs" if start is None else root / "runs" / "r"
        makers = live.sinks(to, **{name: places[name] for name in only})
        if start is None:
            self.writer = RunWriter.create(root / "runs", "r", {"model": {"name": "net", "parameters": 7}})
        else:
            self.writer = RunWriter.attempt(root / "runs", "r", start_step=start)
        self.sinks = Sinks(makers, self.told.append)
        self.sinks.open(self.writer)

    def write(self, records: list[Record], samples: Iterable[Samples] = ()) -> None:
        self.writer.write(records, list(samples))
        self.sinks.write(records, list(samples))

    def flush(self) -> None:
        self.writer.flush()
        self.sinks.flush()

    def close(self) -> None:
        self.sinks.flush()
        self.writer.close()
        self.sinks.close()
        assert self.told == []


@pytest.fixture
def steps(make: Any) -> Callable[..., None]:
    """Trains from one step to another, three steps an epoch, each epoch with a validation of two batches."""

    def steps(training: Training, first: int, end: int, *, scale: float = 1.0, flush_every: int = 1) -> None:
        for step in range(first, end):
            epoch, batch = divmod(step, 3)
            rest: dict[str, Any] = {"epoch": epoch, "batch": batch}
            at = Moment(step, epoch, batch, T0 + step)
            some = Samples(at, "train", ids=["a", "b"], loss=np.array([step, scale]), target=np.eye(2))
            training.write(
                [
                    make("predictions", step, np.full((2, 3), scale * step, np.float32), keep="both", **rest),
                    make("loss", step, np.float32(scale / (step + 1)), **rest),
                    make("activations/a", step, np.arange(4.0) * scale - step, **rest),
                    make("weights/w", step, np.full(2, scale), keep="tensor", batched=False, **rest),
                ],
                [some],
            )
            for number, rows in enumerate((4, 2) if batch == 2 else ()):
                rest = {"epoch": epoch, "batch": number}
                seen = np.full((rows, 3), scale * (100 * epoch + number), np.float32)
                training.write(
                    [
                        make("validation/predictions", step + 1, seen, keep="both", **rest),
                        make("validation/loss", step + 1, np.float32(number + scale), keep="both", **rest),
                    ],
                    [Samples(Moment(step + 1, epoch, number, T0), "validation", loss=np.ones(rows))],
                )
            if step % flush_every == 0:
                training.flush()

    return steps


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What somebody else sees."""
    with path.open("rb") as file:
        lite = file.read(6) == b"SQLite"
    if not lite:
        with duckdb.connect(str(path), read_only=True) as database:
            return database.execute(query).fetchall()
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def compare_databases(got: Path, wanted: Path) -> None:
    for name in TABLES:
        columns = [row[0] for row in ask(wanted, f"SELECT name FROM pragma_table_info('{name}')")]
        listed = ", ".join(f'"{column}"' for column in columns if column != "exported")
        found = [sorted(map(repr, ask(path, f"SELECT {listed} FROM {name}"))) for path in (got, wanted)]
        assert found[0] == found[1], name
        assert found[1], f"{name} is empty: nothing was compared"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def compare(root: Path, kind: str = "sqlite") -> None:
    """What lies there live is what an export makes of the run."""
    export_run(root / "runs", kind, root / "after.db")
    compare_databases(root / "all.db", root / "after.db")
    export_run(root / "runs", "npy", root / "after")
    assert contents(root / "arrays") == contents(root / "after")
    assert len(contents(root / "after")) >= 3, "too little was compared"


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize("flush_every", [1, 4, 100])
def test_live_is_what_an_export_makes(
    tmp_path: Path, steps: Any, events: Any, kind: str, flush_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tables, "FLUSH_MEMORY", 5_000)
    training = Training(tmp_path, kind=kind)
    steps(training, 0, 8, flush_every=flush_every)
    training.close()
    compare(tmp_path, kind)
    (path,) = export_run(tmp_path / "runs", "tensorboard", tmp_path / "after-logs")
    (live_path,) = (tmp_path / "logs" / "r").iterdir()
    assert live_path.name == path.name
    assert said(events(live_path)) == said(events(path))
    if flush_every == 100:  # otherwise the sites of one step may come in another order
        assert live_path.read_bytes() == path.read_bytes()


def said(found: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (event.step, value.tag, event.wall_time, value.tensor.SerializeToString())
        for event in found
        for value in event.summary.value
    )


def values(found: list[Any]) -> dict[tuple[str, int], float]:
    """By tag and step; the later of two."""
    return {
        (v.tag, e.step): v.tensor.float_val[0] for e in found for v in e.summary.value if v.tensor.float_val
    }


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_others_see_it_while_it_goes_on(tmp_path: Path, steps: Any, events: Any, kind: str) -> None:
    training = Training(tmp_path, kind=kind)
    training.flush()
    assert ask(tmp_path / "all.db", "SELECT run, status, last_step FROM runs") == [("r", "running", None)]
    steps(training, 0, 5)
    seen = ask(tmp_path / "all.db", "SELECT step, value FROM stats WHERE site = 'loss' ORDER BY step")
    assert seen == [(step, float(np.float32(1 / (step + 1)))) for step in range(5)]
    assert ask(tmp_path / "all.db", "SELECT status, last_step FROM runs") == [("running", 4)]
    assert ask(tmp_path / "all.db", "SELECT count(*) FROM samples") == [(5 * 2 + 6,)]

    path = next((tmp_path / "logs" / "r").iterdir())
    got = values(events(path))
    assert {step for tag, step in got if tag == "loss"} == {0, 1, 2, 3}, "the newest step may get more yet"
    assert got["validation/loss", 3] == 1.5, "its two batches are one value"
    training.flush()
    assert ("loss", 4) in values(events(path)), "nothing more came of it"

    arrays = tmp_path / "arrays"
    assert np.load(arrays / "epoch_0000_predictions.npy")[0, 0] == 2.0
    assert np.load(arrays / "epoch_0001_predictions.npy")[0, 0] == 4.0, (
        "the newest one of an epoch that goes on"
    )
    whole = np.load(arrays / "epoch_0000_validation~predictions.npy")
    np.testing.assert_array_equal(whole[:, 0], [0, 0, 0, 0, 1, 1])
    listed = {entry["file"]: entry for entry in json.loads((arrays / "index.json").read_text())["files"]}
    assert set(listed) == {path.name for path in arrays.iterdir()} - {"index.json"}
    assert listed["epoch_0001_predictions.npy"]["step"] == 4
    training.close()
    assert ask(tmp_path / "all.db", "SELECT status FROM runs") == [("complete",)]


def test_the_last_pass_needs_nothing_to_follow(tmp_path: Path, steps: Any, events: Any) -> None:
    training = Training(tmp_path)
    steps(training, 0, 3)  # ends with a validation
    path = tmp_path / "arrays" / "epoch_0000_validation~predictions.npy"
    assert not path.exists(), "there may be more batches"
    training.flush()
    assert np.load(path).shape == (6, 3)
    assert values(events(next((tmp_path / "logs" / "r").iterdir())))["validation/loss", 3] == 1.5
    training.close()


def test_a_pass_slower_than_the_flushes_is_whole_in_the_end(tmp_path: Path, make: Any, events: Any) -> None:
    training = Training(tmp_path)
    for number in range(3):
        seen = np.full((2, number + 1), number, np.float32)  # also of another width each time
        training.write([make("validation/predictions", 5, seen, epoch=1, batch=number, keep="both")])
        training.flush()
        training.flush()
        path = tmp_path / "arrays" / "epoch_0001_validation~predictions.npy"
        assert len(np.load(path)) == 2 * (number + 1)
    training.close()
    export_run(tmp_path / "runs", "npy", tmp_path / "after")
    assert contents(tmp_path / "arrays") == contents(tmp_path / "after")
    means = [
        value.tensor.float_val[0]
        for event in events(next((tmp_path / "logs" / "r").iterdir()))
        for value in event.summary.value
        if value.tag == "validation/predictions/mean"
    ]
    assert means == [0.0, np.float32(4 / 6), np.float32(16 / 12)], "the last one is of all batches"


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize(("start", "end"), [(6, 9), (5, 9), (3, 5), (0, 1)])
def test_a_further_attempt(tmp_path: Path, steps: Any, events: Any, kind: str, start: int, end: int) -> None:
    """Goes on where it was, or does steps again; in the middle of an epoch, or after its validation."""
    first = Training(tmp_path, kind=kind)
    steps(first, 0, 6)
    first.close()
    before = contents(tmp_path / "logs" / "r")
    second = Training(tmp_path, start, kind=kind)
    second.flush()
    if start:  # else nothing is left to compare
        compare(tmp_path, kind)
        shutil.rmtree(tmp_path / "after")
        (tmp_path / "after.db").unlink()
    steps(second, start, end, scale=7.0)
    second.close()
    compare(tmp_path, kind)

    files = sorted((tmp_path / "logs" / "r").iterdir())
    assert [files[0].read_bytes()] == list(before.values()), "the first file stays as it was"
    assert len(files) == 2
    found = events(files[1])
    restarts = [event.step for event in found if event.HasField("session_log")]
    assert restarts == ([start, start] if start < 6 else [])
    got = values(found)
    run = fs.open(tmp_path / "runs")
    assert {step: value for (tag, step), value in got.items() if tag == "loss"} == {
        step: np.float32(value) for step, value in run.series("loss").items() if step >= start
    }
    if start == 3:
        assert got["validation/loss", 3] == 1.5, "the pass at the step of the restart is said again"


def test_a_sink_that_comes_later_has_what_was_before(tmp_path: Path, steps: Any) -> None:
    first = Training(tmp_path, only=[])
    steps(first, 0, 6)
    first.close()
    second = Training(tmp_path, 4)
    steps(second, 4, 7, scale=3.0)
    second.close()
    compare(tmp_path)


@pytest.mark.parametrize("load_fast", ["false", "true"])
def test_the_real_tensorboard_follows(tmp_path: Path, steps: Any, server: Any, load_fast: str) -> None:
    if load_fast == "true":
        pytest.importorskip("tensorboard_data_server", reason="TensorBoard's fast reader is not installed")
    training = Training(tmp_path, only=["tensorboard"])
    options = ("--load_fast", load_fast, "--reload_interval", "1")
    with server(tmp_path / "logs", *options) as (_, wait):

        def follow(tag: str, wanted: dict[int, float]) -> None:
            def ready(found: Any) -> bool:
                return [(step, value) for _, step, value in found] == list(wanted.items())

            wait(ready, "plugin/scalars/scalars", run="r", tag=tag)

        steps(training, 0, 6)
        training.flush()
        follow("loss", {step: float(np.float32(1 / (step + 1))) for step in range(6)})
        follow("validation/loss", {3: 1.5, 6: 1.5})
        training.close()
        second = Training(tmp_path, 3, only=["tensorboard"])
        steps(second, 3, 5, scale=2.0)
        second.flush()
        scaled = {step: (1.0 if step < 3 else 2.0) / (step + 1) for step in range(5)}
        follow("loss", {step: float(np.float32(value)) for step, value in scaled.items()})
        follow("validation/loss", {3: 1.5})
        steps(second, 5, 6, scale=2.0)
        second.close()
        follow("validation/loss", {3: 1.5, 6: 2.5})


# ---- what goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "duckdb here"])
def test_somebody_else_has_the_database(
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


def test_somebody_else_never_lets_go(tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_tables, "PAUSE", 0.0)
    monkeypatch.setattr(live_tables, "MOST_MEMORY", 5_000)
    training = Training(tmp_path, only=["database"], kind="duckdb")
    training.flush()
    with duckdb.connect(str(tmp_path / "all.db"), read_only=True):
        steps(training, 0, 20)
        assert f"database is given up after {PATIENCE} errors in a row" in training.told[-1]
        assert "which somebody else keeps open" in training.told[0]
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


def test_a_sink_that_fails_is_told_and_given_up_and_the_others_go_on(tmp_path: Path, make: Any) -> None:
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


def test_errors_that_are_not_in_a_row_are_borne(tmp_path: Path) -> None:
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


def test_a_recorder_feeds_its_sinks_and_says_what_is_wrong_with_them(tmp_path: Path) -> None:
    from fitscope.pipeline.ending import COMPLETE
    from fitscope.pipeline.handover import Shown
    from fitscope.pipeline.recorder import Recorder
    from fitscope.plan.plan import Want, Wants
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


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_run_that_is_there_already_is_not_mixed_with(tmp_path: Path, steps: Any) -> None:
    first = Training(tmp_path, only=["database"])
    steps(first, 0, 2)
    first.close()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    second = Training(tmp_path, only=["database"])
    steps(second, 0, 2)
    assert "a database without this run" in second.told[0]
    assert ask(tmp_path / "all.db", "SELECT count(*) FROM stats WHERE site = 'loss'") == [(2,)]

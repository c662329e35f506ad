"""Forged lists of arrays and averages, and folders that cannot be listed: each costs at most what it names."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import fitscope
from faults.forged import used
from fitscope import read
from fitscope.errors import RunError
from fitscope.export import export_run
from fitscope.read import untrusted
from fitscope.read.ranks import Rank
from fitscope.store import Files

pytestmark = pytest.mark.filterwarnings("ignore::fitscope.errors.FitscopeWarning")


def listed(rank: Path, arrays: list[dict[str, str]]) -> None:
    path = rank / "tensors.zarr" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["arrays"] = arrays
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "arrays",
    [
        [{"site": f"activations/{n}", "path": "activations/small"} for n in range(2)],
        [{"site": "activations/small", "path": "activations/small"}] * 2,
        [{"site": f"activations/{n}", "path": f"activations/{n}"} for n in range(untrusted.MOST_ARRAYS + 1)],
    ],
    ids=["two sites, one array", "one array twice", "too many"],
)
def test_a_forged_list_of_arrays_is_damage(rank: Path, arrays: list[dict[str, str]]) -> None:
    listed(rank, arrays)
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert len(run.series("activations/small", "mean")) == 6
    assert [damage.reason for damage in run.damaged if "zarr.json" in damage.name] == [
        "ValueError: its attribute `arrays` lists a path twice, or more than 100,000 paths"
    ]


def test_averages_of_one_file_under_many_names_are_damage(rank: Path) -> None:
    path = rank / "status.json"
    document = json.loads(path.read_text())
    (key,) = document["averages"].values()
    path.write_text(json.dumps({**document, "averages": {f"activations/{n}": key for n in range(100)}}))
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert run.averages == []
    assert "averages" in next(damage.reason for damage in run.damaged)


FINDING = {
    "rule": "dead_relu",
    "severity": "error",
    "first_step": 1,
    "last_step": 2,
    "message": "m",
    "cure": "c",
}
SERIES = {"name": "a", "steps": [1, 2], "values": [1.0, "inf"]}


@pytest.mark.parametrize(
    "odd",
    [
        {"findings": 3}, {"checked": 3}, {"not_judged": [1]}, {"not_judged": {"a": {}}}, {"expected": "x"}, {"checked": [[1]]},
        *({"findings": [one]} for one in (
            3, {"severity": "error"}, {**FINDING, "severity": "x"}, {**FINDING, "first_step": "a"}, {**FINDING, "layer": [1]},
            {**FINDING, "evidence": 3}, {**FINDING, "confidence": "x"}, {**FINDING, "message": 5}, {**FINDING, "rule": [1]},
            {**FINDING, "consequences": [{"a": 1}]}, {**FINDING, "series": [1]}, {**FINDING, "series": {**SERIES, "values": ["x", 1]}},
            {**FINDING, "series": {**SERIES, "steps": [1]}}, {**FINDING, "series": {**SERIES, "steps": ["a", "b"]}},
        )),
        {"findings": [FINDING] * (untrusted.MOST_FINDINGS + 1)},
        {"findings": [{**FINDING, "consequences": [FINDING] * untrusted.MOST_FINDINGS}]},
    ],
    ids=lambda odd: str(odd)[-60:],
)  # fmt: skip
def test_forged_findings_are_damage(rank: Path, odd: dict[str, Any]) -> None:
    path = rank / "status.json"
    found = {"version": fitscope.__version__, "findings": [{**FINDING, "series": SERIES}]}
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "findings": found}))
    assert read.open(rank.parents[2], "run").findings()[0].message == "m"
    path.write_text(json.dumps({**document, "findings": {**found, **odd}}))
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert "m" not in [one.message for one in run.findings()], "the run is judged again"
    assert [damage.reason for damage in run.damaged] == ["its field 'findings' is a dict"]


def test_an_export_reads_the_list_of_arrays_a_fixed_number_of_times(
    rank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its sites."""
    calls = 0
    arrays = Rank.arrays

    def counted(self: Rank) -> Any:
        nonlocal calls
        calls += 1
        return arrays(self)

    monkeypatch.setattr(Rank, "arrays", counted)
    counts = []
    for sites in (["activations/small"], None):
        calls = 0
        export_run(read.open(rank.parents[2], "run"), "npz", tmp_path / f"{len(counts)}.npz", sites)
        counts.append(calls)
    assert len(read.open(rank.parents[2], "run").sites) > 1
    assert counts[0] == counts[1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize(
    "folder", ["attempts", "a0000/r00000/stats", "a0000/r00000/black_box", "a0000", "a0000/r00000/samples"]
)
def test_a_folder_that_cannot_be_listed_is_damage_of_its_run(
    rank: Path, monkeypatch: pytest.MonkeyPatch, folder: str, number: int
) -> None:
    broken = rank.parents[1] / folder
    broken.mkdir(exist_ok=True)
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if Path(path) == broken:
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    used(rank.parents[2])
    run = read.open(rank.parents[2], "run")
    assert run.black_box == []
    if folder != "a0000":  # asked for only if there are several attempts
        assert any(damage.name == folder and os.strerror(number) in damage.reason for damage in run.damaged)


def test_a_folder_that_the_disk_cannot_stat_is_listed_with_its_error(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails when it is asked what an entry is does not hide the run there."""

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.is_symlink, self._entry = entry.name, entry.is_symlink, entry

        def is_dir(self) -> bool:
            if self.name == "run":
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
            return self._entry.is_dir()

    scandir = os.scandir

    class Entries:
        def __init__(self, path: Any) -> None:
            self._all = scandir(path)

        def __enter__(self) -> Any:
            return (Entry(entry) for entry in self._all.__enter__())

        def __exit__(self, *problem: object) -> None:
            self._all.__exit__(*problem)

    opened = os.open

    def failing(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).startswith(str(rank.parents[1]) + os.sep):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *rest, **named)

    monkeypatch.setattr(os, "scandir", Entries)
    assert Files(rank.parents[2]).list() == ["other/", "run/"]
    monkeypatch.setattr(os, "open", failing)
    briefs = {Path(brief.path).name: brief for brief in read.runs(rank.parents[2])}
    assert briefs["other"].problem is None
    assert os.strerror(errno.EIO) in str(briefs["run"].problem)
    with pytest.raises(RunError, match=r"run\.json"):
        read.open(rank.parents[2], "run")


@pytest.mark.parametrize(
    "value",
    [
        [], [None], [1, 2.5, None], [-1.0], [2**62], [2**62, 2**62], [1e299, -1e299], [2**62 + 1], [-(2**62), 0.5],
        [1e300], [float("nan")], [1.0, float("inf")], [10**400], [10**400, 0.5], [True], [1, "2"], [[1.0]], "12", 3.0, None,
    ],
)  # fmt: skip
def test_a_list_of_numbers_is_judged_as_each_of_them(value: Any) -> None:
    assert untrusted.numbers(value) == untrusted.listing(untrusted.maybe(untrusted.number))(value)

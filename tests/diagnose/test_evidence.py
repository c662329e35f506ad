"""Evidence taken in step by step is the same as evidence read at once, in bounded memory, and no odd step is thinned away."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import fitscope as fs
from fitscope.diagnose import Evidence
from fitscope.diagnose.history import COLUMNS, POINTS, SCALAR_POINTS
from fitscope.diagnose.rules.input_not_normalised import first_layers
from fitscope.read.evidence import StoredEvidence
from fitscope.record import Block, Moment, Record
from fitscope.reduce import host
from fitscope.reduce.stats import Columns
from fitscope.sites import Site
from fitscope.store import RunWriter

SITES = (Site("activations", "a"), Site("weights", "a", "kernel"), Site("loss"), Site("learning_rate"))


def blocks(steps: int, odd: int | None = None) -> list[Block]:
    """Steps of three sites; the activation is missing in every seventh, and one step is odd."""
    random = np.random.default_rng(0)
    found = []
    for step in range(steps):
        values = [
            random.standard_normal((3, 4)),
            random.standard_normal((4, 4)),
            np.float64(step),
            np.float64(random.standard_normal()),
        ]
        if step == odd:
            values[0][0, 0], values[1][0, 0] = np.nan, 1e6
        records = [
            Record(
                site,
                Moment(step, 0, step, 0.0),
                np.shape(value),
                "float32",
                host.reduce(np.asarray(value)),
                np.asarray(value),
            )
            for site, value in zip(SITES, values, strict=True)
            if step % 7 or site.base != "activations"
        ]
        found += list(Block.of(records))
    return found


def at_once(taken: list[Block]) -> Evidence:
    found = Evidence()
    for site in SITES:
        rows = [
            (r.at.step, r, b.values[i]) for b in taken for i, r in enumerate(b.records()) if r.site == site
        ]
        columns = np.zeros((len(COLUMNS), len(rows)))
        for j, (_, record, value) in enumerate(rows):
            assert record.stats is not None
            for i, name in enumerate(COLUMNS):
                if name != "small":
                    columns[i, j] = (
                        value if name == "value" else getattr(record.stats, "rms" if name == "peak" else name)
                    )
        found.fill(site, "float32", rows[0][1].shape, np.array([step for step, _, _ in rows]), columns)
    return found


def joined(taken: list[Block]) -> list[Block]:
    """The same with steps that have the same sites in one block, as the writer thread has them."""
    found = []
    for heads, group in groupby(taken, key=lambda block: block.heads):
        some = list(group)
        stats = [record.stats for block in some for record in block.records() if record.stats]
        ats = tuple(at for block in some for at in block.ats)
        found.append(Block(ats, heads, Columns.of(stats), np.concatenate([block.values for block in some])))
    return found


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("steps", [1, 7, POINTS, POINTS + 1, 3 * POINTS + 5])
def test_adding_step_by_step_gives_the_same_evidence_as_all_at_once(steps: int, together: bool) -> None:
    taken = blocks(steps, odd=steps // 2)
    online = Evidence()
    for block in joined(taken) if together else taken:
        online.take(block)
    offline = at_once(taken) if steps > 1 else online
    assert online.broken == offline.broken
    assert online.last_step == offline.last_step
    assert online.captured == offline.captured
    for site in SITES:
        mine, other = online.history(site), offline.history(site)
        if mine is None or other is None:
            assert mine is other
            continue
        assert len(mine) <= (POINTS if mine.shape else SCALAR_POINTS)
        assert mine.seen == other.seen
        np.testing.assert_array_equal(mine.steps, other.steps)
        np.testing.assert_array_equal(mine.data, other.data)


def test_one_odd_step_is_never_thinned_away() -> None:
    odd = 2 * POINTS + 3
    found = Evidence()
    for block in blocks(4 * POINTS, odd=odd):
        found.take(block)
    history = found.history("weights/a/kernel")
    assert history is not None
    assert history.max.max() == 1e6
    assert history.peak.max() > 1e5
    assert found.broken[SITES[0]].step == odd


def test_only_training_steps_are_evidence() -> None:
    found = Evidence()
    for block in blocks(3):
        found.take(
            Block(
                block.ats,
                tuple(h._replace(site=h.site.within("validation")) for h in block.heads),
                block.stats,
                block.values,
            )
        )
    assert not list(found.histories)


def test_losses_may_come_in_any_order() -> None:
    steps = np.arange(3 * SCALAR_POINTS)
    values = np.sin(steps / 50)
    values[7777] = np.nan
    whole, shuffled = Evidence(), Evidence()
    whole.take_values(SITES[2], "float32", steps, values)
    for some in np.array_split(np.random.default_rng(0).permutation(steps), 50):
        shuffled.take_values(SITES[2], "float32", some, values[some])
    mine, other = whole.loss, shuffled.loss
    assert mine is not None
    assert other is not None
    assert SCALAR_POINTS / 2 < len(mine) <= SCALAR_POINTS
    np.testing.assert_array_equal(mine.steps, other.steps)
    np.testing.assert_array_equal(mine.data, other.data)
    assert whole.broken == shuffled.broken
    assert whole.broken[SITES[2]].step == 7777


@pytest.mark.parametrize("pieces", [1, 2, 7, 40])
def test_reading_a_run_in_parts_gives_the_same_evidence(pieces: int) -> None:
    taken = blocks(3 * POINTS + 5, odd=100)
    online, offline = Evidence(), Evidence()
    for block in taken:
        online.take(block)
    whole = at_once(taken).history(SITES[1])
    assert whole is not None
    for part in np.array_split(np.arange(len(taken)), pieces):
        rows = [
            taken[i].stats.rows()[taken[i].heads.index(next(h for h in taken[i].heads if h.site == SITES[1]))]
            for i in part
        ]
        columns = np.array(
            [
                [
                    0.0
                    if n == "small"
                    else np.nan
                    if n == "value"
                    else getattr(r, "rms" if n == "peak" else n)
                    for r in rows
                ]
                for n in COLUMNS
            ]
        )
        offline.fill(SITES[1], "float32", (4, 4), np.array([taken[i].ats[0].step for i in part]), columns)
    mine, other = online.history(SITES[1]), offline.history(SITES[1])
    assert mine is not None
    assert other is not None
    np.testing.assert_array_equal(mine.steps, other.steps)
    np.testing.assert_array_equal(mine.data, other.data)


@pytest.mark.parametrize("together", [1, 500, 1_000_000])
def test_a_stored_run_gives_the_evidence_of_its_training(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many parts it has, and however many of them are taken in together."""
    monkeypatch.setattr("fitscope.read.evidence.AT_ONCE", together)
    taken = blocks(POINTS + 44, odd=100)
    online = Evidence()
    writer = RunWriter.create(tmp_path, "run")
    for i, block in enumerate(taken):
        online.take(block)
        writer.write(block.records())
        if i % 90 == 89:
            writer._tables.put(writer._tables.stats, [], due=True)
    writer.close()
    run = fs.open(tmp_path / "run")
    run._state.look()
    stored = StoredEvidence(run, run._state.stats)
    stored.update()
    assert len(run._state.stats.parts) > 3
    assert stored.evidence.broken == online.broken
    for site in SITES:
        mine, other = online.history(site), stored.evidence.history(site)
        assert mine is not None
        assert other is not None
        assert (mine.shape, mine.dtype, mine.seen) == (other.shape, other.dtype, other.seen)
        np.testing.assert_array_equal(mine.steps, other.steps)
        np.testing.assert_array_equal(mine.data[1:], other.data[1:])  # values of tensors are not stored


def test_judging_a_run_again_does_not_import_pandas(tmp_path: Path) -> None:
    """Importing it takes longer than judging a million steps."""
    writer = RunWriter.create(tmp_path, "run")
    for block in blocks(20):
        writer.write(block.records())
    writer.close()
    code = f"import sys, fitscope as fs; fs.open({str(tmp_path / 'run')!r}).findings(rules=fs.RULES); print('pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_layer_that_feeds_itself_ends_the_search_for_the_first_layers() -> None:
    """A shared dropout and reshape, called twice. Each dropout of a diamond leads to two others."""
    shared = [
        ("in", "InputLayer", ""),
        ("drop", "Dropout", "in shape"),
        ("shape", "Reshape", "drop"),
        ("out", "Dense", "drop"),
    ]
    diamond = [("in", "InputLayer", "")] + [
        (f"{side}{n}", "Dropout", f"a{n - 1} b{n - 1}" if n else "in") for n in range(60) for side in "ab"
    ]
    for layers, first in ((shared, ["out"]), ([*diamond, ("out", "Dense", "a59")], ["out"])):
        told = [{"path": path, "class": kind, "inbound": fed.split()} for path, kind, fed in layers]
        assert first_layers(Evidence(None, {"layers": told})) == first

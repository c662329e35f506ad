"""The event file in the real TensorBoard: its server is started, and asked what it has read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.export import export_run
from fitscope.export.checksum import crc32c, masked
from fitscope.export.tensorboard import SELDOM, SHOWN, triples
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

pytest.importorskip("tensorboard", reason="needs the tensorboard package: pip install tensorboard")
pytestmark = pytest.mark.once

T0 = 1_800_000_000.0
HOSTILE = "activations/ä\x1b[31m\n\"'<b>&?/" + "n" * 2000


@pytest.fixture
def logs(small: fs.Run, write: Callable[..., RunWriter], make: Any, tmp_path: Path) -> Path:
    """The small run, and one with all that is odd."""
    odd = [
        make("loss", 0, np.float32(np.nan)),
        make(HOSTILE, 0, np.array([1.5, 3.0], np.float32)),
        make("activations/nothing", 0, np.full(2, np.nan, np.float32)),
    ]
    path = tmp_path / "logs"
    export_run(small, "tensorboard", path)
    export_run(write(odd, name="odd").path, "tensorboard", path)
    return path


# Two readers: the one in Python, and the faster one that TensorBoard uses where it can.
@pytest.mark.parametrize("load_fast", ["false", "true"])
def test_the_real_tensorboard_reads_it(small: fs.Run, logs: Path, server: Any, load_fast: str) -> None:
    if load_fast == "true":
        pytest.importorskip("tensorboard_data_server", reason="TensorBoard's fast reader is not installed")
    with server(logs, "--load_fast", load_fast) as (ask, wait):
        # What comes last in each file.
        wait(lambda found: "loss" in found.get("odd", ()), "plugin/scalars/tags")
        last = {"run": "first", "tag": "validation/predictions/mean"}
        wait(lambda found: len(found) == 2, "plugin/scalars/scalars", **last)
        tags = ask("plugin/scalars/tags")
        numbers = [name for name in SHOWN if name not in ("cosine", "histogram", *SELDOM)]
        tensors = ("activations/a", "predictions", "validation/predictions")
        assert set(tags["first"]) == {
            "loss", "validation/loss", *(f"{site}/{name}" for site in tensors for name in numbers)
        }  # fmt: skip
        assert {"activations/nothing/nans"} == {
            tag for tag in tags["odd"] if tag.endswith(("/nans", "/infs"))
        }
        histograms = ask("plugin/histograms/tags")
        assert set(histograms["first"]) == {f"{site}/histogram" for site in tensors}

        def scalars(tag: str, run: str = "first") -> list[list[Any]]:
            found: list[list[Any]] = ask("plugin/scalars/scalars", run=run, tag=tag)
            return found

        loss = small.series("loss")
        assert scalars("loss") == [[T0 + step, step, value] for step, value in loss.items()]
        frame = small.frame("activations/a")
        for name in numbers:
            got = scalars(f"activations/a/{name}")
            assert [row[:2] for row in got] == [[T0 + step, step] for step in range(6)]
            np.testing.assert_array_equal([row[2] for row in got], frame[name].astype(np.float32))
        # The two batches of each validation are one: 4 rows of 100·epoch and 2 of that plus 1; losses 1 and 2.
        assert [row[1:] for row in scalars("validation/loss")] == [[3, 1.5], [6, 1.5]]
        got = scalars("validation/predictions/mean")
        np.testing.assert_array_equal([row[2] for row in got], np.float32([1 / 3, 100 + 1 / 3]))

        got = ask("plugin/histograms/histograms", run="first", tag="activations/a/histogram")
        assert [row[:2] for row in got] == [[T0 + step, step] for step in range(6)]
        for step, (_, _, rows) in enumerate(got):  # −4, 0, 1 and 2, times 2**step; the ends are the extremes
            k = 2.0**step
            assert rows == [
                [-4 * k, -4 * k, 1], [-4 * k, 0, 0], [0, 0, 1], [0, k, 0], [k, 2 * k, 1], [2 * k, 2 * k, 1]
            ]  # fmt: skip
        distribution = ask("plugin/distributions/distributions", run="first", tag="activations/a/histogram")
        assert [row[:2] for row in distribution] == [[T0 + step, step] for step in range(6)]

        assert {"loss", f"{HOSTILE}/mean"} <= set(tags["odd"])
        assert set(histograms["odd"]) == {f"{HOSTILE}/histogram"}, "no histogram without a finite value"
        assert scalars(f"{HOSTILE}/mean", "odd") == [[T0, 0, 2.25]]
        ((_, _, value),) = scalars("loss", "odd")
        assert np.isnan(float(value))


def test_exporting_again_replaces_only_the_files_of_fitscope(
    small: fs.Run, events: Any, tmp_path: Path
) -> None:
    (first,) = export_run(small, "tensorboard", tmp_path / "logs")
    (first.parent / "events.out.tfevents.0000000001.fitscope").write_bytes(b"of an earlier export")
    (first.parent / "events.out.tfevents.1.somebody").write_bytes(b"of somebody else")
    export_run(small, "tensorboard", tmp_path / "logs", "loss", force=True)
    assert {path.name for path in first.parent.iterdir()} == {first.name, "events.out.tfevents.1.somebody"}
    assert {value.tag for event in events(first) for value in event.summary.value} == {"loss"}


def test_several_ranks_are_merged(make: Any, events: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    ranks = [RunWriter.create(runs, "r", world=2), RunWriter.join(runs, "r", 0, 1)]
    for number, writer in enumerate(ranks):
        for step in range(3):
            writer.write(
                [
                    make("a", step, np.full(1 + number, number, np.float32)),  # 0; 1, 1
                    make("weights/w", step, np.full(2, 7 + number, np.float32), batched=False),
                    make("loss", step, np.float32(number)),
                ]
            )
        writer.close()
    (path,) = export_run(runs / "r", "tensorboard", tmp_path / "logs", stats=["mean", "max"])
    first, *found = events(path)
    assert first.file_version == "brain.Event:2"
    got = {(v.tag, e.step): v.tensor.float_val[0] for e in found for v in e.summary.value}
    assert len(got) == 5 * 3
    for step in range(3):
        assert got["a/mean", step] == np.float32(2 / 3)
        assert got["a/max", step] == 1
        assert got["weights/w/mean", step] == 7, "the same tensor everywhere: the first rank speaks"
        assert got["loss", step] == 0
    assert [e.step for e in found] == sorted(e.step for e in found)


@pytest.mark.parametrize(
    "values", [[3.0] * 4, [-1e300, 1e300], [0.0, 1e-310], [-2.0, -1.0, 5.0], [1.0, 1.5, 1.999]]
)
def test_triples_keep_counts_order_and_range(values: list[float]) -> None:
    rows = triples(reduce(np.array(values)))
    assert np.isfinite(rows).all()
    assert rows[:, 2].sum() == len(values)
    assert (rows[0, 0], rows[-1, 1]) == (min(values), max(values))
    assert (rows[:, 0] <= rows[:, 1]).all()
    np.testing.assert_array_equal(rows[1:, 0], rows[:-1, 1])


def test_the_checksum_is_tensorboards_own() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    assert crc32c(b"123456789") == 0xE3069283, "the check value in the catalogue of CRCs"
    data = np.random.default_rng(0).bytes(5000)
    for length in (0, 1, 2, 3, 4, 5, 8, 1023, 1024, 1025, 1026, 1027, 1028, 2047, 2048, 2049, 5000):
        assert masked(data[:length]) == struct.pack("<I", masked_crc32c(data[:length]))


@pytest.mark.parametrize("value", [1e300, -1e300, np.inf, np.nan, 1e-320, 16777217.0])
def test_scalars_are_rounded_to_float32(
    write: Any, make: Any, events: Any, tmp_path: Path, value: float
) -> None:
    (path,) = export_run(write([make("loss", 0, np.float64(value))]).path, "tensorboard", tmp_path / "logs")
    ((got,),) = [event.summary.value for event in events(path)[1:]]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.tensor.float_val, [np.float32(value)])

"""`fitscope show`: what stands in the picture, whatever the run is like and whatever it is shown on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce

Call = Callable[..., Any]
HOSTILE = "[red]bad[/red]\x1b[2J\x1b]0;owned\x07\r\n\t\u202eevil\u200b[link=http://x]"


def rec(site: str, step: int, tensor: Any) -> Record:
    array = np.asarray(tensor, np.float32)
    return Record(
        site, Moment(step, 0, step, 0.0), array.shape, "float32", reduce(array), batched=array.ndim > 0
    )


def test_the_header_shows_status_and_cost(call: Call, write: Any) -> None:
    write(facts={"overhead": {"cpu_share": 0.018, "steps": 20, "wall_seconds": 4.0}})
    out = call("show", "runs").stdout
    for fact in (
        "net",
        "✓ complete",
        "jax",
        "1,234 parameters",
        "step 19",
        "epoch 2",
        "5 steps/s",
        "capture costs 1.8 %",
    ):
        assert fact in out, fact


def test_the_header_leaves_out_a_cost_that_is_not_known(call: Call, write: Any) -> None:
    write(facts={"overhead": {"cpu_share": None}})
    assert "capture costs" not in call("show", "runs").stdout


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("proven", "bit-identical, proven"),
        ("twin", "bit-identical, by a twin"),
        ("not provable", "identity: not provable"),
    ],
)
def test_the_header_shows_the_identity(call: Call, write: Any, status: str, said: str) -> None:
    write(facts={"identity": {"train": {"status": status, "steps": [0], "why": "it asks Python"}}})
    out = call("show", "runs").stdout
    assert said in out
    assert ("it asks Python" in out) == (status == "not provable")


def test_the_table_has_every_layer_with_its_stats(call: Call, write: Any) -> None:
    write()
    out = call("show").stdout
    table = out[out.index("update/weight") :]
    for name in ("conv1", "head"):
        row = next(line for line in table.splitlines() if name in line)
        assert "Dense" in row
        assert "0.01" in row, "updates of 0.01 on weights of 1"
        assert "%" in row
        assert any(bar in row for bar in "▁▂▃▄▅▆▇")


def test_layers_are_in_the_order_of_the_model(call: Call, write: Any) -> None:
    write(("zeta", "alpha", "mid"))
    out = call("show").stdout
    assert out.rindex("zeta") < out.rindex("alpha") < out.rindex("mid")


def test_nan_inf_and_not_recorded_have_different_marks(call: Call, write: Any) -> None:
    extra = (
        rec("gradients/conv1", 20, [np.nan, 1.0]),
        rec("activations/head", 20, [np.inf, 1.0]),
        rec("loss", 20, np.nan),
    )
    write(extra=extra)
    out = call("show").stdout
    assert "✖ NaN in gradients since step 20" in out
    assert "∞ Inf in activations since step 20" in out
    assert "· not recorded" in out  # activations/conv1 and gradients/head at step 20


def test_a_few_findings_are_shown_whole(call: Call, write: Any) -> None:
    write(extra=(rec("activations/conv1", 20, [np.nan, 1.0]),))
    (finding,) = json.loads(call("check", "runs", "--json").stdout)["findings"]
    out = call("show", "--width", "60").stdout
    shown = " ".join(line.strip(" │") for line in out.splitlines()).replace("  ", " ")
    assert finding["message"] in shown
    assert finding["cure"] in shown


def test_missing_data_is_reported(call: Call, write: Any) -> None:
    writer = write(
        close=None,
        facts={
            "error": "OSError: no space",
            "dropped": {"loss": 3, "activations/conv1": 9},
            "unseen": {f"gradients/{i}": "no gradient reaches it" for i in range(7)},
        },
    )
    part = next(Path(writer.path).glob("a*/r*/stats/*.parquet"))
    out = call("show").stdout
    assert "error while recording: OSError: no space" in out
    assert "12 records dropped, because the queue was full; most at activations/conv1" in out
    assert "could not be seen: gradients/0: no gradient reaches it" in out
    assert "and 2 more sites that could not be seen" in out
    part.write_bytes(part.read_bytes()[:100])
    result = call("show")
    assert result.exit_code == 0
    assert "damaged, left out: " in result.stdout
    assert part.name in result.stdout
    assert not result.stderr


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_every_status_has_its_own_sign(call: Call, write: Any, status: str) -> None:
    write(close=None if status == "running" else status)
    assert status in call("show").stdout


def test_hostile_names_are_shown_as_text(call: Call, write: Any) -> None:
    write((HOSTILE,), facts={"error": HOSTILE, "dropped": {HOSTILE: 1}})
    for out in (call("show", "--width", "200").stdout, call("show", "--width", "60").stdout):
        assert "[red]bad[/red]\\x1b[2J"[:14] in out
        assert not any(char in out for char in "\x1b\x07\r\t\u202e\u200b")


@pytest.mark.parametrize("width", [40, 57, 80, 130, 300])
def test_show_fits_the_width_of_the_terminal(call: Call, write: Any, width: int) -> None:
    write(
        tuple(f"block{i}/a_layer_with_a_rather_long_name_{i}" for i in range(5)),
        facts={"error": "word " * 50},
    )
    lines = call("show", "--width", str(width)).stdout.splitlines()
    assert {len(line) for line in lines} == {width}


def test_layers_are_chosen_by_a_glob_and_a_number_of_rows(call: Call, write: Any) -> None:
    write(tuple(f"block{i}" for i in range(60)))
    assert "and 20 more layers" in call("show").stdout
    out = call("show", "--layers", "block5*").stdout
    assert "block51" in out
    assert "block1" not in out
    assert "more layers" not in call("show", "--rows", "0").stdout


def test_the_layer_where_nan_began_is_always_shown(call: Call, write: Any) -> None:
    extra = tuple(rec(f"gradients/block{i}", 20 + abs(i - 55), [np.nan]) for i in range(60))
    write(tuple(f"block{i}" for i in range(60)), extra=extra)
    out = call("show", "--rows", "3").stdout
    table = [line for line in out.splitlines() if "NaN in gradients" in line]
    assert [line.split()[1] for line in table] == ["block55", "block54", "block56"]


def test_show_prints_empty_and_undescribed_runs(call: Call, write: Any) -> None:
    write(steps=0, name="empty")
    assert "Nothing was recorded of any layer." in call("show").stdout
    write((), steps=1, name="one")
    assert "loss" in call("show", "runs/one").stdout
    write(info={}, name="undescribed")
    assert "conv1" in call("show", "runs/undescribed").stdout


def test_colour_follows_the_terminal_and_the_environment(call: Call, write: Any) -> None:
    write(tuple(f"layer{i}" for i in range(40)))
    assert "\x1b" not in call("show").stdout
    assert "▀" in call("show", FORCE_COLOR="1").stdout
    assert "▀" not in call("show", FORCE_COLOR="1", NO_COLOR="1").stdout

"""How runs, lists of runs, scopes and views show themselves at a prompt and in a notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.show import cards

from .conftest import Written, steady


@pytest.fixture
def place(written: Callable[..., Written]) -> str:
    """Three runs: one with a NaN in layer `b`, one that was completed, one that cannot be read."""
    first = written(name="first")
    first.add(range(30), steady("abc", lambda step, name, x: np.nan if step > 20 and name == "b" else x))
    second = written(["a<b>"], name="second").add(range(8), steady(["a<b>"]))
    second.writer.note(overhead={"cpu_share": 0.015})
    second.writer.close("complete")
    runs = first.path.rpartition("/")[0]
    broken = written(name="third")
    with open(f"{broken.path}/run.json", "w") as file:
        file.write("{")
    return runs


def test_a_list_of_runs_prints_as_a_table(place: str) -> None:
    lines = {line.split()[0]: line for line in repr(fs.runs(place)).splitlines()}
    assert lines["name"].split("  ")[0] == "name"
    assert list(cards.COLUMNS) == ["name", "model", "status", "last step", "loss", "findings", "cost"]
    assert all(title in lines["name"] for title in cards.COLUMNS)
    said = {name: re.sub(" +", " ", line) for name, line in lines.items()}
    assert said["first"] == "first net ● running 29 1 ✖ NaN born here · b –"
    assert said["second"] == "second net ✓ complete 7 1 none 1.5 %"
    assert said["third"] == "third – ✖ unreadable – – – –"


def test_a_list_of_runs_shows_as_a_table_in_a_notebook(place: str) -> None:
    table = fs.runs(place)._repr_html_()
    assert table.count("<tr>") == 4
    assert "NaN born here · b" in table
    assert "✖ unreadable" in table


def test_a_slice_of_a_list_of_runs_is_a_table_too(place: str) -> None:
    found = fs.runs(place)
    assert len(repr(found[-1:]).splitlines()) == 2
    assert list(found[-1:]) == [found[-1]]
    assert [brief.id for brief in found] == [found[i].id for i in range(3)]


def test_an_empty_list_has_a_message(tmp_path: Any) -> None:
    assert repr(fs.runs(tmp_path)) == "no runs"
    assert "no runs" in fs.runs(tmp_path)._repr_html_()


def test_a_long_list_shows_the_newest(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "MOST", 1)
    found = fs.runs(place)
    assert repr(found).splitlines()[0] == "… and 2 older runs"
    assert len(repr(found).splitlines()) == 3
    assert "… and 2 older runs" in found._repr_html_()


def test_a_run_shows_all_its_findings_in_a_notebook(place: str) -> None:
    shown = fs.open(place, "first")._repr_html_()
    assert "Run first" in shown
    assert "✖ NaN born here · b, steps 21–29: " in shown
    assert "b" in fs.open(place, "first").findings()[0].message
    assert "activations 3, gradients 3, loss 1" in shown


def test_names_are_escaped(written: Callable[..., Written]) -> None:
    names = ["<script>"]
    place = written(names).add(range(9), steady(names, lambda step, name, x: np.nan)).path
    for shown in (fs.open(place)._repr_html_(), fs.runs(place)._repr_html_()):
        assert "&lt;script&gt;" in shown
        assert "<script" not in shown


def test_a_run_without_a_loss_has_a_dash(written: Callable[..., Written]) -> None:
    path = written().add(range(3), lambda step: {"activations/a": np.ones((2, 3))}).path
    assert cards.facts(fs.open(path))["loss"] == "–"


def test_the_repr_of_a_view_names_it(place: str) -> None:
    view = fs.open(place, "second").plot.loss()
    assert repr(view) == "<View loss: loss per batch · net second>"
    assert view._repr_html_() == view._repr_mimebundle_()["text/html"]


def test_a_scope_shows_its_watches(tmp_path: Any) -> None:
    watch = [fs.activations("conv*", samples=4), fs.loss(every=5), fs.gradients(dict)]
    scope = fs.Scope(tmp_path / "a&b", watch=watch)
    assert repr(scope) == (
        "<Scope: activations of conv* (stats, tensor), loss (every 5), gradients of dict; "
        "as often as 2 % of the time and 3 s more allow; newest run: none yet>"
    )
    shown = scope._repr_html_()
    assert "a&amp;b" in shown
    assert "as often as 2 % of the time and 3 s more allow" in shown
    assert "as often as 2 % of the time allows" in repr(fs.Scope(tmp_path, allowance=0))
    assert "every 3" in repr(fs.Scope(tmp_path, every=3))

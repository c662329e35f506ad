"""The five hunts of docs/hunts.md end at their culprit: rule, layer and step of the first finding; and each cure leaves no error."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import fitscope as fs

ROOT = Path(__file__).parents[2]


def pages() -> Any:
    """How the other pages are run."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tests/docs/test_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page was run."""
    where = tmp_path_factory.mktemp("hunts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        pages().run_page(ROOT / "docs/hunts.md", {})
    return where / "hunts"


@pytest.mark.parametrize(
    ("hunt", "rules", "layers", "steps"),
    [
        ("vanishing", {"vanishing_gradient"}, {"h1", "h2", "h3", "h4", "h5", "h6"}, range(120)),
        ("dying", {"optimizer_misconfigured"}, {None}, range(61, 62)),
        ("nan", {"nonfinite"}, {"attention"}, range(11, 12)),
        ("batch", {"loss_spike"}, {None}, range(20, 21)),
        ("labels", {"label_problem"}, {None, "head"}, range(270)),
    ],
)
def test_a_hunt_ends_at_its_culprit(
    place: Path, hunt: str, rules: set[str], layers: set[str | None], steps: range
) -> None:
    first = fs.open(place / hunt).findings()[0]
    assert first.severity in ("warning", "error")
    assert first.rule in rules
    assert first.layer in layers
    assert first.first_step in steps


def test_a_dying_relu_is_named_with_its_cause(place: Path) -> None:
    first = fs.open(place / "dying").findings()[0]
    named = {first.rule, *(each.rule for each in first.consequences)}
    assert "dead_relu" in named


@pytest.mark.parametrize("hunt", ["vanishing-cured", "dying-cured", "nan-cured", "batch-cured"])
def test_a_cured_training_has_no_warning(place: Path, hunt: str) -> None:
    assert [one for one in fs.open(place / hunt).findings() if one.severity != "note"] == []

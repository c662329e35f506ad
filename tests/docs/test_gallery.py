"""The gallery: its page names every training, a run that ends with another finding stops it, and a report stays small."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import fitscope as fs

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import make_gallery
from gallery_runs import EMPTY, TRAININGS, Training
from website.links import ROOT

ATTENTION = next(one for one in TRAININGS if one.name == "attention")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """The shortest training of the gallery."""
    folder = tmp_path_factory.mktemp("gallery")
    ATTENTION.train(fs.Scope(folder, every=1))
    return fs.open(folder)


def test_the_page_shows_every_training_once_and_in_order() -> None:
    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert re.findall(r"<!-- report: (\w+) -->", page) == [one.name for one in TRAININGS]


def test_the_nan_starts_at_the_layer_that_the_page_names(run: fs.Run) -> None:
    make_gallery.judge(ATTENTION, run)
    assert run.findings()[0].first_step == EMPTY


@pytest.mark.parametrize("verdict", [None, ("nonfinite", "head"), ("dead_relu", None)])
def test_another_finding_than_the_page_describes_stops_the_gallery(
    run: fs.Run, verdict: tuple[str, str | None] | None
) -> None:
    with pytest.raises(SystemExit, match="its first finding is"):
        make_gallery.judge(Training("attention", ATTENTION.train, verdict), run)


def test_a_report_is_small_and_the_site_finds_it_again(run: fs.Run, tmp_path: Path) -> None:
    assert make_gallery.made(tmp_path) == {}
    made = make_gallery.written(tmp_path, "attention", run)
    assert (tmp_path / made.report).stat().st_size < make_gallery.LARGEST
    assert "80 steps" in made.facts

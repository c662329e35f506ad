"""The page about legacy Keras is true: every block of code in it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.legacy
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/legacy.md"]


def runner():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tests/docs/test_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = runner()
    assert pages.blocks(page)
    pages.run_page(page, {})

"""The pages about sessions are true: every block of code in them runs, here, where TF2 behaviour is off."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.tf1
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/sessions.md", *sorted(ROOT.glob("docs/recipes/tf1-*.md"))]


def runner():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tests/docs/test_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def graph():
    """A page is a program: it has the default graph of the process."""
    tf.compat.v1.reset_default_graph()
    yield
    tf.compat.v1.reset_default_graph()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = runner()
    assert pages.blocks(page)
    pages.run_page(page, {})

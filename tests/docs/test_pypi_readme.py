"""The README on the page of a package index: no link of it leads nowhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCE = "https://example.org/fitscope"
for_index = runpy.run_path(str(ROOT / "docs/pypi_readme.py"))["for_index"]

RELATIVE = re.compile(r"\]\((?!https://|#|mailto:)[^)]+\)")


@pytest.mark.parametrize("source", [None, SOURCE, f"{SOURCE}/"])
def test_the_pypi_readme_has_no_relative_link(source: str | None) -> None:
    assert RELATIVE.search(README)
    assert RELATIVE.findall(for_index(README, source)) == []


def test_with_an_address_the_pypi_readme_keeps_every_link_and_picture() -> None:
    shown = for_index(README, SOURCE)
    assert shown.count("](") == README.count("](")
    assert f"]({SOURCE}/raw/main/docs/images/page.png)" in shown
    assert f"]({SOURCE}/blob/main/docs/getting-started.md)" in shown
    assert f"]({SOURCE}/tree/main/examples/)" in shown
    for path in re.findall(rf"{SOURCE}/\w+/main/([^)#]+)", shown):
        assert (ROOT / path).exists(), path


def test_without_an_address_the_pypi_readme_keeps_the_words_of_links_and_drops_pictures() -> None:
    shown = for_index(README, None)
    assert "![" not in shown
    assert "in this picture" not in shown
    assert "your own run proves it" in shown
    assert "Use `fs.tap()` for values inside a layer" in shown
    assert shown.count("```") == README.count("```")


def test_code_in_the_pypi_readme_is_unchanged() -> None:
    assert for_index("`x[a](b)` [c](d.md)\n\n```python\nf[0](y)\n```\n", None) == (
        "`x[a](b)` c\n\n```python\nf[0](y)\n```\n"
    )

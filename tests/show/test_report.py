"""The report: one file from the same modules, small, and nobody's names become code in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import fitscope as fs
from fitscope.show.data.gather import Gathered
from fitscope.show.report import MODULES, bundle, report

from .conftest import Written, steady


def made(run: Written, **options: object) -> str:
    gathered = Gathered(fs.open(run.path))
    gathered.update()
    return report(gathered, **options)  # type: ignore[arg-type]


def test_no_two_modules_share_a_name_at_the_top() -> None:
    names = re.findall(r"^(?:async )?(?:function\*?|class|const|let|var) (\w+)", bundle(), re.MULTILINE)
    assert len(names) > 60
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert not re.search(r"^(import|export) ", bundle(), re.MULTILINE)


def test_every_module_comes_after_those_it_imports() -> None:
    folder = Path(str(resources.files("fitscope.show") / "static"))
    assert {path.stem for path in folder.glob("*.js")} == set(MODULES)
    for place, name in enumerate(MODULES):
        text = (folder / f"{name}.js").read_text(encoding="utf-8")
        for needed in re.findall(r'^import .*?from "\./(\w+)\.js"', text, re.MULTILINE):
            assert MODULES.index(needed) < place, f"{name} needs {needed}"


def test_a_report_makes_no_request(written: Callable[..., Written]) -> None:
    text = made(written().add(range(30), steady("abc")))
    assert "default-src 'none'" in text
    assert not re.search(r'(src|href)="(?!data:,)', text)


def test_hostile_names_cannot_leave_the_data(written: Callable[..., Written]) -> None:
    name = "</script><script>alert(1)</script>"
    text = made(written((name,)).add(range(8), steady((name,))))
    assert "alert(1)" not in text


def test_an_empty_run_has_a_report(written: Callable[..., Written]) -> None:
    assert "</html>" in made(written())

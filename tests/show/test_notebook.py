"""Views in a real notebook: a Jupyter kernel runs the cells, and the test reads what each cell displays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipykernel  # noqa: F401 - the kernel that runs the cells
import nbformat
import pytest
from nbclient import NotebookClient

from .conftest import Written, steady

Cells = Callable[..., list[list[Any]]]


@pytest.fixture
def outputs(written: Callable[..., Written]) -> Cells:
    """Runs cells in one kernel and returns the outputs of each. `run` is a run that is there."""
    path = written().add(range(20), steady("abc")).path

    def run(*cells: str) -> list[list[Any]]:
        first = f"import fitscope as fs\nrun = fs.open({path!r})"
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (first, *cells)])
        NotebookClient(book, timeout=120, kernel_name="python3").execute()
        return [cell.outputs for cell in book.cells[1:]]

    return run


def test_a_view_is_shown_once(outputs: Cells) -> None:
    last, shown, text, many = outputs(
        "run.plot.spectrogram('gradients')",
        "run.plot.loss().show()",
        "print(run.plot.health().to_text())",
        "run.plot.loss().save('loss.txt').unlink()",
    )
    assert [output.output_type for output in last] == ["execute_result"]
    assert "<iframe" in last[0].data["text/html"]
    assert "gradient RMS" in last[0].data["text/plain"]
    assert [output.output_type for output in shown] == ["display_data"]
    assert "loss per batch" in shown[0].data["text/plain"]
    assert [output.output_type for output in text] == ["stream"]
    assert "gradient RMS" in text[0].text
    assert many == []


def test_runs_and_scopes_have_a_table(outputs: Cells) -> None:
    run, runs, scope = outputs("run", "fs.runs(run.path)", "fs.Scope('nowhere')")
    for shown in (run, runs, scope):
        assert [output.output_type for output in shown] == ["execute_result"]
        assert shown[0].data["text/html"].startswith("<table>")
    assert "first" in runs[0].data["text/plain"]


def test_tab_completes_names_in_the_kernel(outputs: Cells) -> None:
    (offered,) = outputs(
        "from IPython.core.completer import provisionalcompleter\n"
        "def tab(text):\n"
        "    with provisionalcompleter():\n"
        "        return [one.text for one in get_ipython().Completer.completions(text, len(text))]\n"
        "fs.open(run.path)\n"
        "tab('run.series(\"gradients/'), tab('run.plot.depth(\"act')"
    )
    assert offered[0].data["text/plain"] == "(['gradients/a', 'gradients/b', 'gradients/c'], ['activations'])"

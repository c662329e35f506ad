"""When the live picture is drawn and where, with a cell and a shell that are made up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import fitscope as fs
from fitscope.diagnose import Evidence
from fitscope.pipeline import notebook
from fitscope.pipeline.costs import Costs
from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.pipeline.ending import COMPLETE, Ending
from fitscope.pipeline.live import LivePicture
from fitscope.pipeline.output import Output


class Publisher:
    """Keeps what is published, as ipykernel 7 does: a parent for each thread."""

    def __init__(self) -> None:
        self.parent_header = {"msg_id": "cell 1"}
        self.named: list[Any] = []
        self.sent: list[tuple[str, bool, str]] = []

    def set_thread_parent(self, parent: Any) -> str:
        self.named.append(parent["msg_id"])
        return "token"

    def reset_thread_parent(self, token: str) -> None:
        assert token == "token"

    def publish(
        self, data: dict[str, str], metadata: Any, *, transient: dict[str, str], update: bool
    ) -> None:
        assert data["image/svg+xml"].startswith("<svg")
        self.sent.append((transient["display_id"], update, data["text/plain"].splitlines()[0]))


class Events:
    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., None]]] = {"post_run_cell": []}

    def register(self, name: str, call: Callable[..., None]) -> None:
        self.callbacks[name].append(call)

    def unregister(self, name: str, call: Callable[..., None]) -> None:
        self.callbacks[name].remove(call)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The shell of a kernel."""
    made = SimpleNamespace(kernel=object(), display_pub=Publisher(), events=Events())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))
    return made


@pytest.fixture
def live(shell: SimpleNamespace) -> LivePicture:
    return LivePicture(Costs(lambda error: None), lambda: notebook.NotebookCell(shell), "net")


def output(live: LivePicture, failed: Callable[..., None] = lambda error: None) -> Output:
    made = Output(None, None, lambda: None, failed, dict)  # type: ignore[arg-type]
    made.live, made.diagnosis = live, Diagnosis({"model": {"name": "net"}})
    return made


def test_a_picture_is_shown_once_and_then_replaced(live: LivePicture, shell: SimpleNamespace) -> None:
    live.begin()
    live.begin()
    live.draw(Evidence(), None)
    live.draw(Evidence(), None, COMPLETE)
    sent = shell.display_pub.sent
    assert [update for _, update, _ in sent] == [False, True, True]
    assert len({place for place, _, _ in sent}) == 1
    assert sent[-1][2].startswith("✓ model: complete")


def test_nothing_is_drawn_before_it_begins_or_after_it_ends(
    live: LivePicture, shell: SimpleNamespace
) -> None:
    live.draw(Evidence(), None)
    assert shell.display_pub.sent == []
    live.begin()
    live.draw(Evidence(), None, COMPLETE)
    live.draw(Evidence(), None)
    assert len(shell.display_pub.sent) == 2
    assert shell.events.callbacks["post_run_cell"] == []


def test_messages_name_the_cell_in_which_the_training_began(
    live: LivePicture, shell: SimpleNamespace
) -> None:
    live.begin()
    shell.display_pub.parent_header = {"msg_id": "cell 2"}
    live.draw(Evidence(), None)
    assert shell.display_pub.named == ["cell 1", "cell 1"]


def test_the_live_picture_rests_between_two_drawings(live: LivePicture, shell: SimpleNamespace) -> None:
    live.begin()
    out = output(live)
    for _ in range(3):
        assert 0 < out.draw() <= 1.0
    assert len(shell.display_pub.sent) == 2, "the first, and one that was due"
    out.draw(Ending("interrupted", "KeyboardInterrupt"))
    assert shell.display_pub.sent[-1][2].startswith("▲ net: interrupted by KeyboardInterrupt")


def test_an_error_ends_the_picture_and_nothing_else(live: LivePicture, shell: SimpleNamespace) -> None:
    live.begin()
    errors: list[BaseException | str] = []
    out = output(live, errors.append)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no socket")

    shell.display_pub.publish = broken
    assert out.draw() == float("inf")
    assert out.draw() == float("inf")
    assert [str(error) for error in errors] == ["no socket"]
    assert shell.events.callbacks["post_run_cell"] == []


def test_the_end_of_a_cell_waits_for_the_last_picture(live: LivePicture, shell: SimpleNamespace) -> None:
    live.begin()
    (ends,) = shell.events.callbacks["post_run_cell"]
    ends(None)  # the training goes on: at once
    looked: list[int] = []

    def look() -> None:
        looked.append(1)
        if len(looked) == 3:  # the writer thread has found out
            live.draw(Evidence(), None, Ending("interrupted", "KeyboardInterrupt"))

    live.over, live.look = (lambda: True), look
    ends(None)
    assert len(looked) == 3
    assert "interrupted" in shell.display_pub.sent[-1][2]


def test_trainings_in_one_cell_share_a_place(shell: SimpleNamespace) -> None:
    cell = notebook.NotebookCell(shell)
    assert cell.same(shell)
    shell.display_pub.parent_header = {"msg_id": "cell 2"}
    assert not cell.same(shell)


def test_a_notebook_has_a_picture_unless_disabled(shell: SimpleNamespace) -> None:
    assert notebook.wanted(None) is shell
    assert notebook.wanted(True) is shell
    assert notebook.wanted(False) is None
    shell.kernel = type("SpyderKernel", (), {"__module__": "spyder_kernels.console.kernel"})()
    assert notebook.wanted(None) is None, "its console shows pictures but does not replace them"
    assert notebook.wanted(True) is shell


def test_a_terminal_has_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert notebook.wanted(None) is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook.wanted(None) is None
    with pytest.warns(fs.FitscopeWarning, match="no Jupyter kernel"):
        fs.Scope("nowhere", live=True)


def test_other_settings_are_refused() -> None:
    with pytest.raises(fs.WatchError, match="`live` to be True, False or None"):
        fs.Scope("nowhere", live="yes")  # type: ignore[arg-type]

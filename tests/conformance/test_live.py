"""The live picture where it does not belong, and where an error in it must not reach the training."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import fitscope as fs
from fitscope.pipeline.live import LivePicture

pytestmark = pytest.mark.once


def test_a_plain_script_imports_no_notebook_code_and_draws_no_picture(
    tmp_path, small, xy, monkeypatch
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "IPython" or name == "fitscope.show.live"
    ]:
        monkeypatch.delitem(sys.modules, name)
    made: list[LivePicture] = []
    monkeypatch.setattr(LivePicture, "__init__", lambda self, *_: made.append(self))
    small().fit(*xy, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path)])
    assert made == []
    assert "IPython" not in sys.modules
    assert "fitscope.show.live" not in sys.modules


def kernel(publish: Any) -> SimpleNamespace:
    """A shell that is not quite what we think."""
    events = SimpleNamespace(callbacks={}, register=lambda *_: None, unregister=lambda *_: None)
    return SimpleNamespace(kernel=object(), events=events, display_pub=SimpleNamespace(publish=publish))


def test_a_failing_front_end_costs_only_the_picture(tmp_path, small, xy, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no front end")

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel(refuse)))
    with pytest.warns(fs.FitscopeWarning, match="no front end"):
        small().fit(*xy, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert len(run.series("loss")) == 3
    assert run.errors == ["RuntimeError: no front end"]


def test_a_custom_loop_is_drawn_too(tmp_path, small, xy, monkeypatch) -> None:
    shown: list[str] = []
    keep = kernel(lambda data, *_, **__: shown.append(data["text/plain"].splitlines()[0]))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: keep))
    model = small()
    with fs.Scope(tmp_path, every=1).attach(model):
        for _ in range(3):
            model.train_on_batch(*xy)
    assert ": running" in shown[0]
    assert ": complete, step 3, " in shown[-1]

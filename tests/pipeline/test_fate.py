"""How a training ends: the first report counts, and without one an exception, Ctrl-C or the process decides."""

from __future__ import annotations

import sys
import threading

import pytest

from fitscope.pipeline import fate as module
from fitscope.pipeline.ending import COMPLETE, UNKNOWN, Ending
from fitscope.pipeline.fate import Fate

FAILED = Ending("failed", "ValueError: odd")


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The Ctrl-C so far."""
    came = [0]
    monkeypatch.setattr(module.signals, "interrupts", lambda: came[0])
    return came


class Passed:
    """A frame of `fit` that only one exception has passed."""

    def __init__(self, error: BaseException, *, left: bool) -> None:
        self.error, self._left = error, left

    def passed(self, error: BaseException) -> bool:
        return error is self.error

    def left(self) -> bool:
        return self._left


def test_the_first_report_counts() -> None:
    fate = Fate()
    assert not fate.known
    assert fate.ending is UNKNOWN
    assert fate.settle(COMPLETE)
    assert not fate.settle(FAILED)
    assert fate.known
    assert fate.ending is COMPLETE


def test_an_unreported_training_ends_with_the_noticed_exception() -> None:
    fate = Fate()
    assert fate.unreported(None) is UNKNOWN
    assert fate.unreported(ValueError("odd")) == FAILED
    fate.raised = Ending.by(KeyError("first"))
    assert fate.unreported(ValueError("odd")) == Ending("failed", "KeyError: 'first'")
    assert fate.with_process("SIGTERM") == Ending("failed", "KeyError: 'first'")


def test_ctrl_c_after_the_beginning_counts_as_an_interrupt(interrupts: list[int]) -> None:
    interrupts[0] = 3
    fate = Fate()
    assert fate.unreported(None) is UNKNOWN, "those before it do not count"
    interrupts[0] = 4
    assert fate.unreported(None) == Ending("interrupted", "KeyboardInterrupt")
    fate.listen()
    assert fate.unreported(None) is UNKNOWN


def test_ctrl_c_does_not_interrupt_a_training_in_another_thread(interrupts: list[int]) -> None:
    made: list[Fate] = []
    thread = threading.Thread(target=lambda: made.append(Fate()))
    thread.start()
    thread.join()
    interrupts[0] = 1
    assert made[0].unreported(None) is UNKNOWN


def test_the_end_of_the_process_names_the_signal_or_the_uncaught_exception(
    monkeypatch: pytest.MonkeyPatch, interrupts: list[int]
) -> None:
    assert interrupts == [0]
    fate, error = Fate(), ValueError("odd")
    ended = "the process ended before the training was finished"
    assert fate.with_process(None) == Ending("interrupted", ended)
    monkeypatch.setattr(sys, "last_exc", error, raising=False)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    fate.frame = Passed(error, left=True)  # type: ignore[assignment]
    assert fate.with_process(None) == FAILED
    assert fate.with_process("SIGTERM") == Ending("interrupted", "SIGTERM")
    fate.frame = Passed(KeyError("another"), left=True)  # type: ignore[assignment]
    assert fate.with_process(None) == Ending("interrupted", ended)


@pytest.mark.parametrize("left", [False, True])
def test_an_exception_has_left_when_the_frame_has_ended(left: bool) -> None:
    fate = Fate()
    fate.frame = Passed(ValueError("odd"), left=left)  # type: ignore[assignment]
    assert not fate.leaving
    assert not fate.left
    fate.raised = FAILED
    assert fate.leaving
    assert fate.left == left

"""The fate of a training: how it ends, as far as it is known. The first report counts.

Keras reports only trainings that complete. For the others, `Fate` looks at an exception that passed through fitscope, at Ctrl-C, at
the exception that ends the process, and at the frame of `fit`.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from fitscope.pipeline import signals
from fitscope.pipeline.ending import UNKNOWN, Ending

if TYPE_CHECKING:
    from fitscope.capture.exceptions import Frame


class Fate:
    """How one training ends. Any thread may ask, and a finalizer may report it."""

    def __init__(self) -> None:
        self.known = False  #: the training has ended
        self.ending = UNKNOWN  #: how it ended, if it has
        self.raised: Ending | None = (
            None  #: how it ends if the last exception that fitscope noticed reaches the top
        )
        self.frame: Frame | None = None  #: the frame in which the training runs
        self._trainer = threading.current_thread()
        self._interrupts = signals.interrupts()  # the number of Ctrl-C when the recording began
        self._lock = threading.RLock()  # a finalizer may run anywhere, also inside itself

    def listen(self) -> None:
        """Counts the interrupts from now on."""
        self._interrupts = signals.interrupts()

    def settle(self, ending: Ending) -> bool:
        """Sets how the training ended. Returns whether this is the first report."""
        with self._lock:
            first, self.known = not self.known, True
            if first:
                self.ending = ending
        return first

    @property
    def leaving(self) -> bool:
        """Whether an exception may be leaving the training, which is over when its frame has ended."""
        return self.raised is not None and self.frame is not None

    @property
    def left(self) -> bool:
        """Whether an exception has left the frame of the training."""
        return self.raised is not None and self.frame is not None and self.frame.left()

    @property
    def in_other_thread(self) -> bool:
        """Whether the training continues in a thread that Python waits for."""
        main = self._trainer is threading.main_thread()
        return not self.known and not main and not self._trainer.daemon and self._trainer.is_alive()

    def unreported(self, error: BaseException | None) -> Ending:
        """The ending of a training that did not report one, from the exception if it is known."""
        return self.raised or Ending.by(error or self._interrupt())

    def with_process(self, signal: str | None) -> Ending:
        """The ending of a training that the end of the process interrupts."""
        by_process = Ending("interrupted", signal or "the process ended before the training was finished")
        return self.raised or (None if signal else self._elsewhere()) or by_process

    def _elsewhere(self) -> Ending | None:
        """The ending, if no exception passed through fitscope but Python or a signal knows of one."""
        interrupt = self._interrupt()
        return self._uncaught() or (Ending.by(interrupt) if interrupt is not None else None)

    def _interrupt(self) -> KeyboardInterrupt | None:
        """The Ctrl-C since the recording began, if it may have ended the training."""
        here = self._trainer is threading.main_thread()
        return KeyboardInterrupt() if here and signals.interrupts() > self._interrupts else None

    def _uncaught(self) -> Ending | None:
        """The exception that ends the process, if it is the one that ended this training."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None or (hasattr(sys, "ps1") if self.frame is None else not self.frame.passed(error)):
            return None
        return Ending.by(error)

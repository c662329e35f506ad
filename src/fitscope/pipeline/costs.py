"""The cost of a training and of recording it, for the budget and `run.overhead`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fitscope.pipeline.queue import Transport
from fitscope.pipeline.troubles import warn
from fitscope.plan.budget import Budget, Spent, Time, Timing
from fitscope.schedule import Turn


class Costs:
    """The costs of one recording."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.budget: Budget | None = None  #: the budget that decides how often to capture
        self.steps = 0  #: steps begun, captured or not
        self.captured = 0  #: steps handed over to the writer
        self.first_calls: Callable[[], list[float]] = list  #: seconds of the steps that compiled
        self.proofs: Callable[[], list[float]] = list  #: seconds of the steps that were proofs of identity
        self.transport: Transport[Any] | None = None  #: the writer's queue, once there is a run
        self.judging: Callable[[], float] = lambda: (
            0.0
        )  #: seconds of CPU of the writer's thread for the rules
        self.work: Callable[[], float] = lambda: (
            0.0
        )  #: seconds of CPU of the writer's thread for captured steps
        self._failed = failed
        self._began = Time(time.perf_counter(), time.process_time())
        self._thread_seconds = 0.0

    @property
    def wall(self) -> float:
        """The seconds since the recording was created."""
        return time.perf_counter() - self._began.wall

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Counts the block, on the training thread, as fitscope's cost."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._thread_seconds += time.thread_time() - began

    def share(self) -> tuple[float, float]:
        """The CPU seconds of recording so far, and their share of those of the whole process."""
        cpu = time.process_time() - self._began.cpu
        ours = self._thread_seconds + (self.transport.cpu if self.transport else 0.0)
        return ours, ours / cpu if cpu else 0.0

    def describe(self) -> dict[str, Any]:
        """The cost of recording so far. Shares are of the CPU time of the whole process since the training began."""
        cpu = time.process_time() - self._began.cpu
        transport = self.transport
        return {
            "steps": self.steps,
            "captured": self.captured,
            "wall_seconds": self.wall,
            "cpu_seconds": cpu,
            "training_thread_seconds": self._thread_seconds,
            "writer_seconds": transport.cpu if transport else 0.0,
            "judging_seconds": self.judging(),
            "warm_up_seconds": transport.start_cpu if transport else 0.0,
            "waited_seconds": transport.waited if transport else 0.0,
            "compile_seconds": sum(self.first_calls()),
            "first_call_seconds": self.first_calls(),
            "proof_seconds": sum(self.proofs()),
            "queue_peak_bytes": transport.peak if transport else 0,
            **({"budget": self.budget.describe()} if self.budget is not None else {}),
            "cpu_share": self.share()[1],
        }

    # ---- what the budget knows -----------------------------------------------------------------------------

    def weigh(self, turns: Sequence[Turn], captured: int, tapped: int) -> Timing | None:
        """Announces coming steps to the budget, with the number of steps that it captures or that a watch needs.

        Returns the object that times them; None if they are not timed.
        """
        if self.budget is None or not self.budget.next(turns[0].step, len(turns), captured, tapped):
            return None
        # Until the kernel is ready, the process is busy with compiling it.
        ready = self.transport is None or self.transport.ready
        return Timing(self._start, self._stop) if ready else None

    def _start(self) -> None:
        self._timed(lambda budget: budget.start(self._spent()))

    def _stop(self) -> None:
        self._timed(lambda budget: budget.stop(self._spent()))

    def _timed(self, act: Callable[[Budget], None]) -> None:
        """Runs around the user's own step: an error in fitscope ends the timing, not the training."""
        assert self.budget is not None
        trouble = self.budget.trouble
        try:
            act(self.budget)
        except Exception as error:
            self._failed(error)
        if self.budget.trouble is not trouble:
            warn(f"fitscope cannot keep its budget: {self.budget.trouble}")

    def _spent(self) -> Spent:
        transport, longer = self.transport, [*self.first_calls(), *self.proofs()]
        return Spent(
            Time(time.perf_counter() - _delayed(), time.process_time()),
            transport.cpu if transport is not None else 0.0,
            transport.waited if transport is not None else 0.0,
            len(longer),
            self.work(),
            sum(longer) + (transport.start_cpu if transport is not None else 0.0),
        )


def _delayed() -> float:
    """The seconds for which this thread was ready and other programs had the processor, if the system reports it."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel without it
        return 0.0

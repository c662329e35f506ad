"""A TensorFlow step with taps while it is traced, or while it runs eagerly: on one device, or on several replicas.

An error in fitscope never ends the trace, which would leave the step half built: it becomes the reason why nothing was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._draws import own_draws
from fitscope.capture.backends._harvest import Harvest, finished
from fitscope.capture.backends._tensorflow_replicas import Replicas
from fitscope.capture.backends._tensorflow_taps import (
    Collector,
    asking_tapes_of,
    detach,
    single_step,
    weighed,
)
from fitscope.capture.collector import kept
from fitscope.capture.patch import show_batch, taps_on_replicas
from fitscope.capture.tap import listening
from fitscope.pipeline.handover import ReplicaRows
from fitscope.plan.wants import LOSS


class Trace:
    """A step during tracing: the result of the trace, and whether it reached its end."""

    def __init__(self, ask: Ask, *, compiled: bool, xla: bool) -> None:
        self.ask = ask
        self.compiled = compiled
        self.begun = False  # the user's own step has
        self.done = False
        self._seen = Harvest()  # sites and failures
        self._zero = tf.Variable(0, trainable=False, dtype=tf.int64) if xla else None

    def __call__(self, run: Callable[[], Any], data: Any = None) -> tuple[Any, Any]:
        """Runs the step with taps; returns its result and the tapped tensors."""
        self._begin()
        collector = Collector()
        result = single_step(self.ask, collector, self._step(run, data, collector))
        if self.compiled:
            detach(collector, self._zero)
        harvest = finished(collector.harvest, self.ask)
        self._end(harvest)
        return result, harvest.tensors

    def on_replicas(self, replicas: Replicas, run: Callable[[Any], Any], data: Any) -> tuple[Any, Any]:
        """Runs the step with taps on every replica; returns its result as Keras reduces it, and the tapped tensors, unreduced."""
        self._begin()
        ask, collectors = self.ask, [Collector() for _ in replicas.devices]

        def mine() -> Collector | None:
            number = replicas.here()
            return None if number is None else collectors[number]

        with (
            taps_on_replicas(ask.anatomy, ask.wants, collectors, replicas.here) as taps,
            asking_tapes_of(mine, LOSS in ask.wants),
        ):

            def on_one(number: int, data: Any) -> Any:
                step = self._step(lambda: run(data), data, collectors[number])
                with listening(taps[number].show if taps else None):
                    # Weights are the same on every replica.
                    return weighed(ask, collectors[number], step) if number == 0 else step()

            result = replicas.run(on_one, data, ask.phase)
        for collector in collectors:
            with kept(collector):
                collector.no_more_gradients()
        harvest, tensors = replicas.handed_out(ask, collectors, taps, self._zero, compiled=self.compiled)
        self._end(harvest)
        return result, tensors

    def _begin(self) -> None:
        self.begun = self.done = False
        if self.compiled:
            self.ask.traced()

    def _step(self, run: Callable[[], Any], data: Any, collector: Collector) -> Callable[[], Any]:
        def step() -> Any:
            if data is not None:
                show_batch(self.ask.wants, self.ask.anatomy, collector, data)
            self.begun = True
            with own_draws() if self.compiled else nullcontext():
                return run()

        return step

    def _end(self, harvest: Harvest) -> None:
        seen = self._seen
        seen.sites.update(harvest.sites)
        seen.failed.update(harvest.failed)
        seen.noted[:] = harvest.noted
        seen.broken = harvest.broken
        self.done = True

    @property
    def ran(self) -> bool:
        """Whether an exception came from the user's own step, which may have changed something already."""
        return self.done if self.compiled else self.begun

    def harvest(self, tensors: Any) -> Harvest:
        """The harvest of one run of the step, from the tensors that it returned."""
        seen = self._seen
        if isinstance(tensors, tuple):  # the tensors of all replicas together, and those of each
            whole, *each = tensors
            rows = [name for name in each[0] if all(name in one for one in each)]
            tensors = {**whole, **{name: ReplicaRows(tuple(one[name] for one in each)) for name in rows}}
        return Harvest(tensors, seen.sites, dict(seen.failed), seen.noted, seen.broken)

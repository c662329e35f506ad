"""How often the rules are applied while a training runs."""

from __future__ import annotations

import numpy as np
import pytest

from fitscope.diagnose import Findings
from fitscope.pipeline import diagnosis as module
from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.record import Block, Head, Moment
from fitscope.reduce import host
from fitscope.reduce.stats import Columns
from fitscope.sites import Site


def test_rules_take_a_hundredth_of_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where another program has the processor, seconds pass and little is trained."""

    class Clock:
        wall = cpu = thread = 0.0
        monotonic = staticmethod(lambda: Clock.wall)
        process_time = staticmethod(lambda: Clock.cpu)
        thread_time = staticmethod(lambda: Clock.thread)

    def judging(*_: object, **__: object) -> Findings:
        Clock.thread += 0.03
        return Findings()

    monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(module, "diagnose", judging)
    diagnosis = Diagnosis({})
    loss = Head(Site("loss"), (), "float32", False)
    for tick in range(10_000):  # for 1,000 s, of which this process has the processor for 50
        Clock.wall, Clock.cpu = tick / 10, tick / 200
        one = host.reduce(np.float32(1.0))
        diagnosis.take([Block((Moment(tick, 0, tick, 0.0),), (loss,), Columns.of([one]), np.ones(1))])
        diagnosis.judge()
    assert diagnosis.cpu == pytest.approx(Clock.thread)
    assert 0.2 <= diagnosis.cpu <= 0.011 * Clock.cpu

"""Runs in an object store in trouble: errors, throttling, delays, an outage, credentials that expire.

Nothing is lost that fits the queue; what is lost is counted; and the training never waits while there is room. The store is moto
behind a proxy that answers with faults. Outages end when a test ends them, so that no test depends on a time.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import numpy as np
import pytest

from fitscope import read
from fitscope.pipeline.queue import Transport
from fitscope.record import Record
from fitscope.store import Remote, RunWriter, outages

from .faulty import DROP, Decide, Delay, Faulty, always, every

Make = Callable[..., Record]
STEPS = 30
LARGE = (300, 300)  #: of a tensor that is put by itself


@pytest.fixture(scope="module")
def proxy(s3: str) -> Iterator[Faulty]:
    there = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert there.hostname
    assert there.port
    found = Faulty(there.hostname, there.port)
    yield found
    found.close()


@pytest.fixture
def place(proxy: Faulty, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """A store behind the proxy, whose retries are short."""
    from obstore.store import S3Store

    monkeypatch.setattr(outages, "FIRST", 0.05)
    monkeypatch.setattr(outages, "LONGEST", 0.1)
    moment = timedelta(milliseconds=10)
    store = S3Store(
        "runs", prefix=uuid.uuid4().hex, endpoint=proxy.url, region="us-east-1", access_key_id="test",
        secret_access_key="test", virtual_hosted_style_request=False, client_options={"allow_http": True},
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=2),
                      "backoff": {"init_backoff": moment, "max_backoff": moment, "base": 2}},
    )  # fmt: skip
    return Remote(store, name="s3://runs")


def records(make: Make, step: int, *, large: bool) -> list[Record]:
    loss = make("loss", step, np.float32(step), keep="stats", batched=False)
    shape = LARGE if large else (2, 3)
    return [loss, make("activations/d", step, np.full(shape, step, np.float32), keep="tensor")]


def check_complete(place: Remote, steps: int = STEPS) -> None:
    run = read.open(place)
    assert run.lost == {}
    assert run.status == "complete"
    np.testing.assert_array_equal(run.series("loss"), np.arange(steps))
    kept = run.tensor("activations/d").values
    np.testing.assert_array_equal(kept.reshape(steps, -1).mean(axis=1), np.arange(steps))


@pytest.mark.parametrize(
    "fault",
    [every(2, 500), every(2, 503), every(3, DROP), always(Delay(0.01))],
    ids=["errors", "throttling", "lost connections", "delays"],
)
def test_a_retry_hides_short_faults(place: Remote, proxy: Faulty, make: Make, fault: Decide) -> None:
    writer = RunWriter.create(place, "r")
    with proxy.faults(fault):
        for step in range(STEPS):
            writer.write(records(make, step, large=False))
            if step % 5 == 0:
                writer.flush()
        writer.close()
    check_complete(place)


class Training:
    """A writer behind its queue, as a recorder has it."""

    def __init__(self, place: Remote, make: Make, *, limit: int, when_full: str = "block") -> None:
        self.errors: list[Exception] = []
        self.writer = RunWriter.create(place, "r")
        self._make = make
        self._transport: Transport[list[Record]] = Transport(
            lambda steps: [self.writer.write(records) for records in steps],
            self._flush,
            lambda error, _: self.errors.append(error),
            limit=limit,
            when_full=when_full,
            end=self.writer.close,
        )
        assert self.writer.patient is not None
        self.writer.patient.may_wait = self._transport.may_wait
        self.writer.patient.troubled = lambda text: self.errors.append(OSError(text))
        self.dropped = 0

    def _flush(self) -> float:
        self.writer.flush(tensors=self.writer.pace.tensors_due())
        return 0.05

    def steps(self, first: int, last: int, *, large: bool = True) -> None:
        for step in range(first, last):
            some = records(self._make, step, large=large)
            size = sum(r.tensor.nbytes for r in some if r.tensor is not None)
            self.dropped += not self._transport.put(some, size)

    def drain(self) -> None:
        self._transport.drain()

    def close(self) -> None:
        self._transport.close()


@pytest.mark.parametrize("fault", [503, 403, DROP], ids=["outage", "expired credentials", "no answer"])
@pytest.mark.parametrize("large", [True, False])
def test_an_outage_loses_no_rows_that_fit_the_queue(
    place: Remote, proxy: Faulty, make: Make, fault: int, large: bool
) -> None:
    """The outage ends only when the training has made all its steps: it cannot have waited for the store."""
    training = Training(place, make, limit=100 << 20)
    training.steps(0, 10, large=large)
    training.drain()
    with proxy.faults(always(fault)):
        training.steps(10, STEPS, large=large)
    training.close()
    check_complete(place)
    assert training.dropped == 0


@pytest.mark.parametrize("when_full", ["block", "drop"])
def test_rows_that_do_not_fit_the_queue_are_counted(
    place: Remote, proxy: Faulty, make: Make, when_full: str
) -> None:
    """Also here the training gets to its end while the store is away."""
    training = Training(place, make, limit=1 << 20, when_full=when_full)
    with proxy.faults(always(503)):
        training.steps(0, STEPS)
    training.close()
    run = read.open(place)
    kept = run.tensor("activations/d")
    lost = run.lost.get("activations/d", 0) + training.dropped
    assert len(kept) + lost == STEPS
    assert lost > 0
    np.testing.assert_array_equal(kept.values.reshape(len(kept), -1).mean(axis=1), kept["step"])
    assert len(run.series("loss")) == STEPS - training.dropped, "rows wait in little memory"


def test_the_end_of_a_training_waits_for_a_store_that_comes_back(
    place: Remote, proxy: Faulty, make: Make
) -> None:
    training = Training(place, make, limit=100 << 20)
    tried = threading.Event()

    def down(method: str, path: str) -> int | None:
        if method == "PUT" and len(proxy.asked) > before + 20:
            tried.set()
        return 503

    before = len(proxy.asked)
    with proxy.faults(down):
        training.steps(0, STEPS)
        end = threading.Thread(target=training.close)
        end.start()
        assert tried.wait(60), "it gave up"
        assert end.is_alive()
    end.join(60)
    check_complete(place)


def test_one_failure_is_enough_for_a_whole_flush(
    place: Remote, proxy: Faulty, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "FIRST", 600.0)
    writer = RunWriter.create(place, "r")
    writer.write([make(f"activations/d{n}", 0, np.ones((2, 3), np.float32)) for n in range(40)])
    before = len(proxy.asked)
    with proxy.faults(always(503)), pytest.raises(OSError, match="s3://runs"):
        writer.flush()
    assert len(proxy.asked) - before <= 2 * 3, "one put and one look, with their retries"
    writer.close()
    assert len(read.open(place).sites) == 40


def test_an_outage_is_reported_once(place: Remote, proxy: Faulty, make: Make) -> None:
    writer = RunWriter.create(place, "r")
    said: list[str] = []
    tries = iter(range(5))
    assert writer.patient is not None
    writer.patient.troubled = said.append
    writer.patient.may_wait = lambda: next(tries, None) is not None
    with proxy.faults(always(403)), pytest.raises(OSError, match="s3://runs"):
        writer.write(records(make, 0, large=True))
    assert len(said) == 1
    assert "tried again" in said[0]
    writer.close()
    assert read.open(place).lost == {"activations/d": 1}


def test_a_run_can_be_read_through_faults(place: Remote, proxy: Faulty, make: Make) -> None:
    writer = RunWriter.create(place, "r")
    for step in range(STEPS):
        writer.write(records(make, step, large=False))
    writer.close()
    with proxy.faults(every(3, 503, "GET")):
        check_complete(place)

"""The queue between training and disk: bounded, in order, and nothing gets lost in silence."""

from __future__ import annotations

import threading

import pytest

from fitscope.pipeline import queue as queue_module
from fitscope.pipeline.queue import Transport


class Sink:
    """Takes what comes, when it is let."""

    def __init__(self, **settings):
        self.seen, self.errors, self.idles, self.together = [], [], 0, []
        self.go, self.busy = threading.Event(), threading.Event()
        self.go.set()
        self.transport = Transport(self.work, self.idle, self.on_error, **{"limit": 100, **settings})

    def work(self, items):
        self.busy.set()
        assert self.go.wait(10)
        self.together.append(len(items))
        if "bad" in items:
            raise ValueError("bad item")
        self.seen += items

    def idle(self):
        self.idles += 1
        return 60.0

    def on_error(self, error, items):
        self.errors.append((str(error), list(items)))

    def hold(self, nbytes):
        """Has the writer stand at one item."""
        self.go.clear()
        self.busy.clear()
        self.transport.put("held", nbytes)
        assert self.busy.wait(10)


def test_items_keep_their_order_and_close_empties_the_queue():
    sink = Sink()
    for n in range(500):
        assert sink.transport.put(n, 1)
    sink.transport.close()
    assert sink.seen == list(range(500))
    assert sink.transport.queued == 0
    assert sink.transport.peak <= 100
    assert sink.idles >= 1
    sink.transport.close()  # again does nothing


def test_a_blocking_put_waits_for_room():
    sink = Sink()
    sink.hold(60)
    done = threading.Event()

    def put():
        sink.transport.put("second", 60)
        done.set()

    thread = threading.Thread(target=put)
    thread.start()
    assert not done.wait(0.2)
    assert sink.transport.queued == 60
    sink.go.set()
    assert done.wait(10)
    thread.join()
    sink.transport.close()
    assert sink.seen == ["held", "second"]
    assert sink.transport.waited > 0.1
    assert sink.transport.peak == 60


def test_waiting_bytes_are_counted():
    sink = Sink()
    sink.hold(10)
    for item in ("a", "b"):
        assert sink.transport.put(item, 10)
    assert sink.transport.waiting() == 3
    sink.go.set()
    sink.transport.close()
    assert sink.transport.waiting() == 0


def test_put_returns_false_when_an_item_is_dropped():
    sink = Sink(when_full="drop")
    sink.hold(60)
    assert not sink.transport.put("too much", 60)
    assert sink.transport.put("fits", 40)
    sink.go.set()
    sink.transport.close()
    assert sink.seen == ["held", "fits"]
    assert sink.transport.waited == 0


@pytest.mark.parametrize("when_full", ["block", "drop"])
def test_an_item_larger_than_the_queue_passes_when_the_queue_is_empty(when_full):
    sink = Sink(when_full=when_full)
    assert sink.transport.put("huge", 10_000)
    sink.transport.close()
    assert sink.seen == ["huge"]


def test_errors_are_reported_and_the_writer_continues():
    sink = Sink()
    for item in ("a", "bad", "b"):
        sink.transport.put(item, 10)
    sink.transport.close()
    assert sink.seen == ["a", "b"]
    assert sink.errors == [("bad item", ["bad"])]


def test_small_items_are_handled_together_and_large_ones_alone():
    sink = Sink(limit=2_000)
    sink.hold(1)
    for n in range(100):
        sink.transport.put(n, 1)
    for n in range(100, 103):
        sink.transport.put(n, 400)
    sink.go.set()
    sink.transport.close()
    assert sink.seen == ["held", *range(103)]
    most = queue_module.AT_ONCE
    assert sink.together == [1, most, 100 - most + 2, 1], "no more once they have a quarter of the queue"


def test_a_flush_request_between_small_items_is_not_lost():
    sink = Sink(limit=1_000)
    sink.hold(1)
    sink.transport.put("a", 1)
    before = sink.idles
    sink.transport.look()
    sink.transport.put("b", 1)
    sink.go.set()
    sink.transport.close()
    assert sink.seen == ["held", "a", "b"]
    assert sink.together[1:] == [1, 1]
    assert sink.idles > before


def test_errors_of_start_and_idle_are_reported_too():
    def broken():
        raise OSError("no")

    errors = []
    transport = Transport(
        lambda _: None,
        broken,
        lambda error, items: errors.append((str(error), items)),
        limit=10,
        start=broken,
    )
    transport.put("a", 1)
    transport.close()
    assert errors[:2] == [("no", ()), ("no", ())]


def test_tensors_are_freed_before_their_room_is_reused():
    """The bound is on what is held, not on what is counted."""
    import gc
    import weakref

    class Thing:
        pass

    alive = []
    sink = Sink(limit=1)
    sink.transport._work = lambda _: None
    for _ in range(20):
        thing = Thing()
        alive.append(weakref.ref(thing))
        sink.transport.put(thing, 1)
        del thing
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 2
    sink.transport.close()
    assert all(ref() is None for ref in alive)


def test_with_when_full_drop_the_end_does_not_wait_for_a_hanging_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_module, "FINISH", 0.1)
    go_on, dropped, ended = threading.Event(), [], threading.Event()
    transport: Transport[int] = Transport(
        lambda _: go_on.wait(60) and None,
        lambda: 60.0,
        lambda *_: None,
        limit=1000,
        when_full="drop",
        skipped=dropped.append,
        end=ended.set,
    )
    for item in range(5):
        assert transport.put(item, 100)
    closing = threading.Thread(target=transport.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive(), "it waits for what cannot end"
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(30), "and what was begun is still finished"
    assert dropped == [1, 2, 3, 4], "the rest is counted"

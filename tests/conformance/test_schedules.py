"""When: numbers, lists of steps, epochs, functions, and a time of its own for each watch."""

from __future__ import annotations

import numpy as np
import pytest

import fitscope as fs
from complete import captured


def unknown_length(x, y):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *_: True)


EXPECTED = {
    "every 2": (2, [0, 2, 4, 6, 8]),
    "steps": (fs.steps(1, [4, 5]), [1, 4, 5]),
    "last of every epoch": (fs.epochs(), [2, 5, 8]),
    "last of some epochs": (fs.epochs(0, 2), [2, 8]),
    "first": (fs.epochs(batch="first"), [0, 3, 6]),
    "all of one": (fs.epochs(1, batch="all"), [3, 4, 5]),
    "the n-th": (fs.epochs(batch=1), [1, 4, 7]),
    "a function": (lambda step: step in (3, 7), [3, 7]),
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("known", [True, False], ids=["length known", "length unknown"])
def test_every_schedule_captures_its_steps(small, xy, tmp_path, tools, known):
    """All schedules at once, one scope each, on one training: so they also share each step among them."""
    x, y = xy
    data = (x, y) if known else (unknown_length(x, y),)
    settings = {"epochs": 3, "verbose": 0, **({"batch_size": 8, "shuffle": False} if known else {})}
    twin = small()
    twin.fit(*data, **settings)
    model = small()
    watch = [fs.loss(), fs.inputs(keep="both")]
    # Without a known length only what is due by epoch: Keras's own count of steps is off then on TensorFlow.
    expected = {name: value for name, value in EXPECTED.items() if known or "epoch" in str(value[0])}
    assert len(expected) == (8 if known else 5)
    scopes = {name: fs.Scope(tmp_path / name, watch, every) for name, (every, _) in expected.items()}
    model.fit(*data, callbacks=list(scopes.values()), **settings)
    tools.same(twin, model)
    for name, (_, steps) in expected.items():
        run = fs.open(tmp_path / name)
        assert run.status == "complete"
        frame = run.frame("loss").loc[captured(run)]
        assert [3 * epoch + batch for epoch, batch in zip(frame.epoch, frame.batch, strict=True)] == steps, (
            name
        )
        if known:
            assert list(frame.index) == steps
        for step, batch in zip(frame.index, frame.batch, strict=True):
            assert np.array_equal(run.array("inputs", step), x[8 * batch : 8 * batch + 8])


def test_each_watch_follows_its_own_schedule(watch_fit, small, xy):
    x, y = xy
    watch = [fs.activations("first"), fs.activations("last", every=1), fs.loss(every=fs.epochs(1))]
    seen = watch_fit(small, x, y, watch=watch, every=4, epochs=2)
    assert list(seen.run.series("activations/first", "mean").index) == [0, 4]
    assert list(seen.run.series("activations/last", "mean").index) == [0, 1, 2, 3, 4, 5]
    assert captured(seen.run) == [5]


def test_two_scopes_record_the_same_step(small, xy, tmp_path):
    x, y = xy
    model = small("adam")
    one = fs.Scope(tmp_path / "one", [fs.activations(keep="both"), fs.loss()], every=1)
    two = fs.Scope(tmp_path / "two", [fs.activations("last", keep="both"), fs.gradients()], every=2)
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[one, two])
    twin = small("adam")
    twin.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), twin.get_weights(), strict=True))
    first, second = fs.open(tmp_path / "one"), fs.open(tmp_path / "two")
    assert captured(first) == [0, 1, 2]
    assert list(second.series("gradients/last", "mean").index) == [0, 2]
    assert [s for s in first.sites if s.startswith("gradients")] == []
    assert [s for s in second.sites if s.startswith("activations")] == ["activations/last"]
    assert np.array_equal(first.array("activations/last", 2), second.array("activations/last", 2))
    assert isinstance(model.train_function, type(twin.train_function))

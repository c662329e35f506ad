"""Watches and schedules: what the user may ask for, and the errors for what may not be asked."""

from __future__ import annotations

import copy
import pickle

import pytest

import fitscope as fs
from fitscope import sizes
from fitscope.plan.budget import Budget
from fitscope.schedule import Turn, schedule
from fitscope.watch import KINDS, defaults


def due(every, turns):
    return [turn.step for turn in turns if schedule(every).due(turn) is True]


TURNS = [Turn(step, step // 4, step % 4, 4) for step in range(12)]


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (1, list(range(12))),
        (5, [0, 5, 10]),
        (fs.steps(3, 1, range(8, 10)), [1, 3, 8, 9]),
        (fs.epochs(), [3, 7, 11]),
        (fs.epochs(1), [7]),
        (fs.epochs([0, 2], batch="first"), [0, 8]),
        (fs.epochs(1, batch="all"), [4, 5, 6, 7]),
        (fs.epochs(batch=2), [2, 6, 10]),
        (lambda step: step > 9, [10, 11]),
    ],
)
def test_a_schedule_is_due_at_its_steps(every, steps):
    assert due(every, TURNS) == steps


def test_the_last_step_of_an_epoch_of_unknown_length_is_known_afterwards():
    assert fs.epochs(0).due(Turn(2, 0, 2, None)) == "last"
    assert fs.epochs(0).due(Turn(6, 1, 2, None)) is False


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "often", None])
def test_an_invalid_every_is_an_error(every):
    with pytest.raises(fs.WatchError, match=r"Expected `every`.*Received.*every=1"):
        schedule(every)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fs.steps(),
        lambda: fs.steps(-1),
        lambda: fs.epochs(batch="middle"),
        lambda: fs.epochs(batch=-1),
    ],
)
def test_an_invalid_schedule_is_an_error(make):
    with pytest.raises(fs.WatchError, match=r"Expected .* Received: .* Write"):
        make()


def test_keep_decides_between_stats_and_tensors():
    def kept(watch):
        return watch.stats, watch.tensor, watch.samples

    assert kept(fs.activations()) == (True, False, None)
    assert kept(fs.activations(keep="tensor")) == (False, True, None)
    assert kept(fs.activations(keep="both", samples=3)) == (True, True, 3)
    assert kept(fs.activations(keep=["stats", "tensor"])) == (True, True, None)
    assert kept(fs.gradients(samples=3)) == (True, True, 3)
    assert kept(fs.targets()) == kept(fs.predictions()) == (True, True, None)
    assert fs.changes(exact=True).exact
    assert fs.predictions(exact=True).exact
    assert {watch.kind for watch in defaults()} <= KINDS.keys()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.activations(keep="tensors"), "Did you mean 'tensor'"),
        (lambda: fs.activations(keep=()), r"`keep`.*There are: 'stats', 'tensor', 'both', 'average'"),
        (lambda: fs.activations(keep="stats", samples=3), "keep='tensor' or keep='both'"),
        (lambda: fs.activations(samples=0), "Leave it out to keep all"),
        (lambda: fs.activations(every="x"), "every=1"),
        (lambda: fs.updates(on="validation"), "on='train'"),
        (lambda: fs.Scope("memory", limit="10 apples"), '"10 GB"'),
        (lambda: fs.Scope("memory", memory=-1), "`memory` to be a positive number of bytes"),
        (lambda: fs.Scope("memory", memory=float("inf")), "`memory` to be a positive number of bytes"),
        (lambda: fs.Scope("memory", limit="0 GB"), "`limit` to be a positive number of bytes"),
        (lambda: fs.Scope("memory", limit="1.2.3 GB"), "`limit` to be a positive number of bytes"),
        (lambda: fs.BlackBox(0), "the `steps` of a black box to be a whole number, at least 1"),
        (lambda: fs.Scope("memory", when_full="wait"), "when_full"),
        (lambda: fs.Scope("memory", reduce="gpu"), "reduce"),
        (lambda: fs.Scope("memory", every=0), "every"),
        (lambda: fs.Scope("memory", "gradients"), r"Received: 'gradients'\. Write fs\.gradients\(\)"),
        (lambda: fs.Scope("memory", ["loss"]), r"Received: 'loss'\. Write fs\.loss\(\)"),
        (lambda: fs.Scope("memory", "conv1"), r"Received: 'conv1'\. Make them with"),
        (lambda: fs.Scope("memory", fs.activations(), fs.loss()), r"a second watch, loss, .*watch=\[fs"),
        (lambda: fs.Scope("memory", [fs.loss]), r"Received: fs\.loss\. Write fs\.loss\(\)"),
    ],
)
def test_misuse_of_a_watch_is_an_error(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.WatchError, match=message) as error:
        make()
    assert error.value.expected
    assert error.value.received
    assert error.value.fix


@pytest.mark.parametrize(
    ("text", "size"), [("10 GB", 10**10), ("512MiB", 2**29), (1000, 1000), ("1.5 kb", 1500), (None, None)]
)
def test_sizes_are_parsed(text, size):
    assert sizes.parse(text, "limit") == size


@pytest.mark.parametrize(
    "every", [1, 2, 7, fs.steps(0, 3, 4, 20), fs.steps(5), fs.epochs(), lambda step: step % 3 == 0, Budget(0.02).schedule]
)  # fmt: skip
def test_a_resting_schedule_is_due_at_none_of_its_steps(every):
    read = schedule(every)
    for step in range(30):
        for after in range(step + 1, step + 1 + min(read.rest(step), 40)):
            assert not read.due(Turn(after, 0, after, 50))
    if isinstance(every, int):
        assert max(read.rest(step) for step in range(30)) == every - 1


@pytest.mark.parametrize(
    "use", [lambda scope: scope.session(None, los="x"), lambda scope: scope.hook(los="x")]
)
def test_an_unknown_argument_of_a_session_is_an_error(use, tmp_path):
    with pytest.raises(fs.WatchError, match=r"Received: `los=`\. Did you mean 'loss'"):
        use(fs.Scope(tmp_path))


def odd(step: int) -> bool:
    return step % 2 == 1


@pytest.mark.parametrize("every", [3, fs.steps(1, 5), fs.epochs(), fs.epochs(1, batch="all"), odd])
def test_a_pickled_schedule_has_the_same_steps(every):
    sent = pickle.loads(pickle.dumps(schedule(every)))

    assert due(sent, TURNS) == due(every, TURNS)
    assert [sent.rest(step) for step in range(12)] == [schedule(every).rest(step) for step in range(12)]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda scope: pickle.loads(pickle.dumps(scope))]
)
def test_a_copy_of_a_scope_has_its_settings(copied, tmp_path):
    scope = fs.Scope(
        tmp_path, fs.activations("conv*", every=fs.steps(3)), 5, tensorboard=tmp_path / "logs", npy=tmp_path / "npy",
        database=f"sqlite:///{tmp_path}/stats.sqlite", notes={"lr": 0.1}, black_box=3,
    )  # fmt: skip

    assert repr(copied(scope)) == repr(scope)

"""How often to capture is decided by what it costs: here with a training that is only a clock."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

import fitscope as fs
from fitscope.plan.allowance import seconds
from fitscope.plan.budget import LADDER, LEAST, START, Budget, Spent, Time
from fitscope.schedule import Turn


class Training:
    """Steps that take a known time, of which captured ones take longer, give the writer work and wait for it."""

    def __init__(
        self, budget, *, plain=0.01, extra=0.0, writer=0.0, waits=0.0, noise=0.0, together=1, compiling=5.0, compares=False,
        bursts=0.0, regular=0.0,
    ):  # fmt: skip
        self.budget = budget
        self.plain, self.extra, self.writer_takes, self.waits, self.noise = plain, extra, writer, waits, noise
        self.together, self.compares = together, compares
        self.regular = regular  # the share of the time that the writer works whatever is captured
        self.bursts = bursts  # the share of steps in which another program has the processor for a while
        self.step, self.wall, self.cpu, self.writer, self.waited = 0, 0.0, 0.0, 0.0, 0.0
        self.compiling, self.compiled = (
            compiling,
            {False: 0, True: 0},
        )  # of the plain program and the tapped one
        self.captured: list[int] = []
        self.cost = 0.0  # seconds of all captures, without compiling
        self.timed = 0
        self.random = random.Random(1)

    def spent(self):
        regular = self.regular * self.wall
        return Spent(
            Time(self.wall, self.cpu + regular),
            self.writer + regular,
            self.waited,
            self.compiled[True],
            self.writer,
            self.compiling * self.compiled[True],
        )

    def run(self, steps, *, epoch=100):
        for _ in range(0, steps, self.together):
            turns = [Turn(self.step + k, 0, (self.step + k) % epoch, epoch) for k in range(self.together)]
            due = [turn.step for turn in turns if self.budget.schedule.due(turn)]
            tapped = [
                turn.step
                for turn in turns
                if turn.step in due or (self.compares and self.budget.schedule.due(turn.following()))
            ]
            timed = self.budget.next(self.step, self.together, len(due), len(tapped))
            self.timed += timed
            if timed:
                self.budget.start(self.spent())
            takes = self.plain * self.together * (1 + self.noise * self.random.random())
            self.captured += due
            takes += self.extra * len(tapped)
            self.cost += self.extra * len(tapped) + (self.writer_takes + self.waits) * len(due)
            self.writer += self.writer_takes * len(due)
            self.cpu += self.writer_takes * len(due)
            self.waited += self.waits * len(due)
            self.wall += self.waits * len(due)
            if not self.compiled[bool(tapped)]:
                self.compiled[bool(tapped)], takes = 1, takes + self.compiling
            self.wall += takes + self.burst()
            self.cpu += takes
            self.step += self.together
            if timed:
                self.budget.stop(self.spent())
        return self

    def burst(self):
        return self.random.uniform(0.005, 0.1) if self.random.random() < self.bursts else 0.0

    @property
    def share(self):
        return self.cost / (self.step * self.plain)


@pytest.mark.parametrize(
    ("extra", "writer", "every"),
    [
        (0.0, 0.0, 1),
        (0.0, 0.0001, 1),
        (0.0001, 0.0002, 2),
        (0.0008, 0.0008, 10),
        (0.0038, 0.0, 20),
        (0.019, 0.019, 200),
    ],
)
def test_steps_are_captured_as_often_as_the_share_allows(extra, writer, every):
    training = Training(Budget(0.02), extra=extra, writer=writer).run(20_000)
    assert training.budget.every == every
    assert training.share <= 0.0205
    assert training.budget.cost == pytest.approx((extra + writer) / 0.01, rel=0.02, abs=1e-6)


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noisy_timings_cost_captures_and_not_the_budget(noise):
    training = Training(Budget(0.02), extra=0.003, writer=0.001, noise=noise).run(20_000)
    assert training.share <= 0.0205
    assert len(training.captured) > 20_000 / 300


def test_an_expensive_capture_is_still_made_at_the_least_cadence():
    training = Training(Budget(0.02), extra=1.0).run(20_000)
    assert training.budget.every == LEAST
    assert len(training.captured) >= 20
    assert "100 others" in training.budget.trouble
    assert training.budget.describe()["trouble"] == training.budget.trouble


def test_a_budget_that_is_kept_reports_nothing():
    assert Training(Budget(0.02), extra=0.1).run(20_000).budget.trouble is None


def test_the_cadence_follows_the_measured_cost():
    training = Training(Budget(0.02), extra=0.0007).run(5_000)
    assert training.budget.every == 5
    training.extra = 0.0095
    assert training.run(5_000).budget.every == 50
    training.extra = 0.0005
    assert training.run(20_000).budget.every <= 5
    steps = [decision["step"] for decision in training.budget.decisions]
    assert steps == sorted(steps)
    assert training.budget.decisions[0]["every"] == START
    assert all(d["every"] in LADDER for d in training.budget.decisions)
    assert training.budget.describe()["every"] == training.budget.decisions[-1]["every"]


@pytest.mark.parametrize("costlier", ["writer_takes", "extra", "waits"])
def test_a_cost_that_grows_is_noticed_while_every_step_is_captured(costlier):
    training = Training(Budget(0.02)).run(1_000)
    assert training.budget.every == 1
    assert len(training.captured) > 800  # two of sixty-four are left out, to compare with
    setattr(training, costlier, 0.01)
    training.cost, before = 0.0, training.step
    training.run(20_000)
    assert training.budget.every >= 50
    assert training.cost / ((training.step - before) * training.plain) <= 0.05  # until it was noticed


def test_regular_work_of_the_writer_does_not_make_captures_rarer():
    training = Training(Budget(0.02), extra=0.0008, writer=0.0008, regular=0.05).run(20_000)
    assert training.budget.every == 10


@pytest.mark.parametrize("epoch", [1, 2, 5, 10, 50, 100])
@pytest.mark.parametrize("extra", [0.0008, 0.05])
def test_short_epochs_are_measured_too(epoch, extra):
    """Also where each captured step is the first of its epoch, or each epoch has one step."""
    training = Training(Budget(0.02), extra=extra).run(40_000, epoch=epoch)
    assert training.budget.cost == pytest.approx(extra / 0.01)
    assert training.share <= 0.021


@pytest.mark.parametrize("extra", [0.0001, 0.0019, 0.05])
def test_a_comparison_with_the_previous_batch_costs_two_steps(extra):
    training = Training(Budget(0.02), extra=extra, compares=True).run(40_000)
    assert training.share <= 0.025
    assert training.budget.cost == pytest.approx(2 * extra / 0.01, rel=0.1)


@pytest.mark.parametrize("together", [4, 16, 50])
def test_the_budget_holds_if_every_execution_has_a_captured_step(together):
    training = Training(Budget(0.02), extra=0.05, together=together).run(100_000, epoch=10_000)
    assert training.share <= 0.025
    assert training.budget.every >= 200


def test_compiling_is_not_counted():
    dear = Training(Budget(0.02), extra=0.0007, compiling=1000.0).run(2_000)
    assert dear.budget.every == 5


def test_one_slow_step_does_not_stop_the_captures():
    training = Training(Budget(0.02), extra=10.0).run(START + 1)
    training.extra = 0.001
    training.run(1)
    assert training.budget.every <= 10 * START
    assert training.run(3_000).budget.every <= 10


def test_several_steps_in_one_execution_are_timed_together():
    training = Training(Budget(0.02), extra=0.0008, writer=0.0008, together=4).run(20_000, epoch=400)
    assert training.budget.every == 10
    assert training.share <= 0.0205


def test_only_few_steps_are_timed():
    training = Training(Budget(0.02), extra=0.02).run(20_000)
    assert training.timed < 100


def test_the_next_training_keeps_the_cadence():
    budget = Budget(0.02)
    Training(budget, extra=0.019, writer=0.019).run(10_000)
    assert budget.every == 200
    again = Training(budget, extra=0.019, writer=0.019)  # clocks and the writer begin at zero
    budget.again()
    assert again.run(10_000).share <= 0.0205
    assert budget.every == 200


@pytest.mark.parametrize("share", [0, 1, 2.0, -0.1, True, "2%", float("nan")])
def test_an_invalid_share_is_refused(share):
    with pytest.raises(fs.WatchError, match="between 0 and 1"):
        fs.Scope("runs", budget=share)


def test_a_scope_without_every_or_budget_is_an_error():
    with pytest.raises(fs.WatchError, match="every"):
        fs.Scope("runs", budget=None)


@pytest.mark.parametrize(
    ("plain", "extra", "steps"), [(0.002, 0.004, 3_125), (0.006, 0.006, 3_125), (0.03, 0.01, 400)]
)
def test_a_short_training_is_recorded_closely_within_the_allowance(plain, extra, steps):
    budget = Budget(0.02, 3.0)
    budget.expect(0, steps)
    training = Training(budget, plain=plain, extra=extra, noise=0.2, compiling=0.5).run(steps)
    assert len(training.captured) >= min(300, 0.5 * steps)
    assert training.cost <= 3.2
    gaps = [b - a for a, b in pairwise(training.captured)]
    assert max(gaps[len(gaps) // 2 :]) <= 20, "spread over all of it"
    assert 0.9 * training.cost <= budget.describe()["spent"] <= 1.4 * training.cost, (
        "rather too much than too little"
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("plain", "extra"), [(0.002, 0.002), (0.006, 0.003)])
def test_a_busy_machine_does_not_cost_a_short_training_its_steps(plain, extra, seed):
    budget = Budget(0.02, 3.0)
    budget.expect(0, 3_125)
    training = Training(budget, plain=plain, extra=extra, writer=0.001, noise=0.3, bursts=0.4, compiling=1.0)
    training.random.seed(seed)
    training.run(3_125)
    assert len(training.captured) >= 300
    assert training.cost <= 3.2


@pytest.mark.parametrize("compiling", [0.0, 0.5, 1.2, 1.7])
def test_compiling_and_captures_together_keep_to_the_allowance(compiling):
    budget = Budget(0.02, 3.0)
    budget.expect(0, 3_125)
    training = Training(budget, plain=0.002, extra=0.004, compiling=compiling).run(3_125)
    left = 3.0 - compiling
    assert 0.8 * left <= training.cost <= 1.05 * left
    assert len(training.captured) >= 300
    assert budget.describe()["fixed"] == compiling


@pytest.mark.parametrize(("extra", "reserved"), [(0.001, 0.32), (0.003, 0.96), (0.03, 1.8)])
def test_a_model_that_compiles_slowly_is_still_recorded(extra, reserved):
    budget = Budget(0.02, 3.0)
    budget.expect(0, 3_125)
    training = Training(budget, plain=0.002, extra=extra, compiling=20.0).run(3_125)
    assert 0.75 * reserved <= training.cost <= 1.1 * reserved
    assert len(training.captured) >= 300 or training.cost >= 0.75 * 0.6 * 3.0


def test_a_long_training_keeps_to_its_share():
    budget = Budget(0.02, 3.0)
    budget.expect(0, 100_000)
    training = Training(budget, extra=0.0038).run(100_000)
    assert training.share <= 0.0205
    assert budget.every == 20


def test_a_training_of_unknown_length_spends_its_allowance_slowly():
    budget = Budget(0.02, 3.0)
    budget.expect(0, None)
    training = Training(budget, extra=0.05).run(2_000)
    assert 0.4 <= training.cost <= 3.0 + 0.02 * training.step * training.plain
    assert training.run(100_000).share <= 0.021


def test_each_training_has_an_allowance():
    budget = Budget(0.02, 1.0)
    for _ in range(2):
        budget.expect(0, 1_000)
        training = Training(budget, extra=0.005).run(1_000)
        assert 100 <= len(training.captured) <= 260
        budget.again()


@pytest.mark.parametrize(
    ("given", "means"), [(2, 2.0), ("3 s", 3.0), ("500ms", 0.5), ("1 min", 60.0), (0, 0.0)]
)
def test_an_allowance_is_a_length_of_time(given, means):
    assert seconds(given, "allowance") == means


@pytest.mark.parametrize("given", [-1, "3", "3 x", True, None, float("nan"), "1.2.3 s"])
def test_an_invalid_duration_is_refused(given):
    with pytest.raises(fs.WatchError, match="allowance"):
        fs.Scope("runs", allowance=given)


def test_the_steps_after_a_spike_are_captured():
    budget = Budget(0.02, 3.0)
    budget.expect(0, 100_000)
    training = Training(budget, extra=0.019).run(5_003)
    assert budget.every >= 100
    assert budget.schedule.rest(5_003) > 0
    budget.look_closer(4_990)
    assert budget.schedule.rest(5_003) == 0
    training.run(1_000)
    assert [step for step in training.captured if 5_003 <= step < 5_023] == list(range(5_003, 5_023))
    assert len([step for step in training.captured if step >= 5_023]) <= 11
    assert budget.describe()["closer"] == [{"step": 4_990, "from": 5_003, "to": 5_023}]


def test_frequent_spikes_stay_within_the_allowance():
    budget = Budget(0.02, 3.0)
    budget.expect(0, 100_000)
    training = Training(budget, extra=0.019)
    for _ in range(200):
        training.run(100)
        budget.look_closer(training.step)
    assert training.cost <= 3.0 + 0.025 * training.step * training.plain


def test_a_training_without_room_ignores_requests_to_look_closer():
    budget = Budget(0.02)
    training = Training(budget, extra=1.0).run(2_000)
    budget.look_closer(1_990)
    before = len(training.captured)
    training.run(100)
    assert len(training.captured) <= before + 1

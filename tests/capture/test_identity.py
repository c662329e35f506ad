"""How a tapped program earns its trust: the decisions, with programs that are made up."""

from __future__ import annotations

import pytest

from fitscope.capture import identity
from fitscope.capture.backends._base import Call, Held, Obstacle, Program, TapFailed
from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.identity import Checked
from fitscope.pipeline.identity import Standings

CALL = Call((), {})


class World:
    """A training whose state is one number, which each step adds one to, and a log of what ran."""

    def __init__(self) -> None:
        self.state = 0.0
        self.log: list[str] = []
        self.noise = 0.0  # that the user's own step adds, other at every run
        self.own_fails = False

    def own(self) -> str:
        self.log.append("own")
        if self.own_fails:
            raise ValueError("of the user's own")
        self.noise *= 2
        self.state += 1 + self.noise
        return f"result {self.state}"


class Tapped(Program):
    def __init__(self, world: World) -> None:
        self.world = world
        self.off = 0.0  # by which it differs from the user's own
        self.error: Exception | None = None
        self.save_error: Exception | None = None
        self.refuses: Obstacle | None = None
        self.kind: object = "one"
        self.each = 10**6  # numbers in a proof

    def take(self, call):
        self.world.log.append("tapped")
        if self.error is not None:
            raise self.error
        self.world.state += 1 + self.off
        return f"result {self.world.state}", [Harvest()]

    def signature(self, call):
        return self.kind

    def hold(self, call):
        return Kept(self)

    def obstacle(self, held):
        return self.refuses


class Kept(Held):
    def __init__(self, program: Tapped) -> None:
        self.program, self.world = program, program.world

    def save(self):
        if self.program.save_error is not None:
            raise self.program.save_error
        self.saved = self.world.state

    def restore(self):
        self.world.state = self.saved

    def call(self):
        return CALL

    rehearsal = call

    def after(self, result):
        return result, self.world.state

    def result(self, after):
        return after[0]

    def adopt(self, after):
        self.world.state = after[1]

    def numbers(self, after):
        return self.program.each

    def same(self, one, other):
        return None if one == other else "the state differs"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def tapped(world) -> Tapped:
    return Tapped(world)


def run(checked: Checked, steps: int, first: int = 0) -> list[list[str]]:
    """Runs steps; returns what ran in each."""
    ran = []
    for step in range(first, first + steps):
        checked._program.world.log = []
        checked(CALL, step)
        ran.append(checked._program.world.log)
    return ran


def test_a_program_that_agrees_is_trusted_after_three_proofs_and_proven_again(world, tapped):
    checked = Checked(tapped, world.own, "proven")
    ran = run(checked, 120)
    proofs = [step for step, log in enumerate(ran) if log == ["own", "tapped"]]
    assert proofs == [0, 1, 2, 9, 99]
    assert all(log == ["tapped"] for step, log in enumerate(ran) if step not in proofs)
    assert checked.standing.status == "proven"
    assert checked.standing.steps == (0, 1, 2, 9, 99)
    assert world.state == 120


def test_small_programs_are_compared_at_more_steps(world, tapped):
    tapped.each = identity.NUMBERS // 7
    ran = run(Checked(tapped, world.own, "proven"), 9)
    assert [len(log) for log in ran] == [2] * 8 + [1]
    tapped.each = 1
    ran = run(Checked(tapped, world.own, "proven"), identity.MOST_PROOFS + 5)
    assert [len(log) for log in ran] == [2] * identity.MOST_PROOFS + [1] * 5


def test_a_program_that_differs_never_takes_a_step(world, tapped):
    tapped.off = 1e-9
    checked = Checked(tapped, world.own, "proven")
    ran = run(checked, 4)
    assert ran[0] == ["own", "tapped"]
    assert ran[1] == ["own", "tapped", "own"]  # does the user's own program repeat itself?
    assert ran[2:] == [["tapped", "own"]] * 2
    assert world.state == 4
    assert checked.standing.status == "twin"
    assert "at step 0" in checked.standing.why
    assert "the state differs" in checked.standing.why


def test_a_difference_at_a_later_proof_is_reported(world, tapped):
    checked = Checked(tapped, world.own, "proven")
    run(checked, 5)
    tapped.off = 1.0
    run(checked, 6, first=5)
    assert checked.standing.status == "not provable"
    assert "agreed with your own at step 2, but not at step 9" in checked.standing.why
    tapped.off = 0.0
    assert run(checked, 1, first=11) == [["tapped", "own"]]


def test_a_difference_while_every_step_was_compared_is_a_twin(world, tapped):
    checked = Checked(tapped, world.own, "proven")
    run(checked, 2)
    tapped.off = 1.0
    run(checked, 3, first=2)
    assert checked.standing.status == "twin"
    assert world.state == 5


def test_each_signature_of_arguments_is_proven_separately(world, tapped):
    checked = Checked(tapped, world.own, "proven")
    run(checked, 4)
    tapped.kind = "another"
    assert run(checked, 1, first=4) == [["own", "tapped"]]
    tapped.off = 1.0
    run(checked, 1, first=5)
    assert checked.standing.status == "twin"  # of this kind no step was taken unproven


def test_a_nondeterministic_step_is_not_provable(world, tapped):
    world.noise = 1e-3
    checked = Checked(tapped, world.own, "proven")
    run(checked, 3)
    assert checked.standing.status == "not provable"
    assert "does not repeat itself" in checked.standing.why


def test_a_proof_that_runs_out_of_memory_leaves_the_training_alone(world, tapped):
    tapped.save_error = MemoryError("no room for a copy")
    checked = Checked(tapped, world.own, "proven")
    result = checked(CALL, 0)
    assert (world.log, world.state, result.result) == (["own"], 1, "result 1.0")
    assert checked.standing.status == "twin"
    assert "MemoryError: no room for a copy" in checked.standing.why
    tapped.save_error = None
    assert run(checked, 1, first=1) == [["tapped", "own"]]


def test_an_error_in_the_users_step_reaches_the_user(world, tapped):
    world.own_fails = True
    with pytest.raises(ValueError, match="of the user's own"):
        Checked(tapped, world.own, "proven")(CALL, 0)
    assert "tapped" not in world.log
    with pytest.raises(ValueError, match="of the user's own"):
        Checked(tapped, world.own, "twin")(CALL, 0)


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), TapFailed(RuntimeError("out of memory"), CALL)]
)
@pytest.mark.parametrize("choice", ["proven", "twin"])
def test_a_failing_tapped_program_is_reported_and_the_users_program_takes_the_step(
    world, tapped, error, choice
):
    tapped.error = error
    ran = Checked(tapped, world.own, choice)(CALL, 0)
    assert str(ran.failure) == "out of memory"
    assert (ran.result, world.state) == ("result 1.0", 1)


def test_an_interrupt_during_the_proof_keeps_the_result_of_the_users_program(world, tapped):
    tapped.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        Checked(tapped, world.own, "proven")(CALL, 0)
    assert world.state == 1


def test_a_step_with_side_effects_is_not_proven_by_running_it_twice(world, tapped):
    tapped.refuses = Obstacle("it prints", beside=True)
    checked = Checked(tapped, world.own, "proven")
    assert run(checked, 2) == [["tapped", "own"]] * 2
    assert (checked.standing.status, checked.standing.why) == ("twin", "it prints")
    tapped.refuses = Obstacle("it asks Python", beside=False)
    checked = Checked(tapped, world.own, "proven")
    assert run(checked, 2) == [["tapped"]] * 2
    assert checked.standing.status == "not provable"
    refused = Checked(tapped, world.own, "twin")
    world.log = []
    ran = refused(CALL, 0)
    assert world.log == ["own"]
    assert "it asks Python" in str(ran.failure)


def test_a_step_identical_by_construction_runs_once(world, tapped):
    tapped.identical = "hooks add nothing"
    for choice in ("proven", "twin"):
        checked = Checked(tapped, world.own, choice)
        assert run(checked, 2) == [["tapped"]] * 2
        assert checked.standing.status == "proven"
        assert "hooks add nothing" in checked.standing.why


def test_identity_trust_and_twin_run_as_chosen(world, tapped):
    tapped.off = 1.0
    trusting = Checked(tapped, world.own, "trust")
    assert run(trusting, 2) == [["tapped"]] * 2
    assert trusting.standing.status == "trust"
    world.state = 0.0
    twin = Checked(tapped, world.own, "twin")
    assert run(twin, 2) == [["tapped", "own"]] * 2
    assert (twin.standing.status, world.state) == ("twin", 2)


def test_a_phase_has_the_status_of_its_worst_program():
    known = Standings()
    known.learn("train", 1, identity.Standing("proven", "", (0, 9)))
    known.learn("train", 2, identity.Standing("twin", "it differs", (4,)))
    known.learn("validation", 1, identity.Standing("proven", "", (5,)))
    assert known.describe(captured=3) == {
        "train": {"status": "twin", "steps": [0, 4, 9], "why": "it differs"},
        "validation": {"status": "proven", "steps": [5], "why": ""},
    }


def test_captured_steps_without_a_comparison_count_as_not_provable():
    assert Standings().describe(captured=0) == {}
    assert Standings().describe(captured=1)["train"]["status"] == "not provable"


@pytest.mark.parametrize("choice", ["proven", "twin"])
def test_the_end_of_the_data_reaches_the_users_program_too(world, tapped, choice):
    tapped.kind = None  # only the batch tells

    def exhausted(call):
        raise StopIteration

    tapped.hold = exhausted
    with pytest.raises(StopIteration):
        Checked(tapped, world.own, choice)(CALL, 0)
    assert world.log == ["own"]

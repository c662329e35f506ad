"""Whether watching changes the training: proven in the user's own run, or ruled out by construction.

A compiler may round a program with more outputs differently, and no trick inside the program can promise that it does not. So
before a tapped program takes a step of the training, it is compared with the user's own: both run once from the same state on the
same batch, and everything they return and change is compared bit for bit. The user's own result is the one that training
goes on with, so the proof itself cannot change anything. Equal: the tapped program may take the captured steps. Not equal: it is
a *twin* from then on. The user's own program takes every step, and the twin runs alongside on the same state and batch, only to
be recorded.

Two programs that round differently may agree by chance, the more so the fewer numbers they return. So nothing is trusted before
`PROOFS` steps agreed and `NUMBERS` numbers were compared, and the proof is repeated at the 10th, 100th, … captured step, and
for each new signature of the arguments, which may be another compiled program. If the proof cannot be made, because memory does
not allow a copy of the state or because the step has effects that must not happen twice, the program is a twin, or `not
provable` where even that is impossible. The run says which.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, NamedTuple

from fitscope.capture.backends._base import Call, Held, Own, Program, TapFailed
from fitscope.capture.backends._harvest import Harvest
from fitscope.pipeline.identity import Standing

CHOICES = ("proven", "twin", "trust")  #: the values of `Scope(identity=...)`, the safest first
#: If several scopes watch one step, the first of these that one of them wants applies.
STRICTEST = ("twin", "proven", "trust")
PROOFS = 3  #: captured steps at which both programs agree before fitscope trusts one,
NUMBERS = 100_000  #: with at least this many numbers in them,
MOST_PROOFS = 10  #: but no more steps
AGAIN = 10  #: the proof is repeated at the 10th, 100th, 1,000th … use of a program
MOST_STEPS = 50  #: the most proofs that the run lists


class Ran(NamedTuple):
    """The result of one captured step."""

    result: Any
    harvests: list[Harvest]
    failure: BaseException | None = None  #: the tapped program cannot be used again


def weakly(function: Any) -> Callable[[], Any]:
    """A reference that does not keep a compiled function alive.

    JAX finds traces by the traced function, and bound methods are equal. If fitscope kept a reference to the old compiled function,
    the function after a new `compile` would run the old trace, with the old loss.
    """
    if isinstance(function, MethodType):  # a new object at each look-up: a weak reference dies at once
        return lambda: function
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


class Checked:
    """A tapped program, the user's own program, and the results of comparing the two. Serves one thread at a time."""

    def __init__(
        self, program: Program, own: Own, choice: str, compiling: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.standing = FIRST[choice]
        self.proofs: list[
            float
        ] = []  #: the seconds of each proof, without compiling and without the user's own step
        self._compiling = compiling  # seconds that tapped programs took to compile so far
        self._own_seconds = 0.0  # seconds of the user's own step in the newest proof
        self._program = program
        self._its_own = weakly(own)
        self._choice = choice
        self._run: Callable[[Call, int], Ran] = self._first
        self._kinds: dict[Hashable, PerSignature] = {}  # the arguments so far, by signature

    @property
    def _own(self) -> Own:
        """The user's own program, held weakly: the caller of the step keeps it alive."""
        own: Own = self._its_own()
        return own

    def __call__(self, call: Call, step: int) -> Ran:
        """Runs the captured step of this number. Raises the errors of the user's own step, and `TapFailed` before anything ran."""
        return self._run(call, step)

    # ---- the ways to run ---------------------------------------------------------------------------------

    def _first(self, call: Call, step: int) -> Ran:
        """Decides the cases that are known in advance."""
        if self._choice == "trust":
            self._run = self._take
        elif self._program.identical is not None:
            self.standing = Standing("proven", f"by construction: {self._program.identical}")
            self._run = self._take
        else:
            self._run = self._proving if self._choice == "proven" else self._beside_by_choice
        return self._run(call, step)

    def _hold(self, call: Call) -> Held:
        """Holds the arguments. If there is no batch left, or drawing it fails, the user's own program must see that too,
        because a TensorFlow graph changes some of its state even then.
        """
        try:
            return self._program.hold(call)
        except Exception:
            with contextlib.suppress(Exception):
                call.of(self._own)
            raise

    def _take(self, call: Call, step: int) -> Ran:  # noqa: ARG002
        return Ran(*self._program.take(call))

    def _proving(self, call: Call, step: int) -> Ran:
        """Lets the tapped program take the step, once it is proven for such arguments."""
        try:
            signature, held = self._program.signature(call), None
        except Exception as error:
            raise TapFailed(error, call) from error
        if signature is None:
            held = self._hold(call)
            call, signature = held.call(), held.signature
        kind = self._kinds.setdefault(signature, PerSignature())
        kind.uses += 1
        if kind.due:
            began, compiled, self._own_seconds = time.perf_counter(), self._compiling(), 0.0
            try:
                return self._prove(held or self._hold(call), step, kind)
            finally:
                others = self._own_seconds + self._compiling() - compiled
                self.proofs.append(max(time.perf_counter() - began - others, 0.0))
        kind.trusted = True
        return Ran(*self._program.take(call))

    def _beside_by_choice(self, call: Call, step: int) -> Ran:
        held = self._hold(call)
        obstacle = self._program.obstacle(held)
        if obstacle is not None and obstacle.instead is not None:
            self._program = obstacle.instead
            return self._first(held.call(), step)
        if obstacle is not None and not obstacle.beside:
            why = f'with identity="twin" nothing of this step can be recorded: {obstacle.why}'
            return Ran(held.call().of(self._own), [], RuntimeError(why))
        self._run = self._beside
        return self._look(held)

    def _beside(self, call: Call, step: int) -> Ran:  # noqa: ARG002
        return self._look(self._hold(call))

    def _look(self, held: Held) -> Ran:
        """Lets the user's own program take the step, and records the tapped one."""
        harvests: list[Harvest] = []
        failure: BaseException | None = None
        try:
            harvests = self._program.look(held)
        except TapFailed as failed:
            failure = failed.error
        except Exception as error:
            failure = error
        # Outside the handlers, so that errors of the user's own step do not show fitscope's failure as their context.
        return Ran(held.call().of(self._own), harvests, failure)

    def _unsettled(self, call: Call, step: int) -> Ran:
        """The first step after the two programs differed: checks whether the user's own program agrees with itself."""
        held = self._hold(call)
        self._run = self._beside
        expected, error = self._rehearsed(held)
        ran = self._look(held)
        try:
            differs = held.same(expected, held.after(ran.result)) if error is None else None
        except Exception as problem:
            return ran._replace(failure=ran.failure or problem)
        if differs is not None:
            why = (
                f"your own program does not repeat itself: run twice from one state at step {step}, {differs}"
            )
            self.standing = replace(self.standing, status="not provable", why=why)
        return ran

    # ---- the proof -----------------------------------------------------------------------------------------

    def _prove(self, held: Held, step: int, kind: PerSignature) -> Ran:
        """Runs both programs from one state and compares them. Training continues with the result of the user's own."""
        obstacle = self._program.obstacle(held)
        if obstacle is not None:
            status = "twin" if obstacle.beside else "not provable"
            self._decide(status, obstacle.why, self._beside if obstacle.beside else self._take)
            return self._look(held) if obstacle.beside else Ran(*self._program.take(held.call()))
        expected, error = self._rehearsed(held)
        if error is not None:
            # Nothing has happened to the state itself. An error of the user's own step is raised here, once more.
            self._decide("twin", f"the proof at step {step} failed: {error}", self._beside)
            return Ran(held.call().of(self._own), [])
        harvests: list[Harvest] = []
        failure: BaseException | None = None
        try:
            result, harvests = self._program.take(held.call())
            kind.proofs += 1
            kind.numbers += held.numbers(expected)
            self._judge(held.same(expected, held.after(result)), step, kind)
        except TapFailed as failed:
            failure = failed.error
        except Exception as error:
            failure = error
        finally:  # even after an interruption: the step is done
            held.adopt(expected)
        return Ran(held.result(expected), harvests, failure)

    def _rehearsed(self, held: Held) -> tuple[Any, str | None]:
        """The result of the user's own program on a copy of the state, or the reason why it is unknown."""
        try:
            held.save()
            began = time.perf_counter()
            try:
                return held.after(held.rehearsal().of(self._own)), None
            finally:
                self._own_seconds += time.perf_counter() - began
                held.restore()
        except Exception as error:
            return None, f"{type(error).__name__}: {error}".partition("\n")[0]

    def _judge(self, differs: str | None, step: int, kind: PerSignature) -> None:
        steps = self.standing.steps
        if differs is None:
            steps = steps if len(steps) >= MOST_STEPS else (*steps, step)
            self.standing = Standing("proven", "", steps)
        elif not kind.trusted:
            why = (
                f"at step {step} the program with taps did not agree with your own to the last bit: {differs}"
            )
            self._decide("twin", why, self._unsettled)
        else:
            why = (
                f"the program with taps agreed with your own at step {steps[-1]}, but not at step {step}: {differs}. From then on "
                "your own program took every step"
            )
            self._decide("not provable", why, self._beside)

    def _decide(self, status: str, why: str, run: Callable[[Call, int], Ran]) -> None:
        self.standing = replace(self.standing, status=status, why=why)
        self._run = run


@dataclass(slots=True)
class PerSignature:
    """One signature of arguments, and the state of the proof for it."""

    uses: int = 0
    proofs: int = 0
    numbers: int = 0  #: the number of compared numbers
    trusted: bool = False  #: the tapped program has taken a step that was not compared

    @property
    def due(self) -> bool:
        """Whether the next step should be a proof."""
        enough = self.proofs >= PROOFS and (self.numbers >= NUMBERS or self.proofs >= MOST_PROOFS)
        return not enough or _power_of(AGAIN, self.uses)


FIRST = {
    "proven": Standing("not provable", "nothing was proven yet"),
    "twin": Standing("twin", 'Scope(identity="twin") asks for it'),
    "lockstep": Standing(
        "twin",
        "several processes must run the same programs in the same order, so none decides by a proof of its own",
    ),
    "trust": Standing("trust", 'Scope(identity="trust") asks for no proof'),
}


def _power_of(base: int, number: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1

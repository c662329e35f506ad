"""Decides whether extra fetches change a session's run: proven in the run itself, ruled out, or reported as not provable.

More fetches may lead TensorFlow to another rewriting of the graph. So the first captured runs of each kind are made twice from
the same variables: as the user wrote them, then with the extra fetches. fitscope compares their results, and all variables that
they write to, bit for bit. Training continues from the state after the user's own run. If the two differ, the user's own run takes
every
step, and the extra fetches run separately before it: a *twin*, which writes to no variable.

A run that does more than read and write variables cannot be made twice: random numbers are drawn again, a pipeline goes on to the next
batch, a queue is emptied. Such a run is `not provable`, and the reason names the operation.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fitscope.capture.bits import same_bits
from fitscope.capture.identity import FIRST, MOST_STEPS, PerSignature
from fitscope.capture.sessions.graph import Op, executed, written_variables
from fitscope.capture.sessions.reading import Reading, RunCall
from fitscope.pipeline.identity import Standing

#: Operations with a state that is a variable, or does not outlive the run.
_REPEATABLE = re.compile(
    r"^(VarHandleOp|VariableV2|Variable|ReadVariableOp|VarIsInitializedOp|IsVariableInitialized|VariableShape|ResourceGather(Nd)?"
    r"|Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|TensorArray\w*|Stack\w*|Assert|NoOp|Placeholder\w*"
    r"|HashTable(V2)?|LookupTable(Find|Size)(V2)?)$"
)
_COLLECTIONS = ("variables", "local_variables", "trainable_variables", "model_variables", "metric_variables")

Results = Any


class Ways(NamedTuple):
    """The ways to make one coming run. Other watchers of the session see the first two."""

    own: Callable[[], Results]  #: runs what the user wrote
    both: Callable[[], tuple[Results, Any]]  #: runs it with the extra fetches; returns their values too
    rehearse_own: Callable[[], Results]
    rehearse: Callable[[], tuple[Results, Any]]
    look: Callable[[], Any]  #: runs the extra fetches alone


class IdentityCheck:
    """The knowledge about the runs of one session, and how to make the next one."""

    def __init__(
        self,
        choice: str,
        run: Callable[..., Any],
        learn: Callable[[str, object, Standing], None],
        failed: Callable[[BaseException], None],
        lock: AbstractContextManager[Any],
        *,
        shared: bool = False,
    ) -> None:
        self.seconds: list[float] = []  #: the seconds of each proof
        self._choice = choice
        self._run = run  # the session's own `run`, past other watchers
        self._shared = shared  # whether a server holds the variables, where other clients may write to them
        self._learn, self._failed = learn, failed
        self._lock = lock  # other runs wait, because a proof changes the variables
        self._known: dict[int, _Known] = {}

    def __call__(
        self, call: RunCall, reading: Reading, step: int, ways: Ways, *, alone: bool
    ) -> tuple[Results, Any]:
        """Makes a captured run. Raises the errors of the user's own run."""
        known = self._known.get(id(reading))
        if known is None:
            known = self._known[id(reading)] = _Known(reading, FIRST[self._choice])
            known.begin(self._choice, lambda: self._obstacle(call, known))
        try:
            return self._make(known, call, step, ways, alone=alone)
        finally:
            self._learn(call.kind or "", id(reading), known.standing)

    def _make(
        self, known: _Known, call: RunCall, step: int, ways: Ways, *, alone: bool
    ) -> tuple[Results, Any]:
        known.kind.uses += 1
        if known.twin:
            return self._beside(known, call, ways)
        if known.settled or not known.kind.due:
            known.kind.trusted = True
            return ways.both()
        if not alone:
            known.settle(
                "not provable", "several threads run steps at the same time, so that none can be made twice"
            )
            return ways.both()
        began = time.perf_counter()
        try:
            with self._lock:
                return self._compared(known, call, step, ways)
        finally:
            self.seconds.append(time.perf_counter() - began)

    def _compared(self, known: _Known, call: RunCall, step: int, ways: Ways) -> tuple[Results, Any]:
        try:
            state = _State(call, self._run)
            before = state.read()
        except Exception as error:  # nothing has happened yet
            known.settle("not provable", f"the variables cannot be read: {_short(error)}")
            return ways.both()
        return self._prove(known, state, before, step, ways)

    def _beside(self, known: _Known, call: RunCall, ways: Ways) -> tuple[Results, Any]:
        """Lets the user's own run take the step; fitscope's run comes before it and does not change the variables."""
        shown = None
        try:
            if not known.looking_writes:
                shown = ways.look()
            else:
                with self._lock:
                    state = _State(call, self._run)
                    before = state.read()
                    try:
                        shown = ways.look()
                    finally:
                        state.write(before)
        except Exception as error:
            self._failed(error)
        return ways.own(), shown

    def _prove(
        self, known: _Known, state: _State, before: dict[str, Any], step: int, ways: Ways
    ) -> tuple[Results, Any]:
        results, shown = ways.own(), None
        try:
            after = state.read()
        except Exception as error:  # the user's own step is done
            known.settle("not provable", f"the variables cannot be read: {_short(error)}")
            return results, None
        try:
            state.write(before)
            theirs, shown = ways.rehearse()
            differs = _differs(results, theirs) or _differs(after, state.read())
            known.kind.proofs += 1
            known.kind.numbers += _numbers(results) + _numbers(after)
            if differs is None:
                known.agree(step)
            else:
                state.write(before)
                known.differ(
                    step, differs, _differs(results, ways.rehearse_own()) or _differs(after, state.read())
                )
        except Exception as error:
            known.settle("not provable", f"the proof at step {step} failed: {_short(error)}")
            self._failed(error)
        finally:  # even after an interruption: the step is done
            state.write(after)
        return results, shown

    def _obstacle(self, call: RunCall, known: _Known) -> str | None:
        """The reason why a run cannot be repeated."""
        known.looking_writes = bool(written_variables(executed(_asked(known.reading), call.sig.fed)))
        if self._shared:
            return "the session's variables live on a server, where others may write to them meanwhile"
        for op in call.ops:
            if op.op_def.is_stateful and not _REPEATABLE.match(op.type):
                return f"a run with {op.name} ({op.type}) in it cannot be made twice"
        try:
            needed, free = 3 * _State(call, self._run).nbytes, available()
        except KeyError as missing:
            return f"it writes to {missing.args[0]}, a variable that the graph does not list"
        if free is not None and needed > free / 2:
            return f"to compare the variables would take {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
        return None


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


@dataclass(eq=False)
class _Known:
    """The knowledge about one kind of run."""

    reading: Reading  #: kept, so that no other object gets its id
    standing: Standing
    kind: PerSignature = field(default_factory=PerSignature)
    twin: bool = False
    looking_writes: bool = (
        False  #: the extra fetches wait for updates, as gradients under `control_dependencies(UPDATE_OPS)` do
    )
    settled: bool = False  #: whether fitscope compares nothing any more

    def begin(self, choice: str, find_obstacle: Callable[[], str | None]) -> None:
        """Decides the cases that are known in advance."""
        self.settled = choice == "trust"
        try:
            obstacle = None if self.settled else find_obstacle()
        except Exception as error:
            obstacle = f"its effects are unknown: {_short(error)}"
        if obstacle is not None:
            self.settle("not provable", obstacle)
        self.twin = choice == "twin" and not self.settled

    def settle(self, status: str, why: str) -> None:
        self.settled = True
        self.standing = replace(self.standing, status=status, why=why)

    def agree(self, step: int) -> None:
        steps = self.standing.steps
        self.standing = Standing("proven", "", steps if len(steps) >= MOST_STEPS else (*steps, step))

    def differ(self, step: int, how: str, again: str | None) -> None:
        """Records that the two runs differed at a step, and whether the user's own run differed from itself."""
        self.twin = True
        if again is not None:
            self.settle(
                "not provable", f"your own run does not repeat itself: made twice at step {step}, {again}"
            )
        elif self.kind.trusted:
            self.settle(
                "not provable",
                f"the run with fetches agreed with your own before, but not at step {step}: {how}",
            )
        else:
            self.settle(
                "twin",
                f"at step {step} the run with fetches did not agree with your own to the last bit: {how}",
            )


class _State:
    """The variables that a run writes."""

    def __init__(self, call: RunCall, run: Callable[..., Any]) -> None:
        graph = call.watched.graph
        every = {v.op.name: v for name in _COLLECTIONS for v in graph.get_collection(name)}
        self._variables = {name: every[name] for name in sorted(written_variables(call.ops))}
        self._run = run

    @property
    def nbytes(self) -> int:
        sizes = [(v.shape.num_elements() or 0) * v.dtype.base_dtype.size for v in self._variables.values()]
        return int(sum(sizes))

    def read(self) -> dict[str, Any]:
        """Copies of their current values."""
        values = self._run(self._variables) if self._variables else {}
        return {name: np.array(value) for name, value in values.items()}

    def write(self, values: Mapping[str, Any]) -> None:
        """Writes values with their initializers, which also exist in a finalized graph."""
        if values:
            begin = [variable.initializer for variable in self._variables.values()]
            self._run(
                begin, {op.inputs[1]: values[name] for op, name in zip(begin, self._variables, strict=True)}
            )


def available() -> int | None:
    """The number of free bytes of memory, if the system reports it."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _asked(reading: Reading) -> list[Op]:
    asked = reading.asked
    tensors = [
        x for given in asked["tensors"].values() for x in (given if isinstance(given, list) else [given])
    ]
    return [x.op for x in [*tensors, *([asked["pack"]] if "pack" in asked else [])]]


def _differs(one: Any, other: Any, where: str = "") -> str | None:
    """The difference between two results of a run, if any."""
    if isinstance(one, Mapping):
        pairs: Any = [(one[key], other[key], f"{key}") for key in one]
    elif isinstance(one, list | tuple):
        pairs = [(a, b, where) for a, b in zip(one, other, strict=True)]
    else:
        a, b = np.asarray(one), np.asarray(other)
        objects = a.dtype.kind == "O"
        same = a.shape == b.shape and repr(a.tolist()) == repr(b.tolist()) if objects else same_bits(a, b)
        return None if same else f"{where or 'a result'} differs"
    return next((found for a, b, at in pairs if (found := _differs(a, b, at)) is not None), None)


def _numbers(results: Any) -> int:
    if isinstance(results, Mapping):
        return sum(_numbers(value) for value in results.values())
    if isinstance(results, list | tuple):
        return sum(_numbers(value) for value in results)
    return 0 if results is None else int(np.size(results))

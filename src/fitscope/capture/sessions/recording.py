"""One recorded session: the meaning of each run, and the values taken from it.

The patch on the session reports every `run`, before and after. A run that trains is a step. Other runs matter only if they are a
validation, a prediction or a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.capture.sessions.evaluations import Data, Evaluations, fingerprints
from fitscope.capture.sessions.identity import IdentityCheck, Ways
from fitscope.capture.sessions.progress import Progress, Upcoming, kept
from fitscope.capture.sessions.reading import Reading, RunCall, Watched, weights_of
from fitscope.capture.sessions.signature import Signature, fed_values, signature
from fitscope.capture.sessions.train_ops import training_roots
from fitscope.pipeline.ending import Ending
from fitscope.pipeline.handover import Shown
from fitscope.pipeline.recorder import Recorder
from fitscope.plan.plan import Plan, Watches
from fitscope.record import Moment
from fitscope.schedule import Turn

Run = Callable[..., Any]  #: `sess.run` as it was


@dataclass(slots=True)
class UpcomingRun(Upcoming):
    """A coming run, and the tensors to read from it."""

    call: RunCall | None = None
    reading: Reading | None = None
    before: Mapping[str, Any] | None = None  #: the weights before the step
    trouble: Exception | None = None  #: the reason why fitscope reads nothing


class SessionRecording(Progress):
    """One recorded session."""

    def __init__(
        self, watched: Watched, plan: Plan, recorder: Recorder, *, in_graph: bool, identity: str = "trust"
    ) -> None:
        super().__init__(watched.graph, plan, recorder)
        self.watched = watched
        self._in_graph = in_graph
        self._calls: dict[Signature, RunCall] = {}
        self._choice = identity
        self._identity: IdentityCheck | None = None
        self._make: Callable[[Any], Callable[[], Any]] | None = None  # makes a callable of the session
        # The callables that read variables, by path.
        self._made: dict[tuple[str, ...], Callable[[], Any]] = {}
        self._under_way = 0  # the number of running steps
        self._first_step = 0
        # The number of steps of each of several train ops.
        self._steps_of: Counter[frozenset[str]] = Counter()
        self._evaluations = Evaluations(self._put_validation)

    @kept
    def prepare(self) -> None:
        """Adds the operations that its steps will need to the graph, before it is finalized."""
        every: Watches = frozenset(range(len(self.plan.watches)))
        for root in training_roots(self.watched.graph, self.watched.train_ops):
            self._call(Signature((root.name,), frozenset())).reading(
                self.plan.wants(every), every, in_graph=self._in_graph
            )

    def again(self, begin: Callable[[], SessionRecording]) -> SessionRecording:
        """Continues the training with another session, perhaps from an earlier step, as another attempt at the run."""
        self.recorder.finish(Ending("interrupted", None))
        following = begin()
        following.watched, following.plan = self.watched, self.plan  # the graph is finalized
        following._calls, following._epoch = self._calls, self._epoch
        return following

    def identify(self, run: Run, make: Callable[[Any], Callable[[], Any]], *, shared: bool) -> None:
        """Compares captured runs with the user's own from now on.

        `run` makes a run that does not count as a step, `make` a callable of the same session.
        """
        recorder = self.recorder
        self._make, self._made = make, {}
        self._identity = made = IdentityCheck(
            self._choice, run, recorder.identity.learn, recorder.failed, self.lock, shared=shared
        )
        recorder.costs.proofs = lambda: made.seconds

    def made(self, upcoming: UpcomingRun, ways: Ways) -> tuple[Any, Any]:
        """Makes a run, and returns the user's results and fitscope's. Raises the errors of the user's own run."""
        if upcoming.reading is None or upcoming.call is None or self._identity is None:
            return ways.own(), None
        alone = self._under_way == 1 or upcoming.in_pass != "train"
        return self._identity(upcoming.call, upcoming.reading, upcoming.turn.step, ways, alone=alone)

    @property
    def saw_nothing(self) -> bool:
        """Whether the session ran something, but nothing that fitscope records."""
        ran = any(sig.fetched for sig in self._calls)
        return ran and not self.recorder.costs.steps and self.recorder.writer is None

    # ---- reported by the patch -------------------------------------------------------------------------------

    @kept
    def before(self, run: Run, fetches: Any, feed_dict: Any) -> UpcomingRun | None:
        """Announces a run. The result says what to fetch with it."""
        graph = self.watched.graph
        sig = signature(graph, fetches, feed_dict)
        return None if sig is None else self._begin(run, sig, lambda: fed_values(graph, feed_dict))

    @kept
    def before_callable(self, run: Run, sig: Signature, fed: Mapping[str, Any]) -> UpcomingRun | None:
        """Announces a call of a callable."""
        return self._begin(run, sig, lambda: fed)

    @kept
    def before_part(self, run: Run, fetches: Any, feed_dict: Any) -> UpcomingRun | None:
        """Announces a part of a run (`partial_run`), from which nothing more can be fetched."""
        sig = signature(self.watched.graph, fetches, feed_dict)
        if sig is None or self._call(sig).kind != "train":
            return None
        upcoming = self.begin(self._call(sig), run, fetch=False)
        self.recorder.unseen(
            "steps", "steps that `partial_run` runs are counted, but nothing can be fetched from them"
        )
        return upcoming

    def _begin(self, run: Run, sig: Signature, fed: Callable[[], Mapping[str, Any]]) -> UpcomingRun | None:
        call = self._call(sig)
        return None if call.kind is None else self.begin(call, run, fingerprints(fed()))

    def begin(
        self, call: RunCall, run: Run, data: Data | None = None, *, fetch: bool = True
    ) -> UpcomingRun | None:
        """Announces a call with a meaning, on data with this fingerprint, if known. Returns None to ignore it."""
        assert call.kind is not None
        if self.next_step is None:
            self.next_step = self._first_step = self._counted(run)
        upcoming = UpcomingRun(call.kind, Turn(self.next_step, 0, 0, None), call=call)
        if call.kind == "save":
            return upcoming
        if call.kind == "train":
            self._step_on(data or {})
            upcoming.scheduled = self._first_step + self._steps_of[call.trainer]
        elif call.kind == "validation" and data:
            if not self._evaluations.begin(data):
                self._looked_at_training()
                return None
            upcoming.held = True
        wanted = (self.step if call.kind == "train" else self.pass_batch)(upcoming)
        if wanted and fetch and not call.broken:
            upcoming.reading = call.reading(self.wants(upcoming), upcoming.due.all, in_graph=self._in_graph)
            for site, why in upcoming.reading.unseen.items():
                self.unseen(site.within(upcoming.in_pass), why, self.wants(upcoming))
            self._read_weights(upcoming, run)
        self._under_way += call.kind == "train"
        return upcoming

    def _step_on(self, data: Data) -> None:
        """Classifies the runs before a step on this data."""
        validated, looked = self._evaluations.step(data)
        if validated:
            self.validated()
        if looked:
            self._looked_at_training()

    def _looked_at_training(self) -> None:
        if self.plan.on_validation:
            self.recorder.unseen(
                "validation", "the session evaluates the batch that it trains on: no validation"
            )

    def _put_validation(self, at: Moment, shown: Shown) -> None:
        self.recorder.seen(["validation"])
        self.recorder.put(at, shown)

    def hold(self, at: Moment, shown: Shown) -> None:
        self._evaluations.show(at, shown)

    def release(self) -> None:
        if self._evaluations.release():
            self.validated()

    @kept
    def raised(self, upcoming: Upcoming, error: BaseException) -> None:
        super().raised(upcoming, error)
        self._under_way -= upcoming.in_pass == "train"

    def done(self, upcoming: Upcoming) -> None:
        super().done(upcoming)
        self._under_way -= upcoming.in_pass == "train"
        if upcoming.in_pass == "train" and isinstance(upcoming, UpcomingRun) and upcoming.call is not None:
            self._steps_of[upcoming.call.trainer] += 1

    @kept
    def after(self, upcoming: UpcomingRun, run: Run, results: Any, own: Mapping[str, Any] | None) -> None:
        """Ends a successful run; `own` has fitscope's fetches."""
        if upcoming.in_pass == "save":
            self._saved(results)
            return
        if upcoming.trouble is not None:
            self.recorder.failed(upcoming.trouble)
        try:
            if own is not None and upcoming.reading is not None:
                self.deliver(upcoming, upcoming.reading.sites, self._values(upcoming, run, own))
        finally:
            self.done(upcoming)

    def failed(self, upcoming: UpcomingRun, error: BaseException) -> None:
        """Ignores this kind of run from now on, because the fetches failed."""
        assert upcoming.call is not None
        upcoming.call.broken = True
        upcoming.reading = None
        self.recorder.failed(error)

    # ------------------------------------------------------------------------------------------------------

    def _call(self, sig: Signature) -> RunCall:
        if sig not in self._calls:
            self._calls[sig] = self.watched.call(sig)
        return self._calls[sig]

    def _counted(self, run: Run) -> int:
        """The number of steps so far, from the graph's own counter if it has one."""
        found = self.watched.graph.get_collection("global_step")
        try:
            return int(run(found[0])) if len(found) == 1 else 0
        except Exception:  # the counter is not initialized: there is nothing to continue
            return 0

    def _read_weights(self, upcoming: UpcomingRun, run: Run) -> None:
        assert upcoming.reading is not None
        try:
            upcoming.before = self._read(upcoming.reading.variables, run)
        except Exception as error:  # the session is closed: the user's own run raises that
            upcoming.reading, upcoming.trouble = None, error

    def _values(self, upcoming: UpcomingRun, run: Run, own: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a run, and the weights, which are never read in the same run because it changes them."""
        reading, wants = upcoming.reading, self.wants(upcoming)
        assert reading is not None
        values = reading.values(own)
        if reading.variables and upcoming.before is not None:
            moved = {path: v for path, v in reading.variables.items() if ("updates", path) in wants}
            values |= weights_of(reading, wants, upcoming.before, self._read(moved, run))
        return values

    def _read(self, variables: dict[str, Any], run: Run) -> Mapping[str, Any]:
        """The values of variables, by path. A callable looks them up in the graph once, and `run` each time."""
        if not variables:
            return {}
        if self._make is None:
            found: Mapping[str, Any] = run(variables)
            return found
        key = tuple(variables)
        if key not in self._made:
            self._made[key] = self._make(list(variables.values()))
        return dict(zip(key, self._made[key](), strict=True))

    def _saved(self, results: Any) -> None:
        """The path of a checkpoint: `Saver.save` runs its operation through the session and gets the path back."""
        path = next((path for path in _paths(results)), None)
        if path is not None:
            self.saved(path)


def _paths(results: Any) -> list[str]:
    found = []
    for item in results if isinstance(results, list | tuple) else [results]:
        if isinstance(item, bytes | str | np.bytes_ | np.str_):
            found.append(item.decode() if isinstance(item, bytes) else str(item))
        elif isinstance(item, np.ndarray) and item.dtype == object and item.ndim == 0:
            found += _paths(item.item())
    return found

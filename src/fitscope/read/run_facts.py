"""The facts about a run: its state, its cost, its processes, and its notes.

They come from small documents: `run.json`, one per attempt, one status per rank, and the notes. No table is read. fitscope merges the
status of several ranks: the worst one counts, numbers add up, and lists are concatenated.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from fitscope.diagnose.pulses import Pulses
from fitscope.errors import RunError, one_of
from fitscope.read.damage import Damage
from fitscope.read.identity import Identity, identity_of
from fitscope.read.state import RunState
from fitscope.store import schema
from fitscope.store._base import Objects

if TYPE_CHECKING:
    import pandas as pd

LATEST = 253_402_300_799.0  #: the end of year 9999 in seconds since 1970, the last that a datetime can hold
#: From the worst to the best: of several ranks, the worst status counts.
SEVERITY = ("failed", "interrupted", "running", "complete")


class RunFacts:
    """A run without its data, which `Run` adds."""

    def __init__(self, objects: Objects, document: dict[str, Any], only: int | None = None) -> None:
        self._only = only  # the rank that the run is restricted to
        self.id = str(document.get("id", ""))  #: the name of its folder, which begins with date and time
        self.path = objects.describe()  #: its directory or URL
        self.info = document  #: run.json: software versions, model, plan and notes at the start
        self.created = datetime.fromtimestamp(
            min((document.get("created_ns") or 0) / 1e9, LATEST), UTC
        )  #: in UTC
        self._state = self._follow(objects)
        self._pulsed: tuple[dict[int, dict[str, Any]], Pulses | None] | None = None  # statuses, their pulses

    @property
    def status(self) -> str:
        """The state: "running", "complete", "interrupted" or "failed". It is "running" only while the writing process is alive."""
        said = {status.get("status") for status in self._statuses(newest=True)}
        return next((word for word in SEVERITY if word in said), "interrupted")

    @property
    def last_step(self) -> int | None:
        """The last recorded step; None before the first."""
        self._state.look()
        return self._state.last_step()

    @property
    def bytes(self) -> int:
        """The size of the run in bytes."""
        return sum(int(status.get("bytes") or 0) for status in self._statuses())

    @property
    def errors(self) -> list[str]:
        """The first errors of each rank while recording; `errors_total` counts all."""
        return [str(error) for status in self._statuses() for error in status.get("errors", ())]

    @property
    def errors_total(self) -> int:
        """The number of errors while recording."""
        return sum(int(status.get("errors_total") or 0) for status in self._statuses())

    @property
    def ended_by(self) -> str | None:
        """The exception or signal that ended the training, if known."""
        return next((str(s["ended_by"]) for s in self._statuses(newest=True) if s.get("ended_by")), None)

    @property
    def dropped(self) -> dict[str, int]:
        """The number of records dropped because the queue was full, by site."""
        return self._counted("dropped")

    @property
    def lost(self) -> dict[str, int]:
        """The number of records that could not be stored because of an error or the limit, by site."""
        return self._counted("lost")

    @property
    def limit_reached_at(self) -> int | None:
        """The step at which the disk limit stopped the recording; None if it did not."""
        return min((s["full_at"] for s in self._statuses() if s.get("full_at") is not None), default=None)

    @property
    def overhead(self) -> dict[str, Any]:
        """The cost of recording, as measured by the newest attempt."""
        said = (status.get("overhead") for status in self._statuses(newest=True))
        return next((dict(one) for one in said if one and isinstance(one, dict)), {})

    @property
    def identity(self) -> Identity:
        """Whether recording changed the training: "proven", "twin" or "not provable", with `.steps` and `.why`."""
        return identity_of(self._statuses())

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The starts of this training, each described as it began."""
        self._state.look()
        return self._state.attempts

    @property
    def ranks(self) -> pd.DataFrame:
        """The processes of the newest attempt, one row each: status, last step, when it last wrote, pace, host, process."""
        from fitscope.read.rank_frames import ranks

        self._state.look()
        return ranks(self._state.newest_ranks(), self._pulses())

    @property
    def pulse(self) -> pd.DataFrame:
        """A few steps of each process, to compare them by: time, CPU seconds so far, loss, and the rms of all trainable weights.

        Every process writes it, also those that record nothing else. Processes that train one model have the same weights.
        """
        from fitscope.read.rank_frames import pulse

        self._state.look()
        return pulse(self._state.pulses())

    @property
    def model(self) -> dict[str, Any] | None:
        """The description of the model in the newest attempt."""
        model: dict[str, Any] | None = self._newest("model")
        return model

    @property
    def configuration(self) -> dict[str, Any]:
        """How the model was set up and trained, in the newest attempt: layers, outputs, losses, optimizer, `fit`."""
        return dict(self._newest("configuration") or {})

    @property
    def plan(self) -> list[dict[str, Any]] | None:
        """The watches of the newest attempt, one document each."""
        plan: list[dict[str, Any]] | None = self._newest("plan")
        return plan

    @property
    def notes(self) -> str | float | bool | list[Any] | dict[str, Any] | None:
        """Your notes about the run: those of `fs.Scope(notes=…)`, or what you set here: text or any JSON data."""
        from fitscope.read import notes

        found: str | None = notes.stored(self._state.objects).get("notes", self.info.get("notes"))
        return found

    @notes.setter
    def notes(self, notes: str | float | bool | list[Any] | dict[str, Any] | None) -> None:
        from fitscope.read.notes import write

        write(self._state.objects, notes=notes)

    @property
    def tags(self) -> list[str]:
        """The tags of the run, in the order in which they were added."""
        from fitscope.read.notes import stored

        return list(stored(self._state.objects).get("tags", ()))

    def tag(self, *tags: str) -> Self:
        """Adds tags to the run, as `fitscope note RUN --tag TAG` does."""
        from fitscope.read.notes import tagged, write

        write(self._state.objects, tags=tagged(self.tags, tags))
        return self

    def untag(self, *tags: str) -> Self:
        """Removes tags from the run. A tag that it does not have is ignored."""
        from fitscope.read.notes import write

        write(self._state.objects, tags=[tag for tag in self.tags if tag not in tags])
        return self

    @property
    def checkpoints(self) -> pd.DataFrame:
        """The saved checkpoints: step (the number of updates before it), epoch, path, time."""
        import pandas as pd

        self._state.look()
        found: dict[str, dict[str, Any]] = {}
        for rank in self._state.ranks:
            for one in rank.status().get("checkpoints") or ():
                if rank.end is None or one["step"] <= rank.end:
                    found[one["path"]] = one  # a path that was saved twice holds the newer checkpoint
        frame = pd.DataFrame(list(found.values()), columns=["step", "epoch", "path", "time"])
        return frame.sort_values(["step", "time"], kind="stable", ignore_index=True)

    def checkpoint(self, step: int) -> str:
        """The path of the newest checkpoint at or before a step."""
        there = self.checkpoints
        before = there[there["step"] <= step]
        if before.empty:
            steps = [str(one) for one in there["step"]]
            raise RunError(
                f"a step at or after a checkpoint of run {self.id!r}", f"step {step}", one_of(steps, "")
            )
        return str(before["path"].iloc[-1])

    @property
    def damaged(self) -> list[Damage]:
        """The files that could not be read so far, with the reasons."""
        return list(self._state.damaged)

    def _follow(self, objects: Objects) -> RunState:
        return RunState(objects, self.id, self.info.get("format", schema.FORMAT), self._only)

    def _pulses(self) -> Pulses | None:
        """The pulses of all ranks side by side, as of the last look."""
        said = self._state.pulses()
        known = self._pulsed
        if known is None or known[0].keys() != said.keys() or any(said[n] is not known[0][n] for n in said):
            known = self._pulsed = said, Pulses.of(said)
        return known[1]

    def _bad_samples(self) -> dict[str, dict[str, Any]]:
        """For each site, the samples of its first bad batch, as of the last look. Empty with several ranks: each has part of a batch."""
        found: dict[str, dict[str, Any]] = {}
        for status in self._state.statuses() if not self._state.several_ranks else ():
            for site, one in (status.get("bad_samples") or {}).items():
                if site not in found or one["step"] < found[site]["step"]:
                    found[site] = one
        return found

    def _statuses(self, *, newest: bool = False) -> list[dict[str, Any]]:
        self._state.look()
        return self._state.statuses(newest=newest)

    def _newest(self, key: str) -> Any:
        return next((d[key] for d in reversed(self.attempts) if d.get(key) is not None), self.info.get(key))

    def _counted(self, key: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for status in self._statuses():
            for site, count in (status.get(key) or {}).items():
                total[site] = total.get(site, 0) + int(count)
        return total

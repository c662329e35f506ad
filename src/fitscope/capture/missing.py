"""Lists the wanted sites of a step that have no value, each once, with its pass and its reason.

A site that a tap met but could not return has the adapter's reason. A place that no tap met has a reason by its kind. If the step
could not run with taps, the error is the reason. A watch that was never due, and a validation that never ran, are listed when the
recording ends. So `run.unseen` and the recorded sites together are everything that the watches asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from fitscope.capture.backends import Harvest
from fitscope.capture.backends._harvest import LOCAL
from fitscope.capture.layer_taps import NOT_CALLED
from fitscope.pipeline.recorder import Recorder
from fitscope.pipeline.troubles import described
from fitscope.plan.plan import Plan, Watches
from fitscope.plan.wants import BESIDE, LOSS, SAMPLE_LOSS, derived
from fitscope.sites import Place, Site

#: Why the step passed no place of this kind, unless a tap knows a better reason.
WHY = {
    "activations": NOT_CALLED,
    "gradients": NOT_CALLED,
    "weights": "the step does not hand this weight to the model where fitscope could see it",
    "weight_gradients": "no optimizer of the model is given a gradient of it in this step",
    "updates": "no optimizer of the model moves it where fitscope could see it",
    "loss": "the step computes no loss that can be seen from outside",
    "sample_loss": "the step does not compute its loss by `compute_loss`, so there is no loss per sample",
    "inputs": "the step has no inputs that fitscope could tell from its other arguments",
    "targets": "the step is given no targets that fitscope could tell from its other arguments",
    "predictions": "the step does not call the model itself",
}

NO_VALIDATION = "no validation ran"
NEVER_DUE = "its schedule ({}) named no step that ran"


class Missing:
    """The missing sites of one recording, which may continue another one."""

    def __init__(self, plan: Plan, recorder: Recorder, after: Missing | None = None) -> None:
        self._plan = plan
        self._recorder = recorder
        # The due watches so far, by pass.
        self._due: dict[str, Watches] = dict(after._due) if after is not None else {}
        self._looked: set[tuple[Watches, str]] = set()
        self._heard: set[str] = set()
        # The failures reported last; a compiled step returns the same dictionary each time.
        self._failed: dict[Site, str] = {}
        self._named: tuple[int, Watches, str] | None = None  # their number, the watches and the pass

    def due(self, in_pass: str, watches: Watches) -> None:
        """Takes the watches that are due at a step of this pass."""
        self._due[in_pass] = self._due.get(in_pass, frozenset()) | watches

    def at_end(self) -> None:
        """Lists what the watches wanted and no step could record. Called on the writer's thread, after the last step."""
        if "train" not in self._due:
            return
        for in_pass in ("train", "validation"):
            ran = in_pass in self._due
            for schedule, watches in self._plan.in_pass(in_pass):
                why = NEVER_DUE.format(schedule) if ran else NO_VALIDATION
                self.all(watches - self._due.get(in_pass, frozenset()), in_pass, why)

    def of(self, harvest: Harvest, watches: Watches, in_pass: str) -> None:
        """Takes the failures of a step, and finds the places that it did not reach, once for each set of watches."""
        if harvest.broken is not None:  # the true reason comes before its consequences
            self.all(watches, in_pass, described(harvest.broken))
        named = len(harvest.failed), watches, in_pass
        if harvest.failed and (self._failed is not harvest.failed or self._named != named):
            for site, why in harvest.failed.items():
                self._name(site, watches, in_pass, why)
            # A compiled step fails at the same sites each time, and returns the same dictionary.
            self._failed, self._named = harvest.failed, named
        for text in harvest.noted:
            if text not in self._heard:
                self._heard.add(text)
                self._recorder.failed(text)
        if harvest.broken is not None:
            self._recorder.failed(harvest.broken)
        elif watches and (watches, in_pass) not in self._looked:
            self._looked.add((watches, in_pass))
            met = {site.place for site in harvest.sites.values()}
            met |= {site.place for site in harvest.failed if not site.suffix.startswith(LOCAL)}
            for place in self._wanted(watches, in_pass):
                if place not in met:
                    why = WHY.get(place[0], "the step does not pass it")
                    self._name(Site.at(place), watches, in_pass, why)
                    # Users look for the loss of a training first. A custom validation often has none.
                    if place == LOSS and in_pass == "train":
                        self._recorder.failed(f"loss: {WHY['loss']}")

    def everything(self, why: str) -> None:
        """Marks everything that the plan wants from `fit` as missing."""
        for in_pass in ("train", "validation"):
            for _, watches in self._plan.in_pass(in_pass):
                self.all(watches, in_pass, why)

    def all(self, watches: Watches, in_pass: str, why: str) -> None:
        """Marks everything that these watches want as missing."""
        for place in self._wanted(watches, in_pass):
            self._name(Site.at(place), watches, in_pass, why)

    def _wanted(self, watches: Watches, in_pass: str) -> Iterable[Place]:
        # Only the step knows the names of taps and metrics. `layer_taps` lists missing metrics itself.
        by_name = ("taps", "metrics")
        return [p for p in self._plan.wants(watches, in_pass) if p not in BESIDE and p[0] not in by_name]

    def _name(self, site: Site, watches: Watches, in_pass: str, why: str) -> None:
        """Lists a site under the names that the watches use: itself, its change, or both."""
        want = self._plan.wants(watches, in_pass).at(site.place)
        if site.place == SAMPLE_LOSS:
            site = Site.at(SAMPLE_LOSS)  # not one of its parts
        site = site.within(in_pass)
        if want is None or want.stats or want.tensor or want.mean:
            self._recorder.unseen(site, why)
        for each in derived(site, want) if want is not None else ():
            self._recorder.unseen(each, why)
        if want is not None and want.change:
            self._recorder.unseen(site.change(), why)

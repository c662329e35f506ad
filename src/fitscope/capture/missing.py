"""Names what was wanted of a step and did not come, each site once, with its pass and its reason.

A site that a tap met and could not hand out has the reason that the adapter gives. A place that no tap met has one by its kind. What could
not be looked at, because the step could not be run with taps, has the error as its reason. So `run.unseen` and what was
recorded together are all that the watches asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from fitscope.capture.backends import Harvest
from fitscope.capture.layer_taps import NOT_CALLED
from fitscope.pipeline.recorder import Recorder
from fitscope.plan.plan import BESIDE, LOSS, SAMPLE_LOSS, Plan, Watches
from fitscope.shield import described
from fitscope.sites import Place, Site

#: Why a place of some kind was not passed by the step, where no tap knows better.
WHY = {
    "activations": NOT_CALLED,
    "gradients": NOT_CALLED,
    "weights": "the step does not hand this weight to the model where fitscope could see it",
    "weight_gradients": "no optimizer of the model is given a gradient of it in this step",
    "updates": "no optimizer of the model moves it where fitscope could see it",
    "loss": "the step computes no loss that can be seen from outside",
    "sample_loss": "the step does not compute its loss by `compute_loss`, so its samples have none of their own",
    "inputs": "the step has no inputs that fitscope could tell from its other arguments",
    "targets": "the step is given no targets that fitscope could tell from its other arguments",
    "predictions": "the step does not call the model itself",
}


class Missing:
    """What is missing in one recording."""

    def __init__(self, plan: Plan, recorder: Recorder) -> None:
        self._plan = plan
        self._recorder = recorder
        self._looked: set[tuple[Watches, str]] = set()
        self._heard: set[str] = set()

    def of(self, harvest: Harvest, watches: Watches, phase: str) -> None:
        """Hears what a step could not show, and looks for what it has not even met, once for each set of watches."""
        if harvest.broken is not None:  # the true reason, before all that follows from it
            self.all(watches, phase, described(harvest.broken))
        for site, why in harvest.failed.items():
            self._name(site, watches, phase, why)
        for text in harvest.noted:
            if text not in self._heard:
                self._heard.add(text)
                self._recorder.failed(text)
        if harvest.broken is not None:
            self._recorder.failed(harvest.broken)
        elif watches and (watches, phase) not in self._looked:
            self._looked.add((watches, phase))
            met = {site.place for site in harvest.sites.values()}
            for place in self._wanted(watches, phase):
                if place not in met and Site.at(place) not in harvest.failed:
                    why = WHY.get(place[0], "the step does not pass it")
                    self._name(Site.at(place), watches, phase, why)
                    # Of a training it is the first thing one looks for; a custom validation may well have none.
                    if place == LOSS and phase == "train":
                        self._recorder.failed(f"loss: {WHY['loss']}")

    def all(self, watches: Watches, phase: str, why: str) -> None:
        """Nothing of what these watches want could be seen."""
        for place in self._wanted(watches, phase):
            self._name(Site.at(place), watches, phase, why)

    def _wanted(self, watches: Watches, phase: str) -> Iterable[Place]:
        # Taps and metrics have names that only the step knows; the latter are accounted for where they are patched.
        by_name = ("taps", "metrics")
        return [p for p in self._plan.wants(watches, phase) if p not in BESIDE and p[0] not in by_name]

    def _name(self, site: Site, watches: Watches, phase: str, why: str) -> None:
        """Names a site as the watches would: by itself, for what moved there, or both."""
        want = self._plan.wants(watches, phase).at(site.place)
        if site.place == SAMPLE_LOSS:
            site = Site.at(SAMPLE_LOSS)  # and not one of the parts it is made of
        site = site.within(phase)
        if want is None or want.stats or want.tensor or want.mean:
            self._recorder.unseen(site, why)
        if want is not None and want.change:
            self._recorder.unseen(site.change(), why)

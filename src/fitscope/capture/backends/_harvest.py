"""What one training step hands out: its tensors by site, and the reason for each site that has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fitscope.sites import Site

if TYPE_CHECKING:
    from fitscope.capture.backends._base import Ask

LOCAL = "/local"  #: the suffix of a gradient before it is reduced

NO_GRADIENT = "the step computes no gradient of it: nothing that it is made from is trained, or the loss is not made from it"
NO_LOCAL = "no other process or replica has a gradient of its own here: the recorded gradient is the only one"
NO_NUMBERS = "it holds no numbers (text, or a handle)"
NOT_FLOATING = "it holds no floating-point numbers, so it has no gradient"


@dataclass(slots=True)
class Harvest:
    """The tensors of one training step: a framework tensor for every site that the step reached."""

    tensors: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)  #: by name: a trace hands back plain strings
    failed: dict[Site, str] = field(default_factory=dict)  #: site → why it could not be seen
    noted: list[str] = field(default_factory=list)  #: warnings for the user
    broken: Exception | None = None  #: why nothing of it could be handed out, after a step that did run

    def rename(self, names: Mapping[Site, Site]) -> None:
        """Gives sites their final names, and keeps their order."""
        if names:
            _renamed(self.tensors, names)
            _renamed(self.failed, names)
            sites = [names.get(site, site) for site in self.sites.values()]
            self.sites.clear()
            self.sites.update({site: site for site in sites})

    def account(self) -> None:
        """Gives a reason to every site that the step reached and that has no value."""
        for name, site in self.sites.items():
            if name not in self.tensors and site not in self.failed:
                gradient = site.base == "gradients"
                self.failed[site] = NO_GRADIENT if gradient else "the step did not hand it out"


def _renamed(mine: dict[Any, Any], names: Mapping[Site, Site]) -> None:
    renamed = {names.get(name, name): value for name, value in mine.items()}
    mine.clear()
    mine.update(renamed)


def finished(
    harvest: Harvest,
    ask: Ask,
    finish: Callable[[dict[str, Any], dict[str, Site]], dict[str, Any]] | None = None,
) -> Harvest:
    """The harvest of a step that ran or was traced to its end; an error in fitscope must not undo the step.

    `finish` replaces that of the request, where an adapter joins tensors itself.
    """
    try:
        harvest.account()
        harvest.failed.update(ask.left_out)
        no_local(harvest, ask)
        harvest.tensors = (finish or ask.finish)(harvest.tensors, harvest.sites)
    except Exception as error:
        harvest.tensors, harvest.broken = {}, error
    return harvest


def no_local(harvest: Harvest, ask: Ask) -> None:
    """Gives a reason for the local gradients that are wanted and that the step does not have."""
    wanted = {place for place, want in ask.wants.items() if want.local and ask.phase in ("train", "step")}
    found = {site.place for site in harvest.sites.values() if site.suffix.startswith(LOCAL)} if wanted else ()
    for place in wanted.difference(found):
        harvest.failed[Site.at(place, suffix=LOCAL)] = NO_LOCAL

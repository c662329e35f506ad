"""The wants of a step by place: statistics of a tensor, all of it, some samples, an average or a change.

Watches become wants when a plan is made, and the step looks them up by place. Several watches of one place are one want.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
from dataclasses import dataclass
from typing import Any

from fitscope.sites import OF_LAYERS, Place, Site

#: Loss scaling multiplies gradients by the loss scale, which is recorded with them.
LOSS_SCALE: Place = ("loss_scale", "")
#: An update is roughly a gradient times the learning rate, which is recorded with updates.
LEARNING_RATE: Place = ("learning_rate", "")
#: Places that fitscope adds to a watch of gradients or updates; some steps have no value there.
BESIDE = frozenset((LOSS_SCALE, LEARNING_RATE))
LOSS: Place = ("loss", "")
SAMPLE_LOSS: Place = ("sample_loss", "")


@dataclass(frozen=True, slots=True)
class Want:
    """Everything wanted at one place, over all watches."""

    stats: bool = False
    tensor: bool = False
    samples: int | None = None
    mean: bool = False
    change: bool = False  #: since the previous batch
    reference: bool = False  #: the next batch will be compared with this one
    exact: bool = False  #: stats of all elements, also of a large tensor
    activity: str = ""  #: the family of nonlinearities, if the activity of units is wanted
    data: bool = False  #: shares of classes, or features
    local: bool = False  #: also the gradient of each process or replica

    def __or__(self, other: Want) -> Want:
        both = [want.samples for want in (self, other) if want.tensor]
        return Want(
            self.stats or other.stats,
            self.tensor or other.tensor,
            None if None in both or not both else max(n for n in both if n is not None),
            self.mean or other.mean,
            self.change or other.change,
            self.reference or other.reference,
            self.exact or other.exact,
            self.activity or other.activity,
            self.data or other.data,
            self.local or other.local,
        )

    @property
    def whole(self) -> bool:
        """Whether the whole tensor must leave the step."""
        return self.change or self.reference

    @property
    def derived(self) -> bool:
        """Whether fitscope derives another site from this tensor. The function `derived` in this module lists those sites."""
        return bool(self.activity) or self.data

    @property
    def sampled(self) -> bool:
        """Whether some rows of a large tensor suffice. A tensor that is kept whole is also read whole."""
        return not (self.tensor or self.mean or self.whole or self.exact)


def derived(site: Site, want: Want) -> tuple[Site, ...]:
    """The sites derived from a tensor, if wanted."""
    if want.activity and site.base == "activations":
        # The first output alone: the others are the states of a recurrent layer.
        return (
            (site.activity(),) if site.suffix.rpartition("#")[2].lstrip("0123456789") in ("", "[0]") else ()
        )
    if not want.data or site.suffix.startswith("#"):  # a model that is called twice predicts once
        return ()
    if site.base == "inputs":
        return tuple(site.beside("features", label) for label in ("inputs", "mean", "range", "duplicates"))
    if site.base == "predictions":
        return site.beside("classes", "predictions"), site.beside("classes", "log_loss")
    return (site.beside("classes", "targets"),) if site.base == "targets" else ()


class Wants(dict[Place, Want]):
    """The wants at each place. Only the step knows the name of a tap, so taps are matched by pattern."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # An eager step asks for the same sites again at each of its steps.
        self._sites: dict[Place, Site | None] = {}
        self._of_layers: dict[str, tuple[Site, ...]] = {}

    def add(self, place: Place, want: Want) -> None:
        self[place] = self[place] | want if place in self else want

    def __setitem__(self, place: Place, want: Want) -> None:
        super().__setitem__(place, want)
        self._sites.clear()
        self._of_layers.clear()

    def site(self, place: Place) -> Site | None:
        """The site at this place, if it is wanted."""
        if place not in self._sites:
            self._sites[place] = Site.at(place) if place in self else None
        return self._sites[place]

    def of_layer(self, path: str) -> tuple[Site, ...]:
        """The wanted sites of the only call of a layer, with one output."""
        known = self._of_layers.get(path)
        if known is None:
            known = tuple(Site(kind, path) for kind in OF_LAYERS if (kind, path) in self)
            self._of_layers[path] = known
        return known

    def at(self, place: Place) -> Want | None:
        if place[0] != "taps":
            return self.get(place)
        matching = [
            want
            for (kind, pattern), want in self.items()
            if kind == "taps" and fnmatch.fnmatchcase(place[1], pattern)
        ]
        return functools.reduce(operator.or_, matching) if matching else None

"""From a run to the numbers that its overview shows: the loss, and for each layer its series over the steps.

All of it is asked in one query, ranks merged. Which site belongs to which layer is taken from the model's
own description in the run; sites of layers that are not described there (there may be none) follow in the
order of their names.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fitscope.read import Run
from fitscope.record import PASSES
from fitscope.show.squeeze import Array, Grid

#: One row for each site and step of the training. Finite elements only, as everywhere; over ranks their squares are added.
_QUERY = """
select site, step, max(epoch) as epoch, any_value(value) as value, sum(count) as count,
       sum(zeros) as zeros, sum(nans) as nans, sum(infs) as infs,
       case when count(*) = 1 then any_value(mean)
            else sum(case when count > nans + infs then mean * (count - nans - infs) end)
                 / nullif(sum(count - nans - infs), 0) end as mean,
       case when count(*) = 1 then any_value(rms)
            else sqrt(sum(case when count > nans + infs then rms * rms * (count - nans - infs) end)
                      / nullif(sum(count - nans - infs), 0)) end as rms
from stats where not regexp_matches(site, '^({passes})/') group by site, step order by step
""".format(passes="|".join(PASSES))


@dataclass(frozen=True, slots=True)
class Layer:
    """One call of a layer in the model, and where its sites are."""

    name: str  #: its path, `dense#2` for a second call
    type: str
    weights: tuple[str, ...]  #: paths of the weights that are trained


class Overview:
    """The numbers behind the picture of one run."""

    def __init__(self, run: Run) -> None:
        self.table = run.sql(_QUERY)
        self.steps: Array = np.sort(self.table["step"].unique())
        self.epoch = int(self.table["epoch"].max()) if len(self.table) else None
        self._rows = {str(site): rows for site, rows in self.table.groupby("site")}
        self.layers = _layers(run.model, set(self._rows))

    def chosen(self, pattern: str | None) -> list[Layer]:
        """The layers whose names match a glob."""
        return [layer for layer in self.layers if pattern is None or fnmatch.fnmatchcase(layer.name, pattern)]

    def loss(self) -> pd.Series[Any] | None:
        """The loss of each recorded step; Inf where it was infinite."""
        rows = self._rows.get("loss")
        if rows is None:
            return None
        values = rows["value"].where(rows["value"].notna() | (rows["infs"] == 0), np.inf)
        return values.set_axis(rows["step"])

    def kinds(self) -> list[str]:
        """The kinds of site that layers have, the most telling first."""
        known = ("activations", "gradients")
        return [kind for kind in known if any(f"{kind}/{layer.name}" in self._rows for layer in self.layers)]

    def series(self, site: str, stat: str) -> Array:
        """A stat at every step of the run; NaN where it was not recorded."""
        rows = self._rows.get(site)
        if rows is None:
            return np.full(len(self.steps), np.nan)
        found = np.full(len(self.steps), np.nan)
        found[np.searchsorted(self.steps, rows["step"])] = rows[stat].to_numpy(float)
        return found

    def grid(self, sites: list[str], stat: str) -> Grid:
        """Sites × steps."""

        def stacked(stat: str) -> Array:
            return np.stack([self.series(site, stat) for site in sites])

        return Grid.of(stacked(stat), stacked("nans"), stacked("infs"))

    def zeros(self, layer: Layer) -> Array:
        """The share of zeros in a layer's output."""
        site = f"activations/{layer.name}"
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Array = self.series(site, "zeros") / self.series(site, "count")
        return share

    def update_ratio(self, layer: Layer) -> Grid:
        """How far a step moved the layer's weights, relative to their size."""
        moved, size = (self._length(kind, layer) for kind in ("updates", "weights"))
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(size > 0, moved / size, np.nan)
        sites = [f"updates/{path}" for path in layer.weights] or [""]
        nans, infs = (
            np.nansum([self.series(site, stat) for site in sites], axis=0) for stat in ("nans", "infs")
        )
        return Grid.of(ratio, nans, infs)

    def first(self, layer: Layer, stat: str) -> tuple[int, str] | None:
        """The first step with a NaN (`nans`) or Inf (`infs`) at a site of a layer, and that site's kind."""
        sites = [(kind, f"{kind}/{layer.name}") for kind in ("activations", "gradients")]
        kinds = ("weights", "weight_gradients", "updates")
        sites += [(kind, f"{kind}/{path}") for path in layer.weights for kind in kinds]
        found = []
        for order, (kind, site) in enumerate(sites):
            at = np.flatnonzero(np.nan_to_num(self.series(site, stat)) > 0)
            if len(at):
                found.append((int(self.steps[at[0]]), order, kind))
        return (min(found)[0], min(found)[2]) if found else None

    def _length(self, kind: str, layer: Layer) -> Array:
        total = np.zeros(len(self.steps))
        for path in layer.weights:
            site = f"{kind}/{path}"
            total = np.hypot(total, self.series(site, "rms") * np.sqrt(self.series(site, "count")))
        return total if layer.weights else np.full(len(self.steps), np.nan)


def _layers(model: Any, sites: set[str]) -> list[Layer]:
    """The layers of which something was recorded, in the model's order, further calls after the first."""
    described = model.get("layers", ()) if isinstance(model, dict) else ()
    order = {str(layer["path"]): (i, layer) for i, layer in enumerate(described)}
    names = {site.partition("/")[2] for site in sites if site.startswith(("activations/", "gradients/"))}
    of_weights = {site.partition("/")[2] for site in sites if site.startswith(("weights/", "updates/"))}
    names |= {
        path for path, (_, layer) in order.items() if of_weights.intersection(layer.get("weights") or ())
    }
    return [_layer(name, order) for name in sorted(names, key=lambda name: _place(name, order))]


def _owner(name: str, order: dict[str, Any]) -> str | None:
    """The layer that a site's name begins with: all of it, or what comes before `#2`, `/key` or `[0]`."""
    found = [path for path in order if name == path or (name.startswith(path) and name[len(path)] in "#/[")]
    return max(found, key=len, default=None)


def _place(name: str, order: dict[str, Any]) -> tuple[int, str]:
    owner = _owner(name, order)
    return (order[owner][0] if owner is not None else len(order), name)


def _layer(name: str, order: dict[str, Any]) -> Layer:
    owner = _owner(name, order)
    if owner is None:
        return Layer(name, "", ())
    described = order[owner][1]
    weights = described.get("weights") or {}
    trained = tuple(path for path, weight in weights.items() if weight.get("trainable", True))
    return Layer(name, str(described.get("type", "")), trained if name == owner else ())

"""What is derived from the tensors of a step, on the writer's thread: activity of units, shares of classes, features of inputs.

Each becomes a vector (or a number) with statistics of its own, a row among the others of the step:

    activity/dense            for each unit the share of the samples and positions in a window at which it was active
    classes/targets, classes/predictions       for each class its share of this batch
    features/inputs, features/mean, features/range, features/duplicates       over all samples seen so far

All of it is bounded, however long the training goes on. What cannot be derived has a reason in `run.unseen`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fitscope.pipeline.classes import Classes, NotDerived
from fitscope.pipeline.handover import HostAdapter
from fitscope.pipeline.to_record import HostTensor, seen
from fitscope.pipeline.troubles import described
from fitscope.plan.plan import Want, derived
from fitscope.record import Head
from fitscope.reduce.units import Features, count_active
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

SAMPLES = 256  #: that a window of activity holds, about,
BATCHES = 16  #: in no more batches than this,
NUMBERS = 2**20  #: and no more numbers
MOST_UNITS = 65_536
MOST_FEATURES = 4_096


class Window:
    """At how many of the most recent samples each unit of a layer was active."""

    def __init__(self, site: Site, units: int) -> None:
        self.head = Head(site, (units,), "float32", batched=False)
        self._most = min(BATCHES, max(NUMBERS // units, 1))
        self._batches: deque[tuple[Array, int, int]] = (
            deque()
        )  # counts, samples, and places: samples × positions
        self._total = np.zeros(units, np.int64)
        self._samples = self._places = 0

    def add(self, counts: Array, samples: int, places: int) -> Array:
        """Takes in one batch and returns the share of each unit."""
        batches = self._batches
        batches.append((counts, samples, places))
        self._total += counts
        self._samples, self._places = self._samples + samples, self._places + places
        while len(batches) > self._most or (len(batches) > 1 and self._samples - batches[0][1] >= SAMPLES):
            gone, samples, places = batches.popleft()
            self._total -= gone
            self._samples, self._places = self._samples - samples, self._places - places
        return (self._total / max(self._places, 1)).astype(np.float32)


class Evidence:
    """Derives rows from what steps showed."""

    def __init__(
        self,
        adapter: HostAdapter,
        configuration: Mapping[str, Any],
        failed: Callable[[str], None],
        unseen: Callable[[str, str | None], None],
    ) -> None:
        self._adapter = adapter
        self._failed = failed
        self._unseen = unseen  # takes why a site is not recorded; None: it is, after all
        self._windows: dict[str, Window] = {}
        self._features: dict[str, Features] = {}
        self._heads: dict[str, Head] = {}
        self._classes = Classes(configuration)
        layers = configuration.get("layers") or ()
        self._embeds = any("Embedding" in str(layer.get("class")) for layer in layers)
        self._batch: dict[Site, HostTensor] = {}  # targets and predictions of this step

    def take(self, site: Site, want: Want, value: Any, row: HostTensor | None) -> list[HostTensor]:
        """What a tensor shows by itself; `row` if it was brought here already. Targets and predictions wait for each other."""
        sites = derived(site, want)
        if not sites:
            return []
        with self._explained(*sites):
            if isinstance(value, dict) and "active" in value:
                return [self._activity(sites[0], *self._counted(value))]
            if row is None:
                value = value.get("rows") if isinstance(value, dict) else value
                if value is None:
                    raise NotDerived("it does not leave the device: only its statistics do")
                row = seen(site, want, value, self._adapter)
            if want.activity:
                return [self._activity(sites[0], *_active(row, want.activity))]
            if site.base == "inputs":
                return self._of_inputs(sites, row)
            self._batch[site] = row
        return []

    def rest(self) -> list[HostTensor]:
        """What targets and predictions of the step show together."""
        batch, self._batch = self._batch, {}
        arrays = {
            (site.base, site.suffix or "/" * bool(site.label) + site.label): row
            for site, row in batch.items()
        }
        found = []
        for site in batch:
            (into,) = derived(site, Want(data=True))
            part = site.suffix or "/" * bool(site.label) + site.label
            with self._explained(into):
                target, prediction = (_whole(arrays.get((kind, part))) for kind in ("targets", "predictions"))
                of = self._classes.targets if site.base == "targets" else self._classes.predictions
                found.append(self._row(into, of(part, target, prediction)))
        return found

    def _activity(self, site: Site, counts: Array, samples: int, places: int) -> HostTensor:
        window = self._windows.get(site)
        if window is None or window.head.shape != counts.shape:
            window = self._windows[site] = Window(site, counts.size)
            self._unseen(site, None)
        return HostTensor(window.head, window.add(counts, samples, places))

    def _counted(self, value: Mapping[str, Any]) -> tuple[Array, int, int]:
        """What the step has counted itself."""
        shape = [int(n) for n in self._adapter.to_numpy(value["shape"])]
        _check_units(shape)
        counts = self._adapter.to_numpy(value["active"]).astype(np.int32)
        return counts, shape[0], math.prod(shape) // counts.size

    def _of_inputs(self, sites: tuple[Site, ...], row: HostTensor) -> list[HostTensor]:
        shape, kind = row.head.shape, row.array.dtype.kind
        if not shape or len(shape) < 2:
            raise NotDerived("it has no axis of features")
        if kind in "iu" and self._embeds:
            raise NotDerived("it holds integers, which an embedding looks up")
        if kind not in "fiubV":
            raise NotDerived(f"it holds no numbers but {row.head.dtype}")
        if shape[-1] > MOST_FEATURES:
            raise NotDerived(f"it has more than {MOST_FEATURES:,} features")
        known = self._features.get(sites[0])
        if known is None or len(known) != shape[-1]:
            known = self._features[sites[0]] = Features(shape[-1])
        known.add(row.array)
        values = (known.std, known.size, known.range, np.asarray(known.duplicates))
        return [self._row(site, value) for site, value in zip(sites, values, strict=True)]

    def _row(self, site: Site, value: Array) -> HostTensor:
        head = self._heads.get(site)
        if head is None or head.shape != value.shape:
            head = self._heads[site] = Head(site, value.shape, "float32", batched=False)
            self._unseen(site, None)
        return HostTensor(head, value.astype(np.float32))

    @contextmanager
    def _explained(self, *sites: Site) -> Iterator[None]:
        """An error in the block becomes the reason why these are not recorded, unless they were before."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, NotDerived)
            if not known:
                self._failed(f"{sites[0]}: {described(error)}")
            for site in sites:
                self._unseen(site, str(error) if known else described(error))


def _active(row: HostTensor, family: str) -> tuple[Array, int, int]:
    """At how many places each unit was active, in how many samples, and how many places that is."""
    shape = row.head.shape
    units = _check_units(shape)
    counts = np.empty(units, np.int32)
    places = count_active(row.array, family, counts)
    return counts, max(places // max(math.prod(shape[1:-1]), 1), 1), places


def _check_units(shape: Any) -> int:
    if not len(shape):
        raise NotDerived("it is one number")
    units = int(shape[-1]) if len(shape) > 1 else 1
    if not 0 < units <= MOST_UNITS:
        raise NotDerived(f"it has {units:,} units, of which at most {MOST_UNITS:,} are looked at one by one")
    return units


def _whole(row: HostTensor | None) -> Array | None:
    """The rows that were seen, in the shape that they have in the tensor."""
    return None if row is None else row.array.reshape(-1, *row.head.shape[1:])

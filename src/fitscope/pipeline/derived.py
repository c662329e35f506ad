"""Values derived from the tensors of a step, on the writer's thread: activity of units, shares of classes, features of inputs.

Each becomes a vector (or a number) with its own statistics, as one more row of the step:

    activity/dense                          the share of the samples and positions in a window at which each unit was active
    classes/targets, classes/predictions    the share of each class in this batch
    classes/log_loss                        −log of the probability of the true class, for each sample of this batch
    features/inputs                         the standard deviation of each feature over all samples so far
    features/mean, features/range           likewise the distance of its mean from 0, and its range
    features/duplicates                     the number of varying features that equal another one in all samples so far

Their memory is bounded, however long the training goes on. `run.unseen` has a reason for each value that cannot be derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fitscope.pipeline.activity import Activity, Joined, Vector, Vectors
from fitscope.pipeline.classes import Classes, NotDerived
from fitscope.pipeline.handover import HostAdapter, Slot
from fitscope.pipeline.to_record import HostTensor, seen
from fitscope.pipeline.troubles import described
from fitscope.plan.wants import Want, derived
from fitscope.record import Head
from fitscope.reduce.units import Features
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

MOST_FEATURES = 4_096


class Derived:
    """Derives rows from captured tensors. For each step, call `take` with every tensor, then `rest`."""

    def __init__(
        self,
        adapter: HostAdapter,
        configuration: Mapping[str, Any],
        failed: Callable[[str], None],
        unseen: Callable[[str, str | None], None],
    ) -> None:
        self._adapter = adapter
        self._failed = failed
        self._unseen = unseen  # takes the reason why a site is missing; None withdraws it
        self._activity: dict[str, Activity] = {}  # the activity of each pass
        self._features: dict[str, Features] = {}
        self._sites: dict[tuple[str, bool], tuple[Site, ...]] = {}
        self._heads: dict[str, Head] = {}
        self._classes = Classes(configuration)
        layers = configuration.get("layers") or ()
        self._embeds = any("Embedding" in str(layer.get("class")) for layer in layers)
        self._rows: list[HostTensor] = []  # the rows of this step
        self._batch: dict[Site, HostTensor] = {}  # its targets and predictions

    # ---- the tensors of one step ---------------------------------------------------------------------------------

    def joined(self, of: Iterable[tuple[Site, str, Slot]]) -> Joined | None:
        """The positions of layers in a joined vector, each with the family of its nonlinearity. Computed once."""
        found: list[tuple[int, int, int, int, int]] = []
        for site, family, slot in of:
            for into in derived(site, Want(activity=family)):
                with self._explained(into):
                    number = self._numbered(into, slot.shape, family)
                    places = (slot.end - slot.start) // (slot.shape[-1] if len(slot.shape) > 1 else 1)
                    found.append((number, slot.start, slot.end, slot.shape[0], places))
        return Joined(*np.array(found, np.int64).T.copy()) if found else None

    def take_joined(self, in_pass: str, vector: Array, joined: Joined) -> None:
        """The outputs of small layers, in one vector."""
        self._activity[in_pass].count_joined(vector, joined)

    def take(self, site: Site, want: Want, value: Any, row: HostTensor | None) -> None:
        """Any other tensor; `row` if it is already on the host."""
        sites = self._derived(site, want)
        if not sites:
            return
        with self._explained(*sites):
            if isinstance(value, dict) and "active" in value:
                self._counted(sites[0], want.activity, value)
                return
            if row is None:
                value = value.get("rows") if isinstance(value, dict) else value
                if value is None:
                    raise NotDerived("it does not leave the device: only its statistics do")
                row = seen(site, want, value, self._adapter)
            if want.activity:
                number = self._numbered(sites[0], row.head.shape, want.activity)
                self._activity[site.in_pass].count(number, row.array, row.head.shape)
            elif site.base == "inputs":
                self._of_inputs(sites, row)
            else:
                self._batch[site] = row  # targets and predictions wait for each other

    def rest(self, in_pass: str) -> tuple[list[HostTensor], Vector | None]:
        """The values derived from this step: features and classes, and the activity of its layers."""
        batch, self._batch = self._batch, {}
        by_output = {(site.base, _output(site)): row for site, row in batch.items()}
        for site in batch:
            output = _output(site)
            target, prediction = (
                _whole(by_output.get((kind, output))) for kind in ("targets", "predictions")
            )
            for into, made in self._made(site):
                with self._explained(into):
                    self._add(into, made(output, target, prediction))
        rows, self._rows = self._rows, []
        activity = self._activity.get(in_pass)
        return rows, activity.slide() if activity is not None else None

    # ---- the tensors of several steps at once -----------------------------------------------------------------

    def of_steps(
        self,
        in_pass: str,
        data: Sequence[tuple[Site, Want, Array]],
        active: Sequence[tuple[Sequence[Array], Joined]],
    ) -> list[Vectors] | None:
        """The values derived from several steps, as from one after the other. If that is impossible: None, and nothing changes.

        Args:
            data: Inputs, targets and predictions, those of all steps stacked.
            active: The vectors of all steps that hold outputs of layers, and the positions of these.
        """
        batch = {site: (want, stack) for site, want, stack in data if self._derived(site, want)}
        found = self._classes_of_steps({s: stack for s, (_, stack) in batch.items() if s.base != "inputs"})
        if found is None:
            return None
        for site, (want, stack) in batch.items():
            sites = self._derived(site, want)
            if site.base == "inputs":
                with self._explained(*sites):
                    known = self._features_of(sites[0], stack.shape[1:], stack.dtype)
                    found += zip(sites, known.add_steps(stack), strict=True)
        vectors = [
            _side_by_side(
                [(self._head(site, stack[0]), stack) for site, stack in found if stack.dtype == dtype]
            )
            for dtype in dict.fromkeys(stack.dtype for _, stack in found)
        ]
        activity = self._activity[in_pass].slide_joined(active) if active else None
        return vectors if activity is None else [*vectors, activity]

    def _classes_of_steps(self, batch: Mapping[Site, Array]) -> list[tuple[Site, Array]] | None:
        """The classes of targets and predictions at several steps; None if they must be computed step by step."""
        by_output = {(site.base, _output(site)): stack for site, stack in batch.items()}
        found: list[tuple[Site, Array]] = []
        for site in batch:
            output = _output(site)
            targets, predictions = (by_output.get((kind, output)) for kind in ("targets", "predictions"))
            if targets is None or predictions is None:
                return None
            try:
                made = self._classes.of_steps(output, targets, predictions)
            except NotDerived:
                if self._classes.by_data(output) or self._first(site, targets[0], predictions[0]):
                    return None
                continue
            if made is None:
                return None
            found += zip(
                self._derived(site, Want(data=True)),
                made[:1] if site.base == "targets" else made[1:],
                strict=True,
            )
        return found

    def _first(self, site: Site, targets: Array, predictions: Array) -> bool:
        """Whether anything can be derived from the first of several steps. If not, its reason holds for all."""
        found = []
        for into, made in self._made(site):
            with self._explained(into):
                found.append(made(_output(site), targets, predictions))
        return bool(found)

    # ---- the derived values ---------------------------------------------------------------------------------

    def _derived(self, site: Site, want: Want) -> tuple[Site, ...]:
        key = site, bool(want.activity)
        if key not in self._sites:
            self._sites[key] = derived(site, want)
        return self._sites[key]

    def _made(self, site: Site) -> Iterator[tuple[Site, Callable[..., Array]]]:
        """The functions that derive values from targets or from predictions."""
        known = self._classes
        of = (known.targets,) if site.base == "targets" else (known.predictions, known.log_loss)
        return zip(self._derived(site, Want(data=True)), of, strict=True)

    def _numbered(self, site: Site, shape: Any, family: str) -> int:
        activity = self._activity.setdefault(site.in_pass, Activity())
        number = activity.number(site, shape, family)
        if site not in self._heads:
            self._heads[site] = Head(site, (), "float32", batched=False)
            self._unseen(site, None)
        return number

    def _counted(self, site: Site, family: str, value: Mapping[str, Any]) -> None:
        """Takes counts that the step itself computed."""
        shape = [int(n) for n in self._adapter.to_numpy(value["shape"])]
        number = self._numbered(site, shape, family)
        counts = self._adapter.to_numpy(value["active"])
        self._activity[site.in_pass].put(number, counts, shape[0], math.prod(shape) // max(counts.size, 1))

    def _of_inputs(self, sites: tuple[Site, ...], row: HostTensor) -> None:
        known = self._features_of(sites[0], row.head.shape, row.array.dtype)
        known.add(row.array)
        for site, value in zip(sites, known.values(), strict=True):
            self._add(site, value)

    def _features_of(self, site: Site, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Features:
        """The statistics of the features of an input so far."""
        if len(shape) < 2:
            raise NotDerived("it has no axis of features")
        if dtype.kind in "iu" and self._embeds:
            raise NotDerived("it holds integers, and the model has an embedding, so they may be categories")
        if dtype.kind not in "fiubV":
            raise NotDerived(f"it holds no numbers but {dtype.name}")
        if shape[-1] > MOST_FEATURES:
            raise NotDerived(f"it has more than {MOST_FEATURES:,} features")
        known = self._features.get(site)
        if known is None or len(known) != shape[-1]:
            known = self._features[site] = Features(shape[-1])
        return known

    def _add(self, site: Site, value: Array) -> None:
        self._rows.append(HostTensor(self._head(site, value), value))

    def _head(self, site: Site, value: Any) -> Head:
        head = self._heads.get(site)
        if head is None or head.shape != value.shape:
            head = self._heads[site] = Head(site, value.shape, value.dtype.name, batched=False)
            self._unseen(site, None)
        return head

    @contextmanager
    def _explained(self, *sites: Site) -> Iterator[None]:
        """Turns an error in the block into the reason why these sites are missing, unless they were recorded before."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, NotDerived)
            if not known:
                self._failed(f"{sites[0]}: {described(error)}")
            for site in sites:
                self._unseen(site, str(error) if known else described(error))


def _side_by_side(made: list[tuple[Head, Array]]) -> Vectors:
    """Values of one dtype, one after the other in the row of each step."""
    flat = np.concatenate([stack.reshape(len(stack), -1) for _, stack in made], axis=1)
    starts = np.cumsum([0] + [math.prod(head.shape) for head, _ in made])
    return Vectors([head for head, _ in made], flat, starts)


def _output(site: Site) -> str:
    """Which of several outputs a target or prediction belongs to."""
    return site.suffix or (f"/{site.label}" if site.label else "")


def _whole(row: HostTensor | None) -> Array | None:
    """The rows that were read, in the shape of the tensor."""
    return None if row is None else row.array.reshape(-1, *row.head.shape[1:])

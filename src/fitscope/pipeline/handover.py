"""The ways in which tensors leave the step: whole, as some rows, joined, or reduced to statistics.

On a CPU, tensors leave the step without a copy, and the writer thread reduces them. If only statistics of a large tensor are
wanted, some of its rows leave the step (`sampling`). Small tensors leave it joined to one vector, so that the fixed cost of an
output is paid once. On an accelerator the step itself reduces them, and only a few numbers and the kept samples leave the device.

`Finish` works inside the step, on the training thread. `Shown` is its result. `to_record` reads it on the writer thread. The rest
of the code does not depend on the way.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fitscope.plan.wants import LOSS, SAMPLE_LOSS, Want, Wants
from fitscope.sites import TRAIN, Site

if TYPE_CHECKING:
    from fitscope.capture.backends._base import Adapter

Array = np.ndarray[Any, Any]

#: The key of the joined tensors in the result of a step: no site has this name.
JOINED = ""


class HostAdapter(Protocol):
    """The part of an adapter that the pipeline needs: how to bring a tensor to the host."""

    def to_numpy(self, tensor: Any) -> Array: ...

    def nbytes(self, tensor: Any) -> int: ...


#: Elements up to which a tensor leaves the step joined with others: a separate output would cost more than the copy.
SMALL = 8_192


LONG = 65_536  #: elements above which no sample leaves a device only to derive values


class Thin(NamedTuple):
    """Some rows of a tensor (see `sampling`), as a separate tensor."""

    rows: Any
    shape: Any  #: the dimensions of the whole tensor as a vector, known now or only when the step runs


class ReplicaRows(NamedTuple):
    """The rows of one tensor, as several replicas handed them out, in order. `replicas.together` joins them."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The part of a tensor that this process holds and records. The other parts are those of other processes."""

    #: Each block: where it begins in the part, and its values.
    blocks: tuple[tuple[tuple[int, ...], Any], ...]
    offset: tuple[int, ...]  #: where the part begins in the whole tensor
    extent: tuple[int, ...]  #: the shape of the part
    shape: tuple[int, ...]  #: the shape of the whole tensor
    dtype: Any

    @property
    def whole_rows(self) -> bool:
        """Whether only the first axis is divided."""
        return self.extent[1:] == self.shape[1:]


class Finish:
    """The last operation on the harvested tensors inside the step. This base class does nothing."""

    joins = False  #: whether small tensors leave the step joined

    def thin(self, site: Site, tensor: Any) -> Any:  # noqa: ARG002
        """The tensor, or a `Thin` of it if that is enough, for adapters that must copy it anyway."""
        return tensor

    def __call__(self, tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:  # noqa: ARG002
        return tensors


# ---- inside the step -------------------------------------------------------------------------------------


class OnHost(Finish):
    """The step returns tensors whole, as some rows, or joined."""

    joins = True

    def __init__(self, wants: Wants, adapter: Adapter) -> None:
        self._wants = wants
        self._adapter = adapter

    def thin(self, site: Site, tensor: Any) -> Any:
        want = self._wants.at(site.place)
        if want is None or not want.sampled or site.place == SAMPLE_LOSS:
            return tensor
        return self._adapter.thinned(tensor, batched=site.batched)

    def __call__(self, tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        small: dict[Any, dict[int, Any]] = {}
        for name, tensor in tensors.items():
            site = sites[name]
            value = tensor if isinstance(tensor, Thin) else self.thin(site, tensor)
            if isinstance(value, Thin) or _of_samples(site, value) or not self._adapter.small(value):
                found[name] = value
            else:
                small.setdefault(str(value.dtype), {})[number(name)] = value
        if small:
            found[JOINED] = [vector for some in small.values() for vector in self._adapter.joined(some)]
        return found


class InStep(Finish):
    """The step returns stats, and only the kept part of a tensor."""

    def __init__(self, wants: Wants, adapter: Adapter) -> None:
        self._wants = wants
        self._adapter = adapter

    def __call__(self, tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:
        from keras import ops

        from fitscope.reduce import in_step

        found: dict[str, Any] = {}
        for name, tensor in tensors.items():
            want = self._wants.at(sites[name].place)
            if want is None or want.whole or sites[name].place in (LOSS, SAMPLE_LOSS):
                found[name] = tensor
                continue
            # A graph may know the shape only when it runs.
            shape = ops.convert_to_tensor(ops.shape(tensor), "int32")
            found[name] = {"shape": shape, "like": tensor[:0] if len(tensor.shape) else tensor}
            if want.stats:
                found[name]["stats"] = in_step.pack(tensor)
            if want.tensor:
                found[name]["tensor"] = first_samples(tensor, want, sites[name])
            if want.activity:
                found[name]["active"] = in_step.active(tensor, want.activity)
            if want.data and _row_length(tensor) <= LONG:
                found[name]["rows"] = self._adapter.thinned(tensor, batched=sites[name].batched)
            if want.mean:
                found[name]["moments"] = in_step.moments(tensor, batched=sites[name].batched)
        return found


def _row_length(tensor: Any) -> int:
    """The number of elements of one sample, as far as known."""
    return math.prod(n if isinstance(n, int) else 1 for n in tensor.shape[1:])


def _of_samples(site: Site, tensor: Any) -> bool:
    """Whether a tensor has samples, or is a loss with several values: see `one_loss`."""
    return site.place == SAMPLE_LOSS or (site.place == LOSS and len(tensor.shape) > 0)


# A joined vector says of which sites it is by number: JAX traces a step again for another batch size, and what is joined then may
# be something else. Names are few, and kept for good.
_numbers: dict[str, int] = {}
_names: list[str] = []
_naming = threading.Lock()


def number(name: str) -> int:
    """The number of a name in the layouts of joined vectors."""
    with _naming:
        if name not in _numbers:
            _numbers[name] = len(_names)
            _names.append(name)
        return _numbers[name]


# ---- outside the step -----------------------------------------------------------------------------------------


class Slot(NamedTuple):
    """A small tensor in a joined vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int

    def of(self, vector: Array) -> Array:
        """The tensor itself."""
        return vector[self.start : self.end].reshape(self.shape)


def slots(layout: Array) -> list[Slot]:
    """The tensors in a joined vector, with their positions."""
    found: list[Slot] = []
    numbers, at, start = layout.tolist(), 0, 0
    while at < len(numbers):
        number, rank = numbers[at : at + 2]
        shape = tuple(numbers[at + 2 : at + 2 + rank])
        end = start + int(np.prod(shape, dtype=np.int64))
        found.append(Slot(_names[number], shape, start, end))
        at, start = at + 2 + rank, end
    return found


@dataclass(frozen=True, slots=True)
class Shown:
    """The tensors that one step returned, and the wants for them. The training thread only creates it."""

    tensors: Mapping[str, Any]
    sites: Mapping[str, Site]
    wants: Wants
    in_pass: str = TRAIN
    #: Sites that the step did not return, with the reason.
    failed: Mapping[Site, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.wants and self.tensors)

    @property
    def joined(self) -> list[tuple[Any, Any]]:
        """Vectors of several small tensors, with their layouts."""
        vectors: list[tuple[Any, Any]] = self.tensors.get(JOINED, [])
        return vectors

    def wanted(self, name: str) -> tuple[Site, Want] | None:
        """The full name of a tensor's site, and the wants for it."""
        site = self.sites[name]
        want = self.wants.at(site.place)
        if want is None:
            return None
        return site.within(self.in_pass), want

    def names(self) -> list[Site]:
        """The wanted sites, without waiting for the step."""
        found = (self.wanted(name) for name in self.sites if name not in self.failed)
        return [where[0] for where in found if where is not None]

    def without_tensors(self) -> Shown:
        """A copy without tensors, which keeps the names."""
        return replace(self, tensors={})

    def single(self) -> Iterator[tuple[Site, Want, Any]]:
        """The tensors that left the step separately."""
        for name, value in self.tensors.items():
            found = self.wanted(name) if name != JOINED else None
            if found is not None:
                yield *found, value

    def values(self, adapter: HostAdapter) -> dict[str, Any]:
        """All values that a user may read, by name."""
        found: dict[str, Any] = {site: value for site, _, value in self.single() if site.place != SAMPLE_LOSS}
        for vector, layout in self.joined:
            array = adapter.to_numpy(vector)
            for slot in slots(adapter.to_numpy(layout)):
                where = self.wanted(slot.name)
                if where is not None:
                    found[where[0]] = slot.of(array)
        return found

    def nbytes(self, adapter: HostAdapter) -> int:
        """Its memory in bytes."""
        return sum([nbytes(value, adapter) for value in self.tensors.values()])


OBJECT = 2_000  #: approximate bytes of a tensor in addition to its values


def nbytes(value: Any, adapter: HostAdapter) -> int:
    """The memory of a harvested value, in bytes."""
    if isinstance(value, (tuple, list)):
        if isinstance(value, Thin):
            return nbytes(value.rows, adapter)
        return sum([nbytes(item, adapter) for item in value])
    if isinstance(value, dict):
        return sum([nbytes(item, adapter) for item in value.values()])
    return adapter.nbytes(value) + OBJECT


def first_samples(tensor: Any, want: Want, site: Site) -> Any:
    """The kept samples of a tensor."""
    return (
        tensor[: want.samples] if want.samples is not None and site.batched and len(tensor.shape) else tensor
    )

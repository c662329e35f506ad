"""Where a tensor becomes a record: in this machine's memory, or partly inside the step.

On a CPU tensors leave the step without a copy and are reduced by the writer's thread. Of a large one of which only statistics
are wanted some rows leave it (`sampling`), and small ones leave it joined to one vector, kept or not: what an output costs beside its
bytes is then paid once. On an accelerator the step itself reduces them, and only a few numbers and the kept samples travel. Both
halves of each way stand in this file, because they must agree; the rest of the code does not know which way was taken.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fitscope.plan.plan import LOSS, SAMPLE_LOSS, Want, Wants
from fitscope.plan.sampling import as_rows, stride
from fitscope.record import Head, Moment, Record
from fitscope.reduce.average import Average
from fitscope.sites import TRAIN, Site

if TYPE_CHECKING:
    from fitscope.capture.backends._base import Adapter

Array = np.ndarray[Any, Any]

#: Where, in what a step hands out, the joined tensors are: no site has this name.
JOINED = ""


class Border(Protocol):
    """What is asked of whoever made a tensor: an adapter, or anything like it."""

    def to_numpy(self, tensor: Any) -> Array: ...

    def nbytes(self, tensor: Any) -> int: ...


#: Elements up to which a tensor is handed out joined with others: an output of its own would cost more than the copy.
SMALL = 8_192


class Thin(NamedTuple):
    """Some rows of a tensor (see `sampling`), as a tensor of their own."""

    rows: Any
    shape: Any  #: of the whole tensor: its dimensions as a vector, known now or only when the step runs


class Finish:
    """What is done with the harvested tensors inside the step, before they leave it. This one does nothing."""

    def thin(self, site: Site, tensor: Any) -> Any:  # noqa: ARG002
        """The tensor, or a `Thin` of it if no more than that will be needed: for adapters that must copy it anyway."""
        return tensor

    def __call__(self, tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:  # noqa: ARG002
        return tensors


# ---- inside the step -------------------------------------------------------------------------------------


class OnHost(Finish):
    """The step hands out tensors as they are, or thinned, or joined."""

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
                small.setdefault(str(value.dtype), {})[_number(name)] = value
        if small:
            found[JOINED] = [self._adapter.joined(some) for some in small.values()]
        return found


class InStep(Finish):
    """The step hands out stats, and of the tensor only what is kept."""

    def __init__(self, wants: Wants, adapter: Adapter) -> None:  # noqa: ARG002
        self._wants = wants

    def __call__(self, tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:
        from keras import ops

        from fitscope.reduce import in_step

        found: dict[str, Any] = {}
        for name, tensor in tensors.items():
            want = self._wants.at(sites[name].place)
            if want is None or want.whole or sites[name].place in (LOSS, SAMPLE_LOSS):
                found[name] = tensor
                continue
            shape = ops.convert_to_tensor(ops.shape(tensor), "int32")  # in a graph it may be known only there
            found[name] = {"shape": shape, "like": tensor[:0] if len(tensor.shape) else tensor}
            if want.stats:
                found[name]["stats"] = in_step.pack(tensor)
            if want.tensor:
                found[name]["tensor"] = _first(tensor, want, sites[name])
            if want.mean:
                found[name]["moments"] = in_step.moments(tensor, batched=sites[name].batched)
        return found


def _of_samples(site: Site, tensor: Any) -> bool:
    """Whether it is something that the samples are made of, or a loss that is not one number: see `one_loss`."""
    return site.place == SAMPLE_LOSS or (site.place == LOSS and len(tensor.shape) > 0)


# A joined vector says of which sites it is by number: JAX traces a step anew for another batch size, and what is joined then may
# be something else. Names are few, and kept for good.
_numbers: dict[str, int] = {}
_names: list[str] = []
_naming = threading.Lock()


def _number(name: str) -> int:
    with _naming:
        if name not in _numbers:
            _numbers[name] = len(_names)
            _names.append(name)
        return _numbers[name]


# ---- outside of it -----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A small tensor in a joined vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int

    def of(self, vector: Array) -> Array:
        """The tensor itself."""
        return vector[self.start : self.end].reshape(self.shape)


def parts(layout: Array) -> list[Part]:
    """Which tensors a joined vector holds, and where."""
    found: list[Part] = []
    numbers, at, start = layout.tolist(), 0, 0
    while at < len(numbers):
        number, rank = numbers[at : at + 2]
        shape = tuple(numbers[at + 2 : at + 2 + rank])
        end = start + int(np.prod(shape, dtype=np.int64))
        found.append(Part(_names[number], shape, start, end))
        at, start = at + 2 + rank, end
    return found


@dataclass(frozen=True, slots=True)
class Shown:
    """What one step handed out, and what is wanted of it. The training thread makes it and looks no further."""

    tensors: Mapping[str, Any]
    sites: Mapping[str, Site]
    wants: Wants
    in_pass: str = TRAIN
    failed: Mapping[Site, str] = field(default_factory=dict)  #: sites that were not seen after all

    def __bool__(self) -> bool:
        return bool(self.wants and self.tensors)

    @property
    def joined(self) -> list[tuple[Any, Any]]:
        """Vectors of several small tensors, with their layouts."""
        vectors: list[tuple[Any, Any]] = self.tensors.get(JOINED, [])
        return vectors

    def wanted(self, name: str) -> tuple[Site, Want] | None:
        """Where a tensor was seen, by its full name, and what is wanted of it."""
        site = self.sites[name]
        want = self.wants.at(site.place)
        if want is None:
            return None
        return site.within(self.in_pass), want

    def names(self) -> list[Site]:
        """The sites that are wanted, without waiting for the step."""
        found = (self.wanted(name) for name in self.sites if name not in self.failed)
        return [where[0] for where in found if where is not None]

    def single(self) -> Iterator[tuple[Site, Want, Any]]:
        """What was handed out by itself."""
        for name, value in self.tensors.items():
            found = self.wanted(name) if name != JOINED else None
            if found is not None:
                yield *found, value

    def values(self, border: Border) -> dict[str, Any]:
        """By name all that somebody may want to look at."""
        found: dict[str, Any] = {site: value for site, _, value in self.single() if site.place != SAMPLE_LOSS}
        for vector, layout in self.joined:
            array = border.to_numpy(vector)
            for part in parts(border.to_numpy(layout)):
                where = self.wanted(part.name)
                if where is not None:
                    found[where[0]] = part.of(array)
        return found

    def nbytes(self, border: Border) -> int:
        """How much memory it holds."""
        return sum(nbytes(value, border) for value in self.tensors.values())


OBJECT = 2_000  #: bytes that a tensor takes up beside its values, about


def nbytes(value: Any, border: Border) -> int:
    """How much memory a harvested value holds."""
    if isinstance(value, Thin):
        return nbytes(value.rows, border)
    if isinstance(value, dict):
        return sum(nbytes(item, border) for item in value.values())
    if isinstance(value, tuple | list):
        return sum(nbytes(item, border) for item in value)
    return border.nbytes(value) + OBJECT


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Its name, which NumPy takes 6 µs to find."""
    return dtype.name


class Seen(NamedTuple):
    """A tensor on the host: the part of it that stats are to be of, and what it is of."""

    head: Head
    array: Array


def seen(site: Site, want: Want, value: Any, border: Border) -> Seen:
    """What was seen at a site, from what the step handed out: the whole tensor, or some rows."""
    if isinstance(value, Thin):
        array = border.to_numpy(value.rows)
        shape = tuple(int(n) for n in border.to_numpy(value.shape))
    else:
        array = value if isinstance(value, np.ndarray) else border.to_numpy(value)
        shape = array.shape
        if want.sampled:
            rows, length = as_rows(shape, batched=site.batched)
            step = stride(rows, length)
            if step > 1:
                array = np.ascontiguousarray(array.reshape(rows, length)[::step])
    return Seen(Head(site, shape, _name_of(array.dtype), site.batched and len(shape) > 0), array)


def one_loss(array: Array) -> Array:
    """The loss of a batch is one number. Of a loss that was not reduced, and is one for each sample, it is the mean."""
    return array if array.ndim == 0 else np.asarray(array.mean(dtype=np.float64), array.dtype)


def kept(site: Site, want: Want, array: Array, at: Moment) -> Record:
    """The record of what is kept of a whole tensor, without stats."""
    tensor = _first(array, want, site)
    if tensor.nbytes < array.nbytes:
        tensor = tensor.copy()  # a view would hold on to the whole tensor
    return Record(site, at, array.shape, _name_of(array.dtype), None, tensor, site.batched and array.ndim > 0)


def reduced(site: Site, want: Want, value: Mapping[str, Any], at: Moment, border: Border) -> Record:
    """The record of what a step has reduced itself."""
    from fitscope.reduce import in_step

    shape = tuple(int(n) for n in border.to_numpy(value["shape"]))
    dtype = border.to_numpy(value["like"]).dtype
    stats = in_step.unpack([border.to_numpy(part) for part in value["stats"]]) if want.stats else None
    tensor = border.to_numpy(value["tensor"]) if want.tensor else None
    return Record(site, at, shape, dtype.name, stats, tensor, site.batched and len(shape) > 0)


def add_to_average(average: Average, site: Site, value: Any, at: Moment, border: Border) -> None:
    """Adds what the step handed out to a running average."""
    if isinstance(value, dict):
        shape = border.to_numpy(value["shape"])
        mean, m2 = (border.to_numpy(part) for part in value["moments"])
        average.add_moments(mean, m2, int(shape[0]) if site.batched and len(shape) else 1, at.step)
    else:
        array = border.to_numpy(value)
        average.add(array, at.step, site.batched and array.ndim > 0)


def tensor_of(value: Any, border: Border) -> Array | None:
    """The values themselves, where the step handed all of them out."""
    if isinstance(value, Thin):
        rows = border.to_numpy(value.rows)
        shape = tuple(border.to_numpy(value.shape).tolist())
        return rows.reshape(shape) if rows.size == math.prod(shape) else None
    if isinstance(value, dict):
        return border.to_numpy(value["tensor"]) if "tensor" in value else None
    return value if isinstance(value, np.ndarray) else border.to_numpy(value)


def _first(tensor: Any, want: Want, site: Site) -> Any:
    return (
        tensor[: want.samples] if want.samples is not None and site.batched and len(tensor.shape) else tensor
    )

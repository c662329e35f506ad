"""Computes the loss, weight, target, prediction and identity of each sample of a batch.

The step returns the inputs of its loss (`layer_taps.py`): targets, predictions, sample weights and masks, and the model's inputs.
From these fitscope computes the losses of compile() again, element by element, before Keras weights and reduces them, off the
training thread. It does so because a value from inside a compiled loss would make the compiler round the rest differently. No
part of the model runs again.

A sample's loss is its share of the batch's: the losses of a batch average to its loss (without regularization terms). If the loss
sums over samples, they add up to it.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fitscope.pipeline.handover import HostAdapter, Shard
from fitscope.record import Moment, Samples
from fitscope.sites import Site

Array = np.ndarray[Any, Any]
Groups = Mapping[str, Mapping[str, Any]]  #: parts of the samples ("y", "mask", …), each by output or input


class SampleLosses:
    """Computes the samples of a step."""

    def __init__(
        self, model: Any, ids: str | None, adapter: HostAdapter, note: Callable[[str, str], None]
    ) -> None:
        self._model = model
        self._ids = ids
        self._adapter = adapter
        self._tell = note  # takes a site, and the reason why it has no value
        self._told: set[tuple[str, str]] = set()
        self._site = Site("sample_loss")

    def of(self, at: Moment, in_pass: str, shown: Mapping[tuple[str, str], Any]) -> list[Samples]:
        """One `Samples` for each output with a loss, from the step's values by the labels and parts of their sites."""
        self._site = Site("sample_loss").within(in_pass)
        shown = self._of_this_process(shown)
        if not shown:
            return []
        groups: dict[str, dict[str, Any]] = {}
        for (group, suffix), tensor in shown.items():
            groups.setdefault(group, {})[suffix] = tensor
        parts = _parts_of_loss(self._model)
        own = groups.get("loss", {}).get("")  # the loss of a step, if it is not one number
        ids = self._identities(groups.get("x", {}))
        if not parts or "y_pred" not in groups:
            if own is not None:
                values = _by_sample(np.asarray(own, np.float64)).mean(axis=1)
                return [Samples(at, in_pass, "", ids if ids and len(ids) == len(values) else None, values)]
            self._note("the step does not use a loss given to compile(), so there is no loss per sample")
            return []
        found = []
        for number, (_, loss, factor, name) in enumerate(parts):
            of = functools.partial(_of_output, groups, output=str(name), number=number)
            if not _by_elements(loss):
                self._note(
                    f"the loss {name!r} overrides `__call__`, so it may not consist of one loss per sample"
                )
                continue
            elements = self._elements(loss, of("y"), of("y_pred"))
            if elements.ndim == 0:
                self._note(f"the loss {name!r} is one number for the whole batch, not one for each sample")
                continue
            weight, mask, y, y_pred = (
                None if (tensor := of(part)) is None else self._adapter.to_numpy(tensor)
                for part in ("sample_weight", "mask", "y", "y_pred")
            )
            shares = _shares(elements, weight, mask, getattr(loss, "reduction", None))
            n = len(shares)
            found.append(
                Samples(
                    at,
                    in_pass,
                    str(name) if len(parts) > 1 else "",
                    ids,
                    shares if factor is None else shares * float(factor),
                    None if weight is None else np.asarray(_rows(weight, n), np.float64).mean(axis=1),
                    _rows(y, n),
                    _rows(y_pred, n),
                )
            )
        return found

    def _of_this_process(self, shown: Mapping[tuple[str, str], Any]) -> Mapping[tuple[str, str], Any]:
        """The values of the rows that this process holds, if several processes hold parts of the batch."""
        shards = [value for value in shown.values() if isinstance(value, Shard)]
        if not shards:
            return shown
        rows = {(shard.offset[0], shard.extent[0]) for shard in shards if shard.shape}
        if len(rows) > 1 or not all(shard.whole_rows for shard in shards):
            self._note("each process holds only a part of every sample, so there is no loss per sample")
            return {}
        if not {"y", "y_pred"} <= {part for part, _ in shown}:
            return {}  # another process holds the rows
        return {
            key: self._adapter.to_numpy(value) if isinstance(value, Shard) else value
            for key, value in shown.items()
        }

    def _elements(self, loss: Any, y: Any, y_pred: Any) -> Array:
        """The loss of each element, as Keras computes it before it weights and reduces them."""
        from keras import ops

        given = (ops.convert_to_tensor(tensor, dtype=loss.dtype) for tensor in (y, y_pred))
        return self._adapter.to_numpy(loss.call(*given))

    def _identities(self, inputs: Mapping[str, Any]) -> list[str] | None:
        if self._ids is not None and "/" + self._ids not in inputs:
            there = ", ".join(repr(name.lstrip("/")) for name in inputs if name) or "one that has no name"
            self._note(f"there is no input {self._ids!r} to identify samples by; the inputs are {there}")
            return None
        if self._ids is not None:
            return [_text(row) for row in self._adapter.to_numpy(inputs["/" + self._ids])]
        arrays = [np.ascontiguousarray(self._adapter.to_numpy(tensor)) for tensor in inputs.values()]
        n = min((len(array) for array in arrays), default=0)
        return [_hash(array[i] for array in arrays) for i in range(n)] or None

    def _note(self, text: str) -> None:
        if (self._site, text) not in self._told:
            self._told.add((self._site, text))
            self._tell(self._site, text)


def _by_elements(loss: Any) -> bool:
    """Whether Keras itself weights and reduces the result of `loss.call`, one number per element."""
    return str(getattr(type(loss).__call__, "__module__", "")).startswith("keras.")


def _parts_of_loss(model: Any) -> list[Any]:
    """The losses of compile(), in the order in which Keras computes them: (path, loss, weight, name)."""
    return list(getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or ())


def _of_output(groups: Groups, part: str, *, output: str, number: int) -> Any:
    """The item of one output: by its name, by its index, the one without a name, or by its position."""
    group = groups.get(part, {})
    for key in (f"/{output}", f"[{number}]", ""):
        if key in group:
            return group[key]
    return list(group.values())[number] if number < len(group) else None


def _shares(losses: Array, weight: Array | None, mask: Array | None, reduction: str | None) -> Array:
    """Each sample's share of the batch's loss, as Keras weights and reduces the losses of the elements."""
    values = losses.astype(np.float64)
    factor = np.ones_like(values)
    if mask is not None:
        counted = _like(mask.astype(bool), values)
        # Keras scales the unmasked elements up to stand for the masked ones.
        scaled = reduction in ("mean", "sum_over_batch_size") and counted.any()
        factor = factor * counted * (counted.size / counted.sum() if scaled else 1.0)
    if weight is not None:
        factor = factor * _like(weight.astype(np.float64), values)
    n = len(values)
    shares: Array = _by_sample(values * factor).sum(axis=1)
    if reduction == "sum" or not values.size:
        return shares
    whole = float(values.size)
    if reduction == "mean_with_sample_weight" and (weight is not None or mask is not None):
        whole = float(factor.sum())
    return shares * n / whole if whole else np.zeros_like(shares)


def _like(array: Array, values: Array) -> Array:
    """The array in the shape of the values: Keras allows a missing last axis of length one."""
    if array.ndim == values.ndim + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    return np.broadcast_to(array.reshape(array.shape + (1,) * (values.ndim - array.ndim)), values.shape)


def _rows(array: Array | None, n: int) -> Array | None:
    return _by_sample(array) if array is not None and array.ndim and len(array) == n else None


def _by_sample(array: Array) -> Array:
    """One row for each sample. The length of a row is named, because NumPy cannot find it if there is no sample."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _text(row: Any) -> str:
    value = np.ravel(row)
    if value.size != 1:
        return _hash([value])
    item = value[0].item()
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return str(int(item)) if isinstance(item, float) and item.is_integer() else str(item)


def _hash(rows: Iterable[Array]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(np.asarray(row).tobytes())
    return digest.hexdigest()

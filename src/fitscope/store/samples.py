"""The samples table of one rank: the loss, target and prediction of single samples (see `parts`).

Rows come a batch at a time and stay in the arrays they came in until they leave. On disk a row takes about 5 bytes
with a loss alone, 19 with a hash as its id, a target and a prediction, 42 with ten predictions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.record import Samples
from fitscope.sites import utf8
from fitscope.store.parts import Encoding, Rows
from fitscope.store.schema import LONGEST_VALUE, SAMPLES, SAMPLES_SCHEMA

ROW_MEMORY = 60  #: approximate bytes of a row in memory in addition to its numbers
ROW_BYTES = 60  #: bytes of a row on disk without target and prediction, estimated high

_FLOATS = ("time", "loss", "weight", "target.list.element", "prediction.list.element")
_INTEGERS = ("step", "epoch", "batch", "sample")
_DICTIONARIES = ["pass", "output", "id"]
_ENCODINGS = dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT") | dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED")
_STATISTICS = ["step"]

Array = np.ndarray[Any, Any]


class SamplesRows(Rows):
    """Rows of the samples table."""

    name = SAMPLES
    encoding = Encoding(_DICTIONARIES, _ENCODINGS, _STATISTICS)

    def __init__(self, attempt: int, rank: int) -> None:
        self._origin = (attempt, rank)
        self._batches: list[Samples] = []
        self._count = 0
        self._numbers = 0  # the number of values in targets and predictions

    def __len__(self) -> int:
        return self._count

    @property
    def memory(self) -> int:
        return self._count * ROW_MEMORY + self._numbers * 8

    @property
    def disk_bytes(self) -> int:
        return self._count * ROW_BYTES + self._numbers * 8

    def add(self, samples: Samples) -> None:
        """Takes the rows of one batch. ValueError if its columns differ in length."""
        samples = storable(samples)
        if len(samples):
            self._batches.append(samples)
            self._count += len(samples)
            self._numbers += numbers(samples)

    def sites(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for samples in self._batches:
            found[samples.site] += len(samples)
        return found

    def clear(self) -> None:
        self._batches, self._count, self._numbers = [], 0, 0

    def table(self) -> pa.Table:
        """All rows, in order. There must be at least one."""
        batches = self._batches
        lengths = np.array([len(samples) for samples in batches])

        def each(values: list[Any], field: str) -> pa.Array:
            """A column with one value per batch."""
            kind = SAMPLES_SCHEMA.field(field).type
            if pa.types.is_string(kind):
                names = sorted(set(values))
                codes = np.array([names.index(value) for value in values], np.int32)
                return pa.DictionaryArray.from_arrays(np.repeat(codes, lengths), pa.array(names, kind))
            return pa.array(np.repeat(np.array(values, kind.to_pandas_dtype()), lengths), kind)

        def own(field: str, of: str | None = None) -> pa.ChunkedArray:
            """A column with one value per sample."""
            kind = SAMPLES_SCHEMA.field(field).type
            columns = (getattr(samples, of or field) for samples in batches)
            pieces = [
                pa.nulls(length, kind) if column is None else _column(column, kind)
                for column, length in zip(columns, lengths.tolist(), strict=True)
            ]
            return pa.chunked_array(pieces, kind).combine_chunks()

        arrays = {
            "step": each([samples.at.step for samples in batches], "step"),
            "epoch": each([samples.at.epoch for samples in batches], "epoch"),
            "batch": each([samples.at.batch for samples in batches], "batch"),
            "time": each([samples.at.time for samples in batches], "time"),
            "attempt": pa.repeat(pa.scalar(self._origin[0], pa.int16()), self._count),
            "rank": pa.repeat(pa.scalar(self._origin[1], pa.int32()), self._count),
            "sample": pa.array(np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])),
            "pass": each([samples.in_pass for samples in batches], "pass"),
            "output": each([samples.output for samples in batches], "output"),
            "id": own("id", of="ids"),
            **{name: own(name) for name in ("loss", "weight", "target", "prediction")},
        }
        return pa.table([arrays[name] for name in SAMPLES_SCHEMA.names], SAMPLES_SCHEMA.names)


def numbers(samples: Samples) -> int:
    """The number of values in the targets and predictions for the table."""
    values = (_value(column) for column in (samples.target, samples.prediction))
    return sum(value.size for value in values if value is not None)


def storable(samples: Samples) -> Samples:
    """The samples with the columns of the table; ValueError if their lengths differ."""
    columns = {
        "ids": None if samples.ids is None else [utf8(str(name)) for name in samples.ids],
        "loss": _each(samples.loss),
        "weight": _each(samples.weight),
        "target": _value(samples.target),
        "prediction": _value(samples.prediction),
    }
    lengths = {len(column) for column in columns.values() if column is not None}
    if len(lengths) > 1:
        said = {name: len(column) for name, column in columns.items() if column is not None}
        raise ValueError(f"the columns of a batch's samples differ in length: {said}")
    return Samples(samples.at, samples.in_pass, utf8(samples.output), **columns)  # type: ignore[arg-type]


def _each(column: Array | None) -> Array | None:
    return None if column is None else np.ravel(np.asarray(column, np.float64))


def _value(column: Array | None) -> Array | None:
    """One row per sample; None if there are too many values for the table, or they are not numbers."""
    if column is None:
        return None
    column = np.asarray(column)
    if column.ndim == 0 or column.dtype.kind in "cOSUM":
        return None
    width = column[0].size if len(column) else 1
    return None if width > LONGEST_VALUE else column.reshape(len(column), width)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    rows, width = values.shape
    flat = pa.array(np.ravel(values).astype(np.float64))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), flat)

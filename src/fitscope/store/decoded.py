"""Finds how much memory a Parquet file or an Arrow message takes once decoded, without decoding it.

Both are compressed, and both state their own size: a file of 2 MB can claim, and become, many gigabytes.
The sizes in a footer do not bind Arrow; those in a page's own header do: Arrow allocates by them. So fitscope
first adds up the headers of the pages that it is about to read, one or two for each column and row group.
It raises `TooLargeError` beyond `MOST`, which is several times the size of any object that fitscope writes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MOST = 256 << 20  #: the most bytes of memory for the decoded data of one object
MOST_FILE = 256 << 20  #: the most bytes of a file with rows
MOST_FOOTER = 2 << 20
MOST_GROUPS = 4096

_VALUE = 10  # bytes of memory for a value, however few it takes in the file: 8 for a number or a null, 2 for its level
_HEADER = 16 << 10  # bytes of the header of a page, whose statistics may hold two names
_DELTA_BYTE_ARRAY = 7  # the encoding by which one byte can repeat a string of any length
_RECORD_BATCH = 3


class TooLargeError(ValueError):
    """Decoding would take more memory than is allowed."""


def within(size: int, what: str) -> int:
    """The size, unless it is too large."""
    if size > MOST:
        raise TooLargeError(
            f"{what} would take {size:,} bytes of memory, more than the {MOST:,} that are allowed"
        )
    return size


def footer_fits(source: pa.NativeFile) -> None:
    """Refuses a Parquet file whose footer is too large, before parsing it."""
    size = source.size()
    if size > MOST_FILE:
        raise TooLargeError(f"it has {size:,} bytes, more than the {MOST_FILE:,} that are read")
    if size >= 8:
        (footer,) = struct.unpack("<I", source.read_at(4, size - 8))
        if footer > MOST_FOOTER:
            raise TooLargeError(
                f"its footer has {footer:,} bytes, more than the {MOST_FOOTER:,} that are read"
            )


def pages_fit(source: pa.NativeFile, file: Any, places: Collection[int], groups: Iterable[int]) -> None:
    """Refuses columns of row groups of a Parquet file that would take too much memory. `places` are the columns."""
    total = compressed = 0
    for number in groups:
        total += file.metadata.row_group(number).num_rows * len(places)
        for place in places:
            chunk = column_chunk(file, number, place)
            total += _chunk(source, chunk)
            within(total, "it")
            compressed += chunk.total_compressed_size
    if compressed > source.size():
        raise ValueError(
            f"its columns have {compressed:,} bytes, more than the {source.size():,} of the file"
        )


def column_chunk(file: Any, group: int, place: int) -> Any:
    """The facts in the footer about one column of one row group.

    For some damaged footers `RowGroupMetaData.column` ends the process: a C++ exception leaves a function of pyarrow (17 to 26) that
    does not expect any. Arrow's reader makes the same object when it begins to read the column, and raises an OSError there. So it
    begins first, and reads no row.
    """
    next(file.reader.iter_batches(0, row_groups=[group], column_indices=[place], use_threads=False), None)
    return file.metadata.row_group(group).column(place)


def _chunk(source: pa.NativeFile, chunk: Any) -> int:
    """The memory that the pages of one column chunk take, as Arrow will find them."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= source.size():
        raise ValueError(
            f"a column goes from byte {at:,} to {end:,}, outside the {source.size():,} bytes of the file"
        )
    memory = values = 0
    while at < end and values < chunk.num_values:
        header = _Thrift(source.read_at(min(_HEADER, end - at), at))
        page = header.struct()
        uncompressed, compressed = page[2], page[3]
        data = page.get(5) or page.get(8)  # a data page, of version 1 or 2
        if uncompressed < 0 or compressed < 0:
            raise ValueError(f"a page has {compressed} bytes, decoded {uncompressed}")
        if data is not None:
            if data[1] < 0 or (data[2] if 5 in page else data[4]) == _DELTA_BYTE_ARRAY:
                raise ValueError("a page has an encoding that fitscope does not write")
            values += data[1]
        memory += uncompressed
        at += header.at + compressed
    return within(max(memory, values * _VALUE), "a column")


def strings_fit(table: pa.Table) -> None:
    """Refuses a table whose dictionary-encoded names would take too much memory when written out."""
    for column in table.columns:
        if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
            continue
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary)
            longest = pc.max(lengths).as_py() or 0
            if longest * len(chunk) > MOST:
                within(pc.sum(lengths.take(chunk.indices)).as_py() or 0, "its names")


def message_size(message: Any) -> int:
    """The memory that a record batch of an Arrow stream takes; refused if that is too much."""
    data, body = message.metadata, memoryview(message.body) if message.body is not None else memoryview(b"")
    root = _Table(data, *struct.unpack_from("<I", data, 0))
    if root.scalar(1, "<B") != _RECORD_BATCH:
        raise ValueError("a message holds something other than rows")
    batch = root.table(2)
    compressed = batch.offset(3) is not None
    total = 0
    for offset, length in batch.vector(2, "<qq"):
        if length and not 0 <= offset <= offset + length <= len(body):
            raise ValueError(
                f"a buffer goes from byte {offset:,} to {offset + length:,}, outside the {len(body):,} bytes of its message"
            )
        size = length
        if compressed and length:
            (size,) = struct.unpack_from("<q", body, offset)
            size = length if size == -1 else size
        total = within(total + max(size, 0), "it")
        if size < 0:
            raise ValueError(f"a buffer has {size} bytes")
    for rows, _ in batch.vector(1, "<qq"):
        total = within(total + max(rows, 0), "it")
    return total


class _Thrift:
    """The part of Thrift's compact protocol that the header of a page needs: numbers, by their field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """A struct as {field: value}. Text and lists appear without their content."""
        if depth > 4:
            raise ValueError("the header of a page is nested more than 4 deep")
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._number()
            found[field] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true, false
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._number()
        if kind == 7:
            self.at += 8
        elif kind == 8:
            length = self._varint()
            self.at += length
        elif kind == 12:
            return self.struct(depth + 1)
        else:
            raise ValueError(f"the header of a page has a field of type {kind}, which fitscope does not know")
        return None

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("the header of a page has a number of more than 64 bits")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class _Table:
    """A table of a FlatBuffer that Arrow has verified."""

    def __init__(self, data: Any, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    def offset(self, field: int) -> int | None:
        """The offset of a field; None if it is absent."""
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        place = 4 + 2 * field
        (offset,) = struct.unpack_from("<H", self._data, self._fields + place) if place < size else (0,)
        return self._at + offset if offset else None

    def scalar(self, field: int, form: str) -> Any:
        at = self.offset(field)
        return None if at is None else struct.unpack_from(form, self._data, at)[0]

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._follow(field))

    def vector(self, field: int, form: str) -> list[Any]:
        """The structs of a vector; empty if it is absent."""
        if self.offset(field) is None:
            return []
        at = self._follow(field)
        (length,) = struct.unpack_from("<I", self._data, at)
        size = struct.calcsize(form)
        return [struct.unpack_from(form, self._data, at + 4 + size * n) for n in range(length)]

    def _follow(self, field: int) -> int:
        at = self.offset(field)
        if at is None:
            raise ValueError("a message has no rows")
        return int(at + struct.unpack_from("<I", self._data, at)[0])

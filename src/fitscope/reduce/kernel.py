"""The compiled half of `host`: one pass over memory, every stat at once.

The array is taken in blocks that fit the first-level cache. Each block comes from memory once and is then
read three times, by loops that the compiler turns into vector code: extremes and zeros, moments, histogram.
Tests for zero, negative and NaN read the bits and not the float, so they stay exact on a thread that flushes subnormal numbers.

It computes moments about the mean so far, so that a large mean does not hide the digits of a small deviation,
and joins blocks by Chan's update.

The histogram is the costly part: one increment in memory per element. Full blocks pay half of that by
counting *pairs* of elements in a table of 64 × 64 codes. A code is the sign and the place of the exponent in
a window of 31 octaves. The few elements below the window are counted one by one; the window only moves up.

Results are added to two arrays of the caller: `hist`, as `stats` defines it, and `totals`, whose places have
names below. `take_out` empties a histogram for the next array: one that stays in the cache serves them all.
Nothing here keeps state, so any number of threads may run it at once. If other code writes to the
array meanwhile, the result is useless, but nothing outside the array is read or written.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba infers the types. Only functions that `host` calls declare them.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fitscope.reduce.compiled import compiled, fetch, writable
from fitscope.reduce.stats import ZERO_BUCKET

Array = np.ndarray[Any, Any]

#: Places in `totals`, an array of float64. SQUARES is the sum of squared deviations from the mean.
FINITE, MEAN, SQUARES, MIN, MAX, ZEROS, NEGATIVES, NANS, INFS = range(9)
NOTHING = np.array([0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0, 0.0, 0.0])  #: the totals of no elements

BLOCK = 1024  #: elements; with larger blocks fetching the next one ahead waits for line buffers
_CHUNK = 64 * BLOCK  # 16-bit elements widened at a time, into the second-level cache
_LINE = 64  # bytes
_WINDOW = 32  # places for an exponent: 31 octaves, and 0 for "below"
_CODES = 2 * _WINDOW
_PAIRS = _CODES * _CODES
_SLACK = 4  # octaves the window reaches above the exponent that moved it
_LOOK = 32  # buckets that are looked at together: most are empty
_PAIRS_FROM = 8 * BLOCK  # elements; below that, clearing and reading the table costs more than it saves
_SHORT_PLACES = (
    576  # of the counts of a short array: those of a histogram, in groups that are looked at together
)


class _Layout(NamedTuple):
    """The bit layout of a float, read as a signed integer."""

    sign: int  #: place of the sign bit
    mantissa: int  #: number of bits
    magnitude: int  #: all bits but the sign
    infinity: int
    lowest: int  #: 2⁻¹²⁷; smaller values go into the lowest bucket
    offset: int  #: the difference between the stored exponent and the bucket


_FLOAT32 = _Layout(31, 23, 0x7FFF_FFFF, 0x7F80_0000, 0x0040_0000, 129 - 127)
_FLOAT64 = _Layout(63, 52, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x3800_0000_0000_0000, 129 - 1023)


def _layout(words: Any) -> _Layout:
    """The layout of the floats with these bits, for compiled code."""
    raise NotImplementedError


@overload(_layout, inline="always")
def _layout_of(words):
    # Chosen while compiling: the loops become vector code only if their shifts and masks are constants.
    layout = _FLOAT32 if words.dtype.bitwidth == 32 else _FLOAT64
    return lambda words: layout  # noqa: ARG005


@compiled(forceinline=True)
def _in_order(word, layout):
    """Converts bits to integers that sort like the floats, and back.

    Read as integers, floats above zero are in order and those below in reverse.
    """
    return word ^ ((word >> layout.sign) & layout.magnitude)


@compiled()
def _extremes(words):
    layout = _layout(words)
    as_word = words.dtype.type
    low = high = as_word(_in_order(words[0], layout))
    zeros = np.int32(0)
    for i in range(words.size):
        place = as_word(_in_order(words[i], layout))
        low = min(low, place)
        high = max(high, place)
        zeros = np.int32(zeros + np.int32(words[i] & layout.magnitude == 0))
    return low, high, zeros


# Sums may be reordered: only then are they vector code. NaN and Inf stay what they are.
@compiled(fastmath={"reassoc", "contract"})
def _sums(values, centre):
    total = squares = 0.0
    for i in range(values.size):
        deviation = np.float64(values[i]) - centre
        total += deviation
        squares += deviation * deviation
    return total, squares


@compiled()
def _add_moments(values, totals):
    size, before = values.size, totals[FINITE]
    # Any element will do to begin with: no deviation from it can dwarf all deviations from the mean.
    centre = totals[MEAN] if before else np.float64(values[0])
    total, squares = _sums(values, centre)
    shift = total / size
    delta = centre + shift - totals[MEAN]
    share = size / (before + size)
    totals[SQUARES] += max(squares - total * shift, 0.0) + delta * delta * before * share
    totals[MEAN] += delta * share
    totals[FINITE] += size


@compiled()
def _count_each(words, hist):
    """Counts all elements except zeros, one by one."""
    layout = _layout(words)
    for i in range(words.size):
        size = words[i] & layout.magnitude
        bucket = 1 if size < layout.lowest else min((size >> layout.mantissa) + layout.offset, 256)
        hist[ZERO_BUCKET + (bucket if words[i] >= 0 else -bucket)] += size != 0  # cheaper than to ask


@compiled()
def _below(words, base):
    """Counts the elements below the window, except zeros."""
    layout = _layout(words)
    limit = (base + 1) << layout.mantissa
    kept = np.empty_like(words)
    count = 0
    for i in range(words.size):
        size = words[i] & layout.magnitude
        kept[count] = words[i]
        count += (size != 0) & (size < limit)
    return kept[:count]


@compiled()
def _encode(words, base, codes):
    """Pairs the codes of a block's two halves; returns the number of elements below the window."""
    layout = _layout(words)
    half = words.size // 2
    base = np.int32(base)
    below = np.int32(0)
    for i in range(half):
        one, two = words[i], words[half + i]
        first = np.int32(max(np.int32((one & layout.magnitude) >> layout.mantissa), base) - base)
        second = np.int32(max(np.int32((two & layout.magnitude) >> layout.mantissa), base) - base)
        below = np.int32(below + np.int32(first == 0) + np.int32(second == 0))
        first |= (one >> layout.sign) & _WINDOW
        second |= (two >> layout.sign) & _WINDOW
        # The mask changes nothing unless other code writes to the array: then it keeps the index inside the table.
        codes[i] = (first * _CODES + second) & (_PAIRS - 1)
    return below


@compiled()
def _count_pairs(codes, table):
    # Two tables take turns: an increment waits for the previous one if both are at the same place.
    even, odd = table[0], table[1]
    for i in range(0, codes.size, 8):  # unrolled, because the compiler does not
        even[codes[i]] += 1
        odd[codes[i + 1]] += 1
        even[codes[i + 2]] += 1
        odd[codes[i + 3]] += 1
        even[codes[i + 4]] += 1
        odd[codes[i + 5]] += 1
        even[codes[i + 6]] += 1
        odd[codes[i + 7]] += 1


@compiled()
def _read_table(table, offset, hist):
    """Adds the counts of the table to the histogram."""
    for pair in range(table.shape[1]):
        count = table[0, pair] + table[1, pair]
        if count:
            for code in (pair // _CODES, pair % _CODES):
                place = code % _WINDOW
                bucket = min(max(place + offset, 1), 256)
                if place:  # place 0 was counted one by one
                    hist[ZERO_BUCKET + (bucket if code < _WINDOW else -bucket)] += count


@compiled()
def _finite(values, words, totals):
    """Counts NaN and Inf and returns a copy of the rest."""
    layout = _layout(words)
    kept = np.empty_like(values)
    count = nans = 0
    for i in range(values.size):
        size = words[i] & layout.magnitude
        kept[count] = values[i]
        count += size < layout.infinity
        nans += size > layout.infinity
    totals[NANS] += nans
    totals[INFS] += values.size - count - nans
    return kept[:count]


@compiled(forceinline=True)
def _fetch_third(words, start, third):
    """Prefetches a third of the block at `start`, because memory takes a limited number of requests at a time."""
    first, last = start + BLOCK * third // 3, start + BLOCK * (third + 1) // 3
    for i in range(first, min(last, words.size), _LINE // words.itemsize):
        fetch(words, i)


@compiled()
def _places(words, places):
    """The place in a histogram of each element of a block."""
    layout = _layout(words)
    for i in range(words.size):
        size = words[i] & layout.magnitude
        bucket = min((size >> layout.mantissa) + layout.offset, 256)
        bucket = bucket if size >= layout.lowest else 1
        bucket = bucket if size != 0 else 0
        places[i] = ZERO_BUCKET + (bucket if words[i] >= 0 else -bucket)


@compiled()
def _count_places(places, table):
    # Two rows take turns, as in `_count_pairs`.
    even, odd = table[0], table[1]
    whole = places.size // 4 * 4
    for i in range(0, whole, 4):
        even[places[i]] += 1
        odd[places[i + 1]] += 1
        even[places[i + 2]] += 1
        odd[places[i + 3]] += 1
    for i in range(whole, places.size):
        even[places[i]] += 1


@compiled(forceinline=True)
def _add_block(values, words, short, totals):
    """Adds a block of a short array; returns False, and adds nothing, if it has NaN or Inf."""
    layout = _layout(words)
    table, places, ends, end_words = short
    low, high, zeros = _extremes(words)
    if high >= layout.infinity or low <= -1 - layout.infinity:
        return False
    end_words[0], end_words[1] = _in_order(low, layout), _in_order(high, layout)
    totals[MIN] = min(totals[MIN], np.float64(ends[0]))
    totals[MAX] = max(totals[MAX], np.float64(ends[1]))
    _add_moments(values, totals)
    if zeros == values.size:
        table[0, ZERO_BUCKET] += zeros
    else:
        _places(words, places)
        _count_places(places[: words.size], table)
    return True


@compiled()
def _add_finite(values, words, short, totals):
    """Adds the finite elements of a block, and counts the others."""
    some = _finite(values, words, totals)
    if some.size:
        _add_block(some, some.view(words.dtype), short, totals)


@compiled(forceinline=True)
def _add_short(values, words, short, totals):
    """Adds an array that is too short for the table of pairs, and lies in the cache. `short` is where it is counted."""
    for start in range(0, values.size, BLOCK):
        block, bits = values[start : start + BLOCK], words[start : start + BLOCK]
        if not _add_block(block, bits, short, totals):
            _add_finite(block, bits, short, totals)


@compiled()
def _take_short(table, buckets, tallies, at, totals):
    """Empties the counts of a short array, as `take_out` empties a histogram. Writes one place beyond the last bucket."""
    count = at
    even, odd = table[0], table[1]
    negatives = np.int64(0)
    for start in range(0, _SHORT_PLACES, 2 * _LOOK):
        found = np.uint16(0)
        for place in range(start, start + 2 * _LOOK):
            found |= even[place] | odd[place]
        if not found:
            continue
        for first in range(start, start + 2 * _LOOK, _LOOK // 2):
            found = np.uint16(0)
            for place in range(first, first + _LOOK // 2):
                found |= even[place] | odd[place]
            if found:
                for place in range(first, first + _LOOK // 2):
                    tally = np.int64(even[place]) + np.int64(odd[place])
                    buckets[count] = place - ZERO_BUCKET
                    tallies[count] = tally
                    count += tally != 0  # cheaper than a branch, which the processor could not predict
                    negatives += tally if place < ZERO_BUCKET else 0
                    even[place] = odd[place] = 0
    zeros = np.int64(0)
    for i in range(at, count):
        zeros += tallies[i] if buckets[i] == 0 else 0
    totals[ZEROS], totals[NEGATIVES] = zeros, negatives
    return count - at


@compiled()
def _add_few(values, words, hist, totals):
    """Adds one short array to a histogram."""
    ends = np.empty(2, values.dtype)
    table = np.zeros((2, _SHORT_PLACES), np.uint16)
    short = table, np.empty(BLOCK, np.uint32), ends, ends.view(words.dtype)
    _add_short(values, words, short, totals)
    for place in range(hist.size):
        hist[place] += np.int64(table[0, place]) + np.int64(table[1, place])


@compiled()
def _add_many(values, words, hist, totals):
    layout = _layout(words)
    table = np.zeros((2, _PAIRS), np.int64)
    codes = np.empty(BLOCK // 2, np.uint32)
    ends = np.empty(2, words.dtype)  # bits of the block's smallest and largest element
    base = -_WINDOW  # the exponent, as stored, below the window; so far there is none
    for start in range(0, values.size, BLOCK):
        end = start + BLOCK
        block, bits = values[start:end], words[start:end]
        _fetch_third(words, end, 0)
        low, high, zeros = _extremes(bits)
        if high >= layout.infinity or low <= -1 - layout.infinity:
            block = _finite(block, bits, totals)
            if block.size == 0:
                continue
            bits = block.view(words.dtype)
            low, high, zeros = _extremes(bits)
        ends[0], ends[1] = _in_order(low, layout), _in_order(high, layout)
        smallest, largest = ends.view(values.dtype)
        totals[MIN] = min(totals[MIN], np.float64(smallest))
        totals[MAX] = max(totals[MAX], np.float64(largest))
        _fetch_third(words, end, 1)
        _add_moments(block, totals)
        _fetch_third(words, end, 2)
        hist[ZERO_BUCKET] += zeros
        if zeros == block.size:
            continue
        if block.size < BLOCK:
            _count_each(bits, hist)
            continue
        exponent = max(ends[0] & layout.magnitude, ends[1] & layout.magnitude) >> layout.mantissa
        if exponent >= base + _WINDOW:
            if base >= 0:
                _read_table(table, base + layout.offset, hist)
                table[:] = 0
            base = max(exponent + _SLACK - _WINDOW + 1, 0)
        if _encode(bits, base, codes) != zeros:
            _count_each(_below(bits, base), hist)
        _count_pairs(codes, table)
    _read_table(table, base + layout.offset, hist)


@compiled()
def _add(values, words, hist, totals):
    """Adds an array, given as floats and as their bits."""
    if values.size < _PAIRS_FROM:
        _add_few(values, words, hist, totals)
    else:
        _add_many(values, words, hist, totals)
    totals[ZEROS] = hist[ZERO_BUCKET]
    totals[NEGATIVES] = hist[:ZERO_BUCKET].sum()


@compiled()
def _widen_bfloat16(halves, words):
    for i in range(halves.size):
        words[i] = np.int32(halves[i]) << 16


@compiled()
def _widen_float16(halves, words, floats):
    """Converts float16 exactly, without arithmetic on subnormal numbers: these become 2⁻¹⁴ + x, and then x."""
    for i in range(halves.size):
        size = np.int32(halves[i] & 0x7FFF)
        rebias = 113 if size < 0x0400 else 112 if size < 0x7C00 else 224
        words[i] = np.int32((size << 13) + (rebias << 23)) | (np.int32(halves[i] & 0x8000) << 16)
    for i in range(halves.size):
        excess = np.int32(halves[i] < 0x0400) - np.int32(halves[i] ^ 0x8000 < 0x0400)
        floats[i] -= np.float32(excess) * np.float32(2.0**-14)


@compiled()
def add_float32(values: Array, hist: Array, totals: Array) -> None:
    values = writable(values)
    _add(values, values.view(np.int32), hist, totals)


@compiled()
def add_float64(values: Array, hist: Array, totals: Array) -> None:
    values = writable(values)
    _add(values, values.view(np.int64), hist, totals)


@compiled()
def add_float16(halves: Array, hist: Array, totals: Array) -> None:
    """Takes the bits, as uint16."""
    words = np.empty(min(_CHUNK, halves.size), np.int32)
    floats = words.view(np.float32)
    for start in range(0, halves.size, _CHUNK):
        chunk = halves[start : start + _CHUNK]
        _widen_float16(chunk, words, floats)
        _add(floats[: chunk.size], words[: chunk.size], hist, totals)


@compiled()
def add_bfloat16(halves: Array, hist: Array, totals: Array) -> None:
    """Takes the bits, as uint16."""
    words = np.empty(min(_CHUNK, halves.size), np.int32)
    for start in range(0, halves.size, _CHUNK):
        chunk = halves[start : start + _CHUNK]
        _widen_bfloat16(chunk, words)
        _add(words.view(np.float32)[: chunk.size], words[: chunk.size], hist, totals)


@compiled()
def take_out(hist: Array, buckets: Array, tallies: Array, at: int) -> int:
    """Moves the non-empty buckets of a histogram to lists, from place `at` on, and leaves it empty; returns their number."""
    count = at
    for start in range(0, hist.size, _LOOK):
        found = np.int64(0)
        for place in range(start, min(start + _LOOK, hist.size)):
            found |= hist[place]
        if found:
            for place in range(start, min(start + _LOOK, hist.size)):
                if hist[place]:
                    buckets[count] = place - ZERO_BUCKET
                    tallies[count] = hist[place]
                    hist[place] = 0
                    count += 1
    return count - at


# Many small arrays that lie one after the other: from `starts[i]` to `starts[i + 1]`, each with its row of `totals` and its number of
# non-empty buckets in `lengths`; `hist` is empty before and after. One call for each small array would cost many times what
# reading it costs. Short arrays are counted in 16 bits: a table of 1 kB is searched faster than a histogram of 4 kB. Without the GIL,
# as it is one call for a whole step. Written out, because code that is given a function is not kept on disk. All return the number of
# buckets. `count` begins as an int64: with a plain 0 numba would compile `take_out` twice.


@compiled(nogil=True)
def add_all_float32(
    values: Array, starts: Array, hist: Array, totals: Array, lengths: Array, buckets: Array, tallies: Array
) -> int:
    values = writable(values)
    words = values.view(np.int32)
    ends = np.empty(2, np.float32)
    short = np.zeros((2, _SHORT_PLACES), np.uint16), np.empty(BLOCK, np.uint32), ends, ends.view(np.int32)
    count: int = np.int64(0)  # type: ignore[assignment]
    for i in range(totals.shape[0]):
        some, bits = values[starts[i] : starts[i + 1]], words[starts[i] : starts[i + 1]]
        if some.size < _PAIRS_FROM:
            _add_short(some, bits, short, totals[i])
            lengths[i] = _take_short(short[0], buckets, tallies, count, totals[i])
        else:
            _add(some, bits, hist, totals[i])
            lengths[i] = take_out(hist, buckets, tallies, count)
        count += lengths[i]
    return count


@compiled(nogil=True)
def add_all_float64(
    values: Array, starts: Array, hist: Array, totals: Array, lengths: Array, buckets: Array, tallies: Array
) -> int:
    values = writable(values)
    words = values.view(np.int64)
    ends = np.empty(2, np.float64)
    short = np.zeros((2, _SHORT_PLACES), np.uint16), np.empty(BLOCK, np.uint32), ends, ends.view(np.int64)
    count: int = np.int64(0)  # type: ignore[assignment]
    for i in range(totals.shape[0]):
        some, bits = values[starts[i] : starts[i + 1]], words[starts[i] : starts[i + 1]]
        if some.size < _PAIRS_FROM:
            _add_short(some, bits, short, totals[i])
            lengths[i] = _take_short(short[0], buckets, tallies, count, totals[i])
        else:
            _add(some, bits, hist, totals[i])
            lengths[i] = take_out(hist, buckets, tallies, count)
        count += lengths[i]
    return count


@compiled(nogil=True)
def add_all_float16(
    halves: Array, starts: Array, hist: Array, totals: Array, lengths: Array, buckets: Array, tallies: Array
) -> int:
    ends = np.empty(2, np.float32)
    short = np.zeros((2, _SHORT_PLACES), np.uint16), np.empty(BLOCK, np.uint32), ends, ends.view(np.int32)
    words = np.empty(_PAIRS_FROM, np.int32)
    values = words.view(np.float32)
    count: int = np.int64(0)  # type: ignore[assignment]
    for i in range(totals.shape[0]):
        some = halves[starts[i] : starts[i + 1]]
        if some.size < _PAIRS_FROM:
            _widen_float16(some, words, values)
            _add_short(values[: some.size], words[: some.size], short, totals[i])
            lengths[i] = _take_short(short[0], buckets, tallies, count, totals[i])
        else:
            add_float16(some, hist, totals[i])
            lengths[i] = take_out(hist, buckets, tallies, count)
        count += lengths[i]
    return count


@compiled(nogil=True)
def add_all_bfloat16(
    halves: Array, starts: Array, hist: Array, totals: Array, lengths: Array, buckets: Array, tallies: Array
) -> int:
    ends = np.empty(2, np.float32)
    short = np.zeros((2, _SHORT_PLACES), np.uint16), np.empty(BLOCK, np.uint32), ends, ends.view(np.int32)
    words = np.empty(_PAIRS_FROM, np.int32)
    values = words.view(np.float32)
    count: int = np.int64(0)  # type: ignore[assignment]
    for i in range(totals.shape[0]):
        some = halves[starts[i] : starts[i + 1]]
        if some.size < _PAIRS_FROM:
            _widen_bfloat16(some, words)
            _add_short(values[: some.size], words[: some.size], short, totals[i])
            lengths[i] = _take_short(short[0], buckets, tallies, count, totals[i])
        else:
            add_bfloat16(some, hist, totals[i])
            lengths[i] = take_out(hist, buckets, tallies, count)
        count += lengths[i]
    return count


# The same without the GIL, for arrays that take long. A thread that gives up the GIL may wait for a whole
# switch interval (5 ms) to get it back, so for small arrays it is better kept.


@compiled(nogil=True)
def add_float32_nogil(values: Array, hist: Array, totals: Array) -> None:
    add_float32(values, hist, totals)


@compiled(nogil=True)
def add_float64_nogil(values: Array, hist: Array, totals: Array) -> None:
    add_float64(values, hist, totals)


@compiled(nogil=True)
def add_float16_nogil(halves: Array, hist: Array, totals: Array) -> None:
    add_float16(halves, hist, totals)


@compiled(nogil=True)
def add_bfloat16_nogil(halves: Array, hist: Array, totals: Array) -> None:
    add_bfloat16(halves, hist, totals)

"""Reads the exact numbers of a run: the table rows of single steps, and histograms over the training.

A matrix holds 16-bit codes, so these are read from the parts again. It opens only the parts that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.show.data.fill import PartColumns
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import Array


def rows_at(
    g: Gathered, sites: Sequence[str], step: int, columns: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The table rows of these sites at the newest moment up to `step`, and at the previous moment.

    At most two for each site, the newest first. It reads only the parts that have them.
    """
    found: dict[str, list[dict[str, Any]]] = {site: [] for site in sites}
    parts = sorted(
        ((first, last, part) for part, (first, last) in g.parts.items() if first <= step <= last or last < step),
        key=lambda p: (p[1], p[0]), reverse=True,
    )  # fmt: skip
    for looked, (first, _, part) in enumerate(parts):
        if all(len(rows) >= 2 for rows in found.values()) or looked >= 24:
            break
        table = g.follow.rows(part, ["site", "step", *columns], sites)
        if table is None or not table.num_rows or first > step:
            continue
        piece = PartColumns(table)
        wanted = np.array([name in found for name in piece.names], bool)
        at = np.flatnonzero(wanted[piece.codes] & (piece["step"] <= step))
        places = np.concatenate([np.empty(0, int), *(rows[-2:][::-1] for _, rows in piece.stretches(at))])
        rows = table.take(pa.array(places)).select(["step", *columns]).to_pylist()
        for name, row in zip(piece.codes[places].tolist(), rows, strict=True):
            found[piece.names[name]].append(row)
    return {site: sorted(rows, key=lambda row: -row["step"])[:2] for site, rows in found.items() if rows}


def histograms(g: Gathered, sites: Sequence[str], most: int = 160) -> dict[str, tuple[Array, Array]]:
    """The steps and bucket counts (−256…256) of each site over the training.

    For a run with very many parts, only as many are read as the picture has columns, including the first and the last. In a
    part with more steps, several are added and count as the first of them.
    """
    parts = [part for part, (first, last) in g.parts.items() if first <= last]
    found: dict[str, list[tuple[Array, Array]]] = {site: [] for site in sites}
    for i in np.unique(np.linspace(0, len(parts) - 1, min(len(parts), most)).astype(int)):
        table = g.follow.rows(parts[i], ["site", "step", "buckets", "counts"], sites)
        if table is None or not table.num_rows:  # the part is damaged, or lacks these sites
            continue
        piece = PartColumns(table)
        for site, pieces in found.items():
            rows = table.take(pa.array(piece.of(site)))
            if rows.num_rows:
                pieces.append(_dense(rows, most))
    return {site: _joined(pieces) for site, pieces in found.items() if pieces}


def _dense(table: pa.Table, most: int) -> tuple[Array, Array]:
    """Steps and counts by bucket for one site. If there are more than `most`, neighbours are added."""
    table = table.combine_chunks()
    buckets, counts = (table[name].combine_chunks() for name in ("buckets", "counts"))
    lengths = buckets.value_lengths().to_numpy(zero_copy_only=False)
    places = np.arange(len(table)) * min(len(table), most) // len(table)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    dense = np.zeros((len(starts), 513), np.int64)
    ids = buckets.flatten().to_numpy(zero_copy_only=False).astype(np.int64) + 256
    np.add.at(dense, (np.repeat(places, lengths), ids), counts.flatten().to_numpy(zero_copy_only=False))
    return table["step"].to_numpy()[starts], dense


def _joined(pieces: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    steps, counts = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    order = np.argsort(steps, kind="stable")
    return steps[order], counts[order]

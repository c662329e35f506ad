"""Evidence: everything that the rules know about a training, collected during recording, in bounded memory.

The writer thread feeds it one block after the other; a reader feeds it whole columns of a stored run (`fill`). Both end with the
same evidence, hence the same findings. Besides the histories of sites it has the configuration of the model, the network, and the
exact first step with a NaN or Inf at each site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fitscope.diagnose.history import COLUMNS, Array, Histories, History, columns_of
from fitscope.diagnose.network import Network
from fitscope.diagnose.pulses import Pulses
from fitscope.record import Block, Head
from fitscope.reduce.stats import COUNTS, MOMENTS
from fitscope.sites import TRAIN, Site

LOSS = Site("loss")  #: the loss, recorded at every step, captured or not
MOST_SITES = 30_000  #: the most sites that rules judge: those of some 3,000 layers with everything recorded
_NORMAL16 = 129 - 14  #: lower buckets hold numbers that float16 cannot represent fully (see reduce/stats.py)


@dataclass(frozen=True, slots=True)
class Broken:
    """The first step at which a site had a NaN or Inf."""

    step: int
    nans: int
    infs: int
    count: int

    @property
    def word(self) -> str:
        return "NaN" if self.nans else "Inf"


class _Shelved(NamedTuple):
    """Where the rows of a block go."""

    heads: tuple[Head, ...]
    split: list[tuple[int, Array, Array]]  #: shelves, the places on them, and the sites of those places
    losses: list[int]  #: the rows of the loss
    half: Array | None  #: which tensors are float16, if any


class Evidence:
    """The recorded numbers of one training."""

    def __init__(
        self, model: Mapping[str, Any] | None = None, configuration: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model or {}
        self.configuration: Mapping[str, Any] = configuration or {}
        self.network = Network(self.model, self.configuration)
        self.histories = Histories()
        self.broken: dict[Site, Broken] = {}  #: the first step with NaN or Inf, by site
        self.notes: Any = None  #: the notes of the run
        #: Whether several processes hold parts of one tensor, and this process has one of them.
        self.shards = False
        self.unseen: Mapping[str, str] = {}  #: the reason why each missing site was not recorded
        #: The samples of the first bad batch of each site.
        self.bad_samples: Mapping[str, Mapping[str, Any]] = {}
        self.pulses: Pulses | None = (
            None  #: the pulses of the ranks, if there are several; only a reader has them
        )
        self.last_step: int | None = None
        self.crowded = False  #: whether there are more sites than rules judge, so that some are missing
        self._rows: dict[int, _Shelved] = {}  # where the rows go, by the id of the heads

    # ---- input ----------------------------------------------------------------------------------

    def take(self, block: Block) -> None:
        """Takes the records of some steps. Only training passes are evidence."""
        if not block.heads or block.heads[0].site.in_pass != TRAIN:
            return
        number, sites = len(block.ats), len(block.heads)
        known = self._shelved(block.heads)
        by_site = np.zeros((len(COLUMNS), sites, number), np.float32)

        def put(column: int, values: Array) -> None:
            by_site[column] = values.reshape(number, sites).T

        with np.errstate(over="ignore", invalid="ignore"):
            put(_VALUE, block.values)
            for column, of in _OF_COUNTS:
                put(column, block.stats.counts[:, of])
            for column, of in _OF_MOMENTS:
                put(column, block.stats.moments[:, of])
            if known.half is not None:
                put(_SMALL, _below_normal(block, known.half))
        steps = np.array([at.step for at in block.ats])
        for shelf, rows, chosen in known.split:
            self.histories.add(shelf, rows, steps, by_site[:, chosen] if len(chosen) < sites else by_site)
        for i in known.losses:
            self.histories.scatter(LOSS, block.heads[i].dtype, steps, by_site[:, i])
        self._note_all_broken(block, steps)
        self.last_step = max(int(steps.max()), -1 if self.last_step is None else self.last_step)

    def _note_all_broken(self, block: Block, steps: Array) -> None:
        """Records the sites of a block with NaN or Inf."""
        nans, infs, counts = (block.stats.counts[:, COUNTS.index(name)] for name in ("nans", "infs", "count"))
        sites = len(block.heads)
        for i in sorted({row % sites for row in np.flatnonzero(nans | infs).tolist()}):
            columns = np.zeros((len(COLUMNS), len(steps)), np.float64)
            columns[_NANS], columns[_INFS], columns[_COUNT] = nans[i::sites], infs[i::sites], counts[i::sites]
            self.note_broken(block.heads[i].site, steps, columns)

    def take_values(self, site: Site, dtype: str, steps: Array, values: Array) -> None:
        """Takes the loss of steps that were not captured, in any order. The caller leaves out unknown values."""
        finite = np.isfinite(values)
        some = np.where(finite, values, np.nan)
        with np.errstate(over="ignore", invalid="ignore"):
            columns = columns_of(
                value=values, count=np.ones(len(values)), mean=some, std=np.where(finite, 0, np.nan), min=some, max=some,
                rms=np.abs(some), zeros=values == 0, negatives=some < 0, nans=np.isnan(values), infs=np.isinf(values),
            ).astype(np.float64)  # fmt: skip
        self.fill(site, dtype, (), steps, columns)

    def fill(self, site: Site, dtype: str, shape: tuple[int, ...], steps: Array, columns: Array) -> None:
        """Takes many records of one site, sorted by step. `columns` as in `history.COLUMNS`."""
        if site.in_pass != TRAIN or not len(steps) or not self._has_room([site]):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if site == LOSS:
                self.histories.scatter(site, dtype, steps, columns)
            else:
                self.histories.extend(site, dtype, shape, steps, columns)
        self.note_broken(site, steps, columns)
        self.last_step = max(int(steps.max()), -1 if self.last_step is None else self.last_step)

    def note_broken(self, site: Site, steps: Array, columns: Array) -> None:
        """Takes the counts of NaN and Inf at a site, of every rank, in any order of steps."""
        odd = np.flatnonzero((columns[_NANS] > 0) | (columns[_INFS] > 0))
        if len(odd):
            i = odd[np.argmin(steps[odd])]
            if site not in self.broken or steps[i] < self.broken[site].step:
                nans, infs, count = (int(columns[column, i]) for column in (_NANS, _INFS, _COUNT))
                self.broken[site] = Broken(int(steps[i]), nans, infs, count)

    @staticmethod
    def below_normal(buckets: Sequence[int], tallies: Sequence[int]) -> int:
        """The number of nonzero numbers in a histogram below the normal range of float16."""
        return sum(n for bucket, n in zip(buckets, tallies, strict=True) if 0 < abs(bucket) < _NORMAL16)

    def _has_room(self, sites: Sequence[Site]) -> bool:
        """Whether these sites can be taken in. A forged run may name any number."""
        if len(self.histories) + len(sites) > MOST_SITES:
            new = sum(site not in self.histories for site in sites)
            self.crowded = self.crowded or len(self.histories) + new > MOST_SITES
            return not self.crowded or not new
        return True

    def _shelved(self, heads: tuple[Head, ...]) -> _Shelved:
        """Where the rows of a block go. Computed once, because heads are the same object in every block."""
        known = self._rows.get(id(heads))
        if known is None or known.heads is not heads:
            if not self._has_room([head.site for head in heads]):
                return _Shelved(heads, [], [], None)
            places = np.array(
                [
                    (-1, -1) if h.site == LOSS else self.histories.place(h.site, h.dtype, h.shape)
                    for h in heads
                ],
                np.int64,
            )
            split = []
            for shelf in (0, 1):
                chosen = np.flatnonzero(places[:, 0] == shelf)
                # A site that appears twice counts once.
                _, first = np.unique(places[chosen, 1], return_index=True)
                chosen = chosen[np.sort(first)]
                if len(chosen):
                    split.append((shelf, places[chosen, 1], chosen))
            half = np.array([head.dtype == "float16" for head in heads])
            losses = [i for i, head in enumerate(heads) if head.site == LOSS]
            if len(self._rows) > 64:
                self._rows.clear()
            known = self._rows[id(heads)] = _Shelved(heads, split, losses, half if half.any() else None)
        return known

    # ---- answers ---------------------------------------------------------------------------------

    def history(self, site: str) -> History | None:
        """The history of a site; None if nothing was recorded."""
        found = self.histories.get(site)
        return found if found is not None and len(found) else None

    def of(self, kind: str) -> Iterator[History]:
        """The histories of all sites of a kind, in the order of the forward pass."""
        sites = [site for site in self.histories if site.base == kind and not site.moved]
        for site in sorted(sites, key=lambda s: (self.network.depth(s.layer), s)):
            found = self.history(site)
            if found is not None:
                yield found

    @property
    def captured(self) -> int:
        """The number of captured steps: the most at any layer or weight."""
        histories = map(self.histories.get, filter(_rich, self.histories))
        return max((history.seen for history in histories if history is not None), default=0)

    @property
    def loss(self) -> History | None:
        """The loss of each recorded batch."""
        return self.history("loss")

    def logs(self, name: str) -> History | None:
        """Keras's own logs at the end of each epoch: `loss`, `val_loss`, …"""
        return self.history(f"logs/{name}")

    @property
    def end(self) -> int | None:
        """The step from which on the training is broken: the first NaN or Inf that reached loss or weights."""
        steps = [b.step for site, b in self.broken.items() if site.base in ("loss", "weights", "updates")]
        return min(steps, default=None)

    def setting(self, *path: str) -> Any:
        """One value of the configuration, None if it is not known."""
        found: Any = self.configuration
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    @property
    def learning_rate(self) -> float | None:
        """The largest recorded learning rate, or else the configured one."""
        seen = self.history("learning_rate")
        if seen is not None and np.isfinite(seen.value).any():
            return float(np.nanmax(seen.value))
        given = self.setting("optimizer", "learning_rate")
        return float(given) if isinstance(given, (int, float)) else None

    def main_weights(self, kind: str = "weights") -> Iterator[History]:
        """The histories of matrices and filters, without biases, scales and moving statistics."""
        for history in self.of(kind):
            if len(history.shape) >= 2 and history.site.weight != "bias":  # the bias of a GRU has two rows
                yield history


def _rich(site: Site) -> bool:
    return site.base in ("activations", "gradients", "weights", "weight_gradients", "updates")


def _below_normal(block: Block, half: Array) -> Array:
    """For each row, the count of nonzero numbers below the normal range of float16, for tensors of that type."""
    below = np.abs(block.stats.buckets.astype(np.int64))
    tally = np.where((below > 0) & (below < _NORMAL16), block.stats.tallies, 0)
    ends = np.cumsum(block.stats.lengths)
    sums = np.concatenate([[0], np.cumsum(tally)])
    found: Array = np.where(np.tile(half, len(block.ats)), sums[ends] - sums[ends - block.stats.lengths], 0)
    return found.astype(np.float64)


def _places(names: Sequence[str]) -> list[tuple[int, int]]:
    """The rows of `COLUMNS` that come from these stats, and the stat for each."""
    given = [(i, "rms" if name == "peak" else name) for i, name in enumerate(COLUMNS)]
    return [(i, names.index(name)) for i, name in given if name in names]


_OF_COUNTS, _OF_MOMENTS = _places(COUNTS), _places(MOMENTS)
_VALUE, _SMALL, _NANS, _INFS, _COUNT = (
    COLUMNS.index(name) for name in ("value", "small", "nans", "infs", "count")
)

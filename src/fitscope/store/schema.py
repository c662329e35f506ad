"""The layout of a run: its files, the meaning of each field, and the history of both.

    <run>/run.json                                    created once, never changed: what this run is
    <run>/attempts/0000.json                          created once per start of the training
    <run>/a0000/r00000/status.json                    replaced at every flush: how that rank is doing
    <run>/a0000/r00000/stats/part-000000.parquet      immutable: the rows of one or several flushes
                                                                                ← commits its rows
    <run>/a0000/r00000/samples/part-000000.parquet    likewise, of single samples
    <run>/a0000/r00000/tail/stats.arrow               replaced at every flush between two parts: the rows that wait
                                                      for the next  ← commits them, until there is that part
    <run>/a0000/r00000/tail/samples.arrow             likewise
    <run>/a0000/r00000/averages/<site>.npz            replaced now and then: running mean and std
    <run>/a0000/r00000/black_box/0000/                the last steps before a finding or a crash: see `black_box`
    <run>/a0000/r00000/black_box/0000/box.json                                  ← commits them
    <run>/a0000/r00000/tensors.zarr/zarr.json         Zarr v3 root group: which site has which arrays
    <run>/a0000/r00000/tensors.zarr/<site>/data/c.…   chunks: the plain bytes of the tensors
    <run>/a0000/r00000/tensors.zarr/<site>/data/zarr.json                       ← commits its captures

Every object is put whole (see `_base`). `a` is the attempt and `r` the rank; one process writes in one such
folder, so no two ever write the same object. A training that is started again is a further attempt at the
same run and continues its steps: **a step belongs to the last attempt that started at or before it**, but not to one
that ended before it recorded anything. A pass
that does not train (`validation/…`, `evaluate/…`, `predict/…`) describes the weights at its step, which the
attempt that ended there and the one that started there share: it counts up to and including that step.

The first flushes of a run make a part each; later a part takes the rows of several, which wait in the tail until
then. A tail says in its schema which part its rows will be in, and **counts as long as that part does not exist**:
so no row is ever seen twice or missed, though part and tail are two objects. At the end all rows are in parts.

Nothing is parsed back from a name: attempt, rank and site are in the documents and tables themselves.

History
    1   2026-11   first; then columns, tables and objects that an older reader does not miss: `cosine`,
                  `samples`, `averages`, `error` and `over`, `black_box`, `tail` (without it the newest rows of a long run
                  that is still going, or was killed, come later or not at all)
    2   2026-11   the facts of a site as columns of `stats`: `kind`, `layer`, `weight`, `pass`; in `samples` the
                  column `phase` is called `pass` too. Format 1 is still read: its columns are derived from names. Later: `crc32c`
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any
from urllib.parse import quote

import pyarrow as pa

#: The version of this layout. It grows when an old reader would misread a new run, not for every new field.
FORMAT = 2

RUN = "run.json"
#   format        FORMAT at the time of writing
#   id            the run's name; its folder is called the same
#   created       ISO 8601, UTC;  created_ns: the same in nanoseconds since 1970
#   software      versions: python, platform, fitscope, numpy, keras, tensorflow, jax, torch, …
#   and further facts from the capturing side: model, plan, notes, …

NOTES = "notes.json"
#   notes         notes that people added later: any JSON; if absent, those of run.json count
#   tags          short texts

ATTEMPTS = "attempts"
#   attempt       its number, counted from 0
#   start_step    the step it started at: it owns the steps from here to the next attempt's start
#   world         the number of ranks that write
#   launch        the same for all ranks of one start, if there are several;  doing: train, evaluate, predict or loop
#   shards        true: ranks hold parts of one tensor, each element once; else each rank has its own samples, and
#                 everything else is the same on every rank
#   sampled       the ranks that record everything, if not all do; the others write their status alone
#   host, pid     the process that began it;  created, software: as above
#   and further facts from the capturing side: model, plan, … of this attempt

STATUS = "status.json"
#   status        running | complete | interrupted | failed: as the writing process last reported it
#   heartbeat     seconds since 1970 of the last flush
#   host, machine, pid, started    the writing process, so that readers can check whether it lives (see `liveness`)
#   step          the last step recorded
#   rows, parts   of the stats table, with the rows of the tail;  captures: of tensors;  bytes: of all objects
#   samples       rows of the samples table
#   averages      {site: path below `averages`, without its ending}
#   limit, full_at     the bytes allowed; the step at which recording stopped because of them, or null
#   lost          {site: records that were handed over and are not in the run}
#   errors        the texts of the first errors;  errors_total: the number of all
#   black_box     the steps that a black box keeps, dropped and wrote, if there is one
#   pulse         {step, time, cpu, loss, weights}: lists of one length, for a few steps, if there are several ranks
#   dropped, overhead, …    further facts from the capturing side

STATS = "stats"
SAMPLES = "samples"
TENSORS = "tensors.zarr"
AVERAGES = "averages"
TAIL = "tail"
BLACK_BOX = "black_box"

#: One row: the facts about the tensor at one site at one step.
STATS_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # the optimizer's iteration count before the step
        ("epoch", pa.int32()),
        ("batch", pa.int32()),  # index of the batch within its epoch
        ("time", pa.float64()),  # seconds since 1970
        ("attempt", pa.int16()),  # the start of the training that wrote it
        ("rank", pa.int32()),  # the process of that start
        ("site", pa.string()),  # the name, made of the next four columns (see sites.py)
        ("kind", pa.string()),  # activations, gradients, weights, loss, …, changes/activations, …
        ("layer", pa.string()),  # the path of the layer, else null
        ("weight", pa.string()),  # the name of the weight in its layer, else null
        ("pass", pa.string()),  # train, validation, evaluate or predict
        ("dtype", pa.string()),  # the dtype of the whole tensor in the step
        ("shape", pa.list_(pa.int64())),  # the shape of the whole tensor in the step
        ("batched", pa.bool_()),  # whether the first axis is the samples of the batch
        ("value", pa.float64()),  # the tensor itself if it is a scalar, else null
        ("count", pa.int64()),  # the elements read
        ("mean", pa.float64()),  # mean, std, min, max and rms ignore NaN and Inf
        ("std", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("rms", pa.float64()),
        ("cosine", pa.float64()),  # similarity with the previous batch, for sites under changes/, else null
        (
            "error",
            pa.float64(),
        ),  # the error bound of a derived value (inf: unknown); null: the value was captured
        (
            "over",
            pa.int32(),
        ),  # the number of steps that a derived value is the mean of, mostly 1; null: it was captured
        ("zeros", pa.int64()),
        ("negatives", pa.int64()),
        ("nans", pa.int64()),
        ("infs", pa.int64()),
        (
            "buckets",
            pa.list_(pa.int16()),
        ),  # the histogram's non-empty buckets, −256…256 (see reduce/stats.py)
        ("counts", pa.list_(pa.int64())),  # the number of elements in each bucket
    ]
)

#: One row: the facts about one sample, in a batch and at an output.
SAMPLES_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # step … rank: as above
        ("epoch", pa.int32()),
        ("batch", pa.int32()),
        ("time", pa.float64()),
        ("attempt", pa.int16()),
        ("rank", pa.int32()),
        ("sample", pa.int32()),  # the row of the sample in the batch of this rank
        ("pass", pa.string()),  # train, validation, evaluate or predict
        ("output", pa.string()),  # the output of the model, empty unless it has several
        (
            "id",
            pa.string(),
        ),  # the name of the sample, if it has one; null, as all below, if not requested
        ("loss", pa.float64()),
        ("weight", pa.float64()),
        # All numbers of the sample in C order; null if it has more than LONGEST_VALUE: record those as tensors.
        ("target", pa.list_(pa.float64())),
        ("prediction", pa.list_(pa.float64())),
    ]
)

LONGEST_VALUE = 64  #: the most numbers of one target or prediction in the samples table

TABLES = {STATS: STATS_SCHEMA, SAMPLES: SAMPLES_SCHEMA}

# An average is a NumPy archive (.npz, not compressed):
#   site                    its name
#   mean, std               of each element, float64, in the shape of one sample; the population's
#   count                   the number of observations (samples, or tensors without samples)
#   captures                the number of batches;  first_step, last_step: their first and last step

# The array of a site has the dimensions step, sample, dim_1, … (step, dim_0, … where there are no samples).
# Its attributes, committed together with its shape:
#   site          the site's name
#   dtype         of the tensor in the step; the array holds a wider type where Zarr has none such (STORED_AS)
#   batched       whether the first axis of a capture is the samples of the batch
#   step, epoch, batch      of each capture, lists
#   size          the rows kept of each capture (batched only): further rows are padding
#   batch_size    the rows the tensor had in the step (batched only)
#   shapes        the whole shape kept of each capture, only where more than the rows varies
#   offset        where each capture begins in the tensor of all ranks, only where a rank holds a part of it
#   crc32c        {name of a chunk without `c.`: CRC-32C of the captures in it that this index counts}; see `checksum`
#
# The root group's attributes say which arrays there are:
#   arrays        [{site, path}], in the order they were begun. A site has a further array, in a folder of its
#                 own beside the first (`conv1+1`), for another dtype or number of dimensions, and where the
#                 index of one would have grown too long.

#: Types that Zarr v3 tools do not share, and the wider ones that hold every value of them.
STORED_AS = {
    "bfloat16": "float32",
    "float8_e3m4": "float32",
    "float8_e4m3": "float32",
    "float8_e4m3b11fnuz": "float32",
    "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e8m0fnu": "float32",
    "float6_e2m3fn": "float32",
    "float6_e3m2fn": "float32",
    "float4_e2m1fn": "float32",
    "int4": "int8",
    "int2": "int8",
    "uint4": "uint8",
    "uint2": "uint8",
}

#: The types of Zarr v3, and the padding of each as zarr.json spells it.
FILL: dict[str, Any] = {
    "bool": False,
    **dict.fromkeys((f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), 0),
    **dict.fromkeys(("float16", "float32", "float64"), "NaN"),
    **{name: ["NaN", "NaN"] for name in ("complex64", "complex128")},
}

DATA = "data"  #: name of the array in its site's group

_LONGEST_PART = 100  # most file systems allow 255 bytes
_LONGEST_PATH = 400  # S3 allows 1024 bytes for the whole key


def site_path(site: str) -> str:
    """The folder of a site: ``/`` nests, odd characters are percent-encoded, so that no two sites share one.

    A part that would collide with fitscope's own names (`data`, `zarr.json`) or mean something to a file system is
    encoded too; ``+`` stands for an empty part. A very long name is cut and gets a hash.
    """
    path = "/".join(_encode(part) for part in site.split("/"))
    if len(path) > _LONGEST_PATH or any(len(part) > _LONGEST_PART for part in path.split("/")):
        digest = hashlib.sha256(site.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        first = path.partition("/")[0]
        path = f"{first[:40].rpartition('%')[0] or first[:40]}+{digest}"
    return path


def _encode(part: str) -> str:
    if not part:
        return "+"
    encoded = quote(part.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
    if part in (DATA, "zarr.json") or encoded[0] == ".":
        encoded = f"%{ord(part[0]):02X}{encoded[1:]}"
    if encoded[-1] == ".":
        encoded = f"{encoded[:-1]}%2E"
    return encoded


def part_name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def tail_key(table: str) -> str:
    return f"{TAIL}/{table}.arrow"


def attempt_folder(attempt: int) -> str:
    return f"a{attempt:04d}"


def rank_folder(attempt: int, rank: int) -> str:
    return f"{attempt_folder(attempt)}/r{rank:05d}"


def rank_of(folder: str) -> int | None:
    """The number of the rank whose folder has this name; None if it is no such folder."""
    number = folder.removeprefix("r")
    return (
        int(number) if number.isascii() and number.isdecimal() and folder == f"r{int(number):05d}" else None
    )


def attempt_key(attempt: int) -> str:
    return f"{ATTEMPTS}/{attempt:04d}.json"


def encode(document: Any) -> bytes:
    """A document as JSON for people: odd values become text, so that no notes can stop a run."""
    return json.dumps(_plain(document), indent=1, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # NumPy
        return _plain(value.tolist())
    return str(value)

"""Sites called anything at all, written to a directory and read back."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np

from campaign.ground import SITES, Round, quiet, tensor
from fitscope import read
from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.sites import Site
from fitscope.store import Files, RunWriter

EACH = 400  #: names for one seed

POOL = (
    "/", "..", ".", "\\", "\0", "\n", "\r", "\t", "\x1b[2J", "\x9b", "\u202e", "\u200b", "\ud800", "ä", "a\u0308", "😀", "data",
    "zarr.json", "c.0", "c", "~", "%2F", "%", "+", "+1", " ", "CON", "nul", "'", '"', "<script>", "a" * 300, "A", "a", "{}", "$HOME",
)  # fmt: skip


def names(seed: int) -> Round:
    """Hostile names of sites, written and read."""
    rng, done = random.Random(seed), Round()
    drawn = ("".join(rng.choice(POOL) for _ in range(rng.randint(1, 5))) for _ in range(EACH))
    made = list(dict.fromkeys(map(Site.parse, drawn)))
    with quiet(), tempfile.TemporaryDirectory() as outer:
        place = Path(outer) / "a" / "runs"
        writer = RunWriter.create(Files(place), "run")
        at, x = Moment(0, 0, 0, 1.0), tensor(SITES[0], 1)
        stats = reduce(x)
        for name in made:
            with done.trial(f"seed {seed}: {name!r}"):
                writer.write([Record(name, at, (4, 3), "float32", stats, x)])
        writer.close()
        run = read.open(Files(place), "run")
        rows = set(run.stats["site"])
        for name in made:
            with done.trial(f"seed {seed}: {name!r} read"):
                assert np.array_equal(run._captures(name).at(0), x), "a wrong tensor"
                assert name in rows, "no row"
        with done.trial(f"seed {seed}: outside"):
            outside = [path for path in Path(outer).rglob("*") if place not in (path, *path.parents)]
            assert outside == [place.parent], f"written outside: {outside}"
    return done

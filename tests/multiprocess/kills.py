"""Kills one of two ranks at a random moment, again and again, and looks at what is left.

    python tests/multiprocess/kills.py [--tries 50] [--seed 0] [--engine plain|torch|jax]

`plain`: two processes that the launcher's environment numbers, without a framework: the writer behind its queue, opened as a training
opens it. `torch` and `jax`: the real engines, in which the survivor fails or is aborted too. After each kill the run must
open, everything that either rank had flushed must be there and be right, and `run.ranks` must name the rank that died and when.
Prints how many were tried and how many survived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, NamedTuple

HERE = Path(__file__).parent
WAIT = 180.0  #: seconds for anything


class Left(NamedTuple):
    """What one try left."""

    victim: int
    flushed: list[int]  #: by rank: the last step that it had flushed and said so
    problems: list[str]


def launcher(engine: str) -> ForkServerContext:
    """Starts the processes of a training. Those of a framework are forked from a server that has imported it, but started nothing: that
    saves the import, which is half of the work of a try.
    """
    os.environ["KERAS_BACKEND"] = "torch" if engine == "torch" else "jax"
    context = multiprocessing.get_context("forkserver")
    needed = {"torch": ["torch.nn.parallel", "torch.distributed", "keras"], "jax": ["jax", "keras"]}
    context.set_forkserver_preload([*needed.get(engine, ()), "fitscope.store", "multiprocess.kill_program"])
    return context


@contextlib.contextmanager
def ranks(engine: str, to: Path, files: list[IO[str]]) -> Iterator[list[BaseProcess]]:
    """Two processes of a training. Both are gone afterwards."""
    from multiprocess import kill_program
    from multiprocess.processes import free_port

    port = str(free_port())
    shared = {
        "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
        "FITSCOPE_RUN": "killed",
    }  # fmt: skip
    context = launcher(engine)
    children = [
        context.Process(target=kill_program.main, args=(engine, port, str(to), {**shared, "RANK": str(n)}, file.name))
        for n, file in enumerate(files)
    ]  # fmt: skip
    try:
        for child in children:
            child.start()
        yield children
    finally:
        for child in children:
            if child.pid is not None:
                child.kill()
                child.join(30)


def said(file: IO[str]) -> list[int]:
    """The steps that a rank said it had flushed."""
    file.seek(0)
    lines = [line for line in file.read().split("\n")[:-1] if line.startswith("FLUSHED ")]
    return [int(line.split()[1]) for line in lines]


def wait_for(condition: Any, why: str) -> None:
    until = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(why)
        time.sleep(0.02)


def attempt(engine: str, chance: random.Random, to: Path) -> Left:
    """One training, one kill."""
    victim = chance.randrange(2)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.NamedTemporaryFile("w+")) for _ in range(2)]
        children = stack.enter_context(ranks(engine, to, files))
        wait_for(
            lambda: all(said(f) for f in files) or not all(c.is_alive() for c in children), "no rank flushed"
        )
        time.sleep(chance.uniform(0.0, 1.5))
        children[victim].kill()
        children[victim].join(30)
        died = time.time()
        if engine == "plain":  # the other one does not need it
            before = len(said(files[1 - victim]))
            wait_for(lambda: len(said(files[1 - victim])) > before, "the survivor did not go on")
        problems = judged(to, victim, [said(file) for file in files], engine, died)
        return Left(victim, [max(said(file), default=-1) for file in files], problems)


def judged(to: Path, victim: int, flushed: list[list[int]], engine: str, died: float) -> list[str]:
    """What is wrong with the run."""
    import numpy as np

    import fitscope as fs

    problems = []
    found = fs.runs(to)
    if len(found) != 1:
        return [f"{len(found)} runs"]
    run = fs.open(to)
    frame = run.ranks
    if frame["status"][victim] != "interrupted":
        problems.append(f"rank {victim} is called {frame['status'][victim]}")
    if engine == "plain" and frame["status"][1 - victim] != "running":
        problems.append(f"the survivor is called {frame['status'][1 - victim]}")
    seen = frame["last_seen"][victim].timestamp()
    if not died - 60 < seen <= died + 1:
        problems.append(f"it was last seen {died - seen:.1f} s before it died")
    for rank, steps in enumerate(flushed):
        last = max(steps, default=-1)
        one = run.rank(rank)
        if last >= 0 and (one.last_step is None or one.last_step < last):
            problems.append(f"rank {rank} had flushed step {last}, and the run ends at {one.last_step}")
            continue
        for site in [s for s in one.sites if s.startswith("activations/")] if last >= 0 else ():
            series = one.series(site, "rms")
            if not {*range(last + 1)} <= {*series.index} or not np.isfinite(series).all():
                problems.append(f"rank {rank} lacks steps of {site} up to {last}")
            kept = one.tensor(site)
            if not {*range(last + 1)} <= {*kept["step"].values.tolist()}:
                problems.append(f"rank {rank} lacks tensors of {site} up to {last}")
            both = kept.sel(step=[step for step in kept["step"].values if step in series.index])
            square = both.values.astype(np.float64) ** 2  # NaN where another process has the rows
            rms = np.sqrt(np.nanmean(square, axis=tuple(range(1, both.ndim))))
            if not np.allclose(rms, series.loc[both["step"].values], rtol=1e-5):
                problems.append(f"tensors and statistics of {site} differ on rank {rank}")
    if run.damaged:
        problems.append(f"damaged: {run.damaged}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("plain", "torch", "jax"), default="plain")
    given = parser.parse_args()
    tests = str(HERE.parent)
    sys.path.insert(0, tests)
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    chance, bad = random.Random(given.seed), 0
    for number in range(given.tries):
        with tempfile.TemporaryDirectory() as to:
            left = attempt(given.engine, chance, Path(to))
        bad += bool(left.problems)
        print(json.dumps({"try": number, **left._asdict()}), flush=True)
    print(f"{given.engine}: {given.tries} kills tried, {given.tries - bad} survived")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()

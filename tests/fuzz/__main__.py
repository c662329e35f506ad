"""The driver: `python -m fuzz --backend jax --n 1000`. Draws specs, has workers judge them, keeps the results and sums them up.

Results are appended to a file of JSON lines, one per model, so that an interrupted campaign goes on where it was. A worker that dies or
takes too long over one model is a finding with that model's seed; the next worker goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import amx
from fuzz import counted
from fuzz.draw import draw
from fuzz.shrink import shrink
from fuzz.summary import reason, summary
from fuzz.workers import Worker

CHUNK = 40  #: models per process: JAX keeps some 80 MB of compiled programs for each
ATTEMPTS = 4  #: of drawing a model that trains without a scope


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--backend", required=True, choices=("jax", "tensorflow", "torch"))
    parser.add_argument("--n", type=int, default=100, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others count on from it")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=180, help="of CPU that one model may take")
    parser.add_argument("--results", type=Path, help="the file of results; one that exists is continued")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the smallest failing model")
    parser.add_argument(
        "--show", action="store_true", help="print the program of the seed, and train nothing"
    )
    parser.add_argument("--write", action="store_true", help="count the models in docs/reliability.md")
    options = parser.parse_args()
    if options.show:
        from fuzz.program import program

        print(program(draw(options.seed, options.backend), main=True))
        return 0
    os.environ["KERAS_BACKEND"] = options.backend
    bfloat16 = amx.settle(os.environ, amx.features(), amx.probe)
    if bfloat16 != amx.FINE:
        print(f"{bfloat16}: models in bfloat16 are left out")
    return Campaign(options, bfloat16=bfloat16 == amx.FINE).run()


class Campaign:
    """Some seeds of one backend."""

    def __init__(self, options: Any, *, bfloat16: bool) -> None:
        self.bfloat16 = bfloat16
        self.backend, self.options = options.backend, options
        self.seeds = range(options.seed, options.seed + options.n)
        self.file = options.results or Path(f"fuzz-{options.backend}-{options.seed}.jsonl")
        self.results: dict[int, dict[str, Any]] = {}
        self.invalid: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                self._keep(json.loads(line))

    def run(self) -> int:
        for attempt in range(ATTEMPTS):
            specs = [draw(seed, self.backend, attempt) for seed in self.seeds if seed not in self.results]
            known = {(one["seed"], one["attempt"]) for one in self.invalid}
            specs = [spec for spec in specs if (spec["seed"], attempt) not in known]
            specs = [spec for spec in specs if self.bfloat16 or "bfloat16" not in spec["policy"]]
            with ThreadPoolExecutor(self.options.jobs) as pool:
                list(pool.map(self._chunk, _chunks(specs)))
        mine = [self.results[seed] for seed in self.seeds if seed in self.results]
        failed = [one for one in mine if one["outcome"] == "failed"]
        if not self.options.no_shrink:
            self._shrink(failed)
        print(
            summary(
                self.backend,
                mine,
                [one for one in self.invalid if one["seed"] in self.seeds],
                time.monotonic() - self._began,
            )
        )
        if self.options.write:
            counted.write(self.backend, mine)
        return 1 if failed else 0

    def _chunk(self, specs: list[dict[str, Any]]) -> None:
        worker = Worker(self.options.seconds)
        for spec in specs:
            result = worker.ask(spec)
            with self._lock:
                self._keep(result)
                with self.file.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                self._tell(result)
        worker.close()

    def _keep(self, result: dict[str, Any]) -> None:
        if result["outcome"] == "invalid":
            self.invalid.append(result)
        else:
            self.results[result["seed"]] = result

    def _tell(self, result: dict[str, Any]) -> None:
        text = f"{len(self.results)}/{len(self.seeds)} seed {result['seed']} {result['must']}: {result['outcome']} {reason(result)}"
        if result["outcome"] in ("failed", "invalid") or len(self.results) % 25 == 0:
            print(text[:300], flush=True)

    def _shrink(self, failed: list[dict[str, Any]]) -> None:
        """Prints the smallest program of each kind of failure."""
        seen = set()
        for one in failed:
            if reason(one) in seen:
                continue
            seen.add(reason(one))
            spec = one.get("spec") or draw(one["seed"], self.backend, one["attempt"])
            print(f"\n—— seed {one['seed']}: {reason(one)}\n{shrink(spec, one, Worker)}", flush=True)


def _chunks(specs: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Models for one process each. Those on several devices need a process that has them."""
    for several in (False, True):
        mine = [spec for spec in specs if bool(spec["distribution"]) is several]
        yield from (mine[i : i + CHUNK] for i in range(0, len(mine), CHUNK))


if __name__ == "__main__":
    raise SystemExit(main())

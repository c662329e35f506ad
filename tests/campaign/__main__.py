"""`python -m campaign`: runs the attacks, keeps their results, writes the table.

Rounds go to `campaign.jsonl`, one line each. `--write` adds those without a failure to `counts.json` next to this file, so that a campaign
goes on in another checkout: the seeds of a round that is in there are not tried again, and its line is not counted twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from campaign.attacks import ATTACKS
from campaign.ground import most_memory
from ledger import put_into, stretches, within

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reliability.md"
COUNTS = Path(__file__).with_name("counts.json")
EARLIER = -1  #: in place of a seed: the rounds of `counts.json` together


def total(file: Path, counts: Path = COUNTS) -> dict[str, dict[int, dict[str, Any]]]:
    """By attack and seed: the newest round, and what earlier campaigns counted."""
    earlier = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}
    found: dict[str, dict[int, dict[str, Any]]] = {
        name: {EARLIER: {**earlier[name], "failures": []}} if name in earlier else {} for name in ATTACKS
    }
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        one = json.loads(line)
        if not counted(found[one["attack"]], one["seed"]):
            found[one["attack"]][one["seed"]] = one
    return found


def counted(done: dict[int, dict[str, Any]], seed: int) -> bool:
    """Whether an earlier campaign counted the round of this seed."""
    return within(done.get(EARLIER, {}).get("seeds", ()), seed)


def summed(found: dict[str, dict[int, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What `counts.json` holds: by attack the counts of all rounds without a failure, and their seeds."""
    sums = {}
    for name, by_seed in found.items():
        done = {seed: one for seed, one in by_seed.items() if not one["failures"]}
        if done:
            seeds = [*done.get(EARLIER, {}).get("seeds", ()), *((n, n) for n in done if n != EARLIER)]
            sums[name] = {
                **{key: sum(one[key] for one in done.values()) for key in ("tried", "survived", "lost")},
                **{key: max(one[key] for one in done.values()) for key in ("slowest", "memory")},
                "seeds": stretches(seeds),
            }
    return sums


def table(found: dict[str, dict[int, dict[str, Any]]]) -> str:
    rows = [
        "| attack | asked | tried | as promised | lost | slowest | most memory |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, by_seed in found.items():
        done = list(by_seed.values())
        if done:
            tried, survived, lost = (sum(one[key] for one in done) for key in ("tried", "survived", "lost"))
            slowest, memory = (max(one[key] for one in done) for key in ("slowest", "memory"))
            counts = f"{ATTACKS[name].goal:,} | {tried:,} | {survived:,} | {lost:,}"
            rows.append(f"| {ATTACKS[name].what} | {counts} | {slowest:.2f} s | {memory >> 20:,} MB |")
    return "\n".join(rows) + "\n"


def next_seed(
    name: str, done: dict[int, dict[str, Any]], first: int, again: set[tuple[str, int]]
) -> int | None:
    """A seed that failed before, else the first that was not tried; None where the goal is reached."""
    for seed, one in done.items():
        if one["failures"] and (name, seed) not in again:
            again.add((name, seed))
            return seed
    if sum(one["tried"] for one in done.values()) >= ATTACKS[name].goal:
        return None
    return next(seed for seed in itertools.count(first) if seed not in done and not counted(done, seed))


def attack(name: str, seed: int, results: Path) -> dict[str, Any]:
    began = time.process_time()
    one = ATTACKS[name].run(seed)
    memory = max(vars(one).pop("memory", 0), most_memory())
    line = {
        "attack": name,
        "seed": seed,
        **vars(one),
        "memory": memory,
        "cpu": round(time.process_time() - began, 2),
    }
    with open(results, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    for failure in one.failures:
        print(f"✖ {name}: {failure}", flush=True)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all attacks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds", type=int, help="so many rounds of each from this seed on, done before or not"
    )
    parser.add_argument("--only", action="append", choices=list(ATTACKS))
    parser.add_argument("--results", type=Path, default=Path("campaign.jsonl"))
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    options = parser.parse_args()
    pa.set_cpu_count(1)  # small tables: handing them to another thread takes longer than decoding them
    failed, again, until = 0, set[tuple[str, int]](), time.monotonic() + 60 * options.minutes
    left = list(options.only or ATTACKS)
    for seed in range(options.seed, options.seed + (options.rounds or 0)):
        failed += sum(len(attack(name, seed, options.results)["failures"]) for name in left)
    while left and not options.rounds and time.monotonic() < until:
        for name in tuple(left):
            seed_or_none = next_seed(name, total(options.results)[name], options.seed, again)
            if seed_or_none is None:
                left.remove(name)
            else:
                failed += len(attack(name, seed_or_none, options.results)["failures"])
    text = table(total(options.results))
    print(text)
    if options.write:
        put_into(TABLE, "make campaign", text)
        COUNTS.write_text(json.dumps(summed(total(options.results)), indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

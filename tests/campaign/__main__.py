"""`python -m campaign`: runs the attacks, keeps their results, writes the table."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from campaign.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reliability.md"
HEAD = """# Reliability

`make campaign` attacks fitscope at random and counts what happens. This page is written by it, from all rounds so far. A failure is a
wrong number, an error that is not one of fitscope's own, or anything that takes more than 10 seconds; *lost* are records that were
flushed and are gone although nothing was damaged. The same seed does the same: `make campaign SEED=7 CAMPAIGN="--only parsers --rounds 1"`.

"""


def total(file: Path) -> dict[str, dict[str, Any]]:
    """By attack: all rounds so far taken together."""
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        one = json.loads(line)
        sums = found.setdefault(
            one["attack"], {"tried": 0, "survived": 0, "lost": 0, "slowest": 0.0, "memory": 0, "seeds": set()}
        )
        if one["seed"] not in sums["seeds"]:
            sums["seeds"].add(one["seed"])
            for name in ("tried", "survived", "lost"):
                sums[name] += one[name]
            sums["slowest"] = max(sums["slowest"], one["slowest"])
            sums["memory"] = max(sums["memory"], one["memory"])
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    rows = ["| attack | tried | as promised | lost | slowest | seeds |", "|---|--:|--:|--:|--:|---|"]
    for name, sums in found.items():
        seeds = f"{min(sums['seeds'])} to {max(sums['seeds'])}"
        rows.append(
            f"| {ATTACKS[name][0]} | {sums['tried']:,} | {sums['survived']:,} | {sums['lost']:,} | {sums['slowest']:.2f} s | {seeds} |"
        )
    most = max((sums["memory"] for sums in found.values()), default=0)
    return "\n".join(rows) + f"\n\nThe most memory of the process that did all this: {most / 1e6:,.0f} MB.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each attack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="so many rounds of each, instead of minutes")
    parser.add_argument("--only", action="append", choices=list(ATTACKS))
    parser.add_argument("--results", type=Path, default=Path("campaign.jsonl"))
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    options = parser.parse_args()
    failed = 0
    for name in options.only or ATTACKS:
        done = total(options.results).get(name, {"seeds": set()})["seeds"]
        seed, rounds, until = options.seed, 0, time.monotonic() + 60 * options.minutes
        while rounds < options.rounds if options.rounds else time.monotonic() < until:
            if seed not in done:
                one = ATTACKS[name][1](seed)
                rounds += 1
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                line = {"attack": name, "seed": seed, **vars(one), "memory": memory}
                with open(options.results, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                failed += len(one.failures)
                for failure in one.failures:
                    print(f"✖ {name}: {failure}", flush=True)
            seed += 1
        print(f"{name}: seeds {options.seed} to {seed - 1}", flush=True)
    text = table(total(options.results))
    print(text)
    if options.write:
        TABLE.write_text(HEAD + text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

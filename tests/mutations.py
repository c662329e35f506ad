"""Breaks central lines of fitscope one after another and shows that a test fails for each: `make mutations`.

A copy of the tree is changed, never the tree itself. Each mutation replaces one piece of one file, and its tests run until the
first one fails; without the mutation that test must pass. A mutation that no test catches is a missing test, and the exit status
says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")


@dataclass(frozen=True)
class Mutation:
    """One broken line."""

    name: str
    file: str  #: below src/fitscope
    old: str  #: occurs once in the file
    new: str
    tests: str  #: that should notice, as arguments of pytest

    def apply(self, tree: Path) -> None:
        path = tree / "src" / "fitscope" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            sys.exit(
                f"{self.name}: expected {self.old!r} once in {self.file}. "
                f"Found it {text.count(self.old)} times. Name the line as it is now."
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


MUTATIONS = (
    Mutation(
        "kernel: squares of deviations lose the blocks before",
        "reduce/kernel.py",
        "+ delta * delta * before * share",
        "",
        "tests/reduce/test_host.py",
    ),
    Mutation(
        "kernel: an Inf counts as a NaN",
        "reduce/kernel.py",
        "totals[INFS] += values.size - count - nans",
        "totals[NANS] += values.size - count - nans",
        "tests/reduce/test_host.py",
    ),
    Mutation(
        "stats: merging two parts forgets the mean of the first",
        "reduce/stats.py",
        "delta = other.mean - self.mean",
        "delta = other.mean",
        "tests/reduce/test_stats.py",
    ),
    Mutation(
        "digest: joined tensors are counted in each other's rows",
        "pipeline/digest.py",
        "            first += len(layout.heads)\n",
        "",
        "tests/conformance/test_precision.py",
    ),
    Mutation(
        "dispatch: the stand-in stays in place of the user's function",
        "capture/dispatch.py",
        "        with shield(self._failed):\n            self.remove()\n",
        "        with shield(self._failed):\n",
        "tests/conformance/test_schedules.py",
    ),
    Mutation(
        "identity: the result of the tapped program is adopted unseen",
        "capture/identity.py",
        "            self._judge(held.same(expected, held.after(result)), step, kind)\n",
        "            self._judge(None, step, kind)\n",
        "tests/capture/test_identity.py",
    ),
    Mutation(
        "identity: the state is not put back after the rehearsal",
        "capture/identity.py",
        "                held.restore()\n",
        "",
        "tests/capture/test_identity.py",
    ),
    Mutation(
        "queue: takes more than its limit",
        "pipeline/queue.py",
        "self.queued + nbytes <= self._limit",
        "self.queued <= self._limit",
        "tests/pipeline/test_queue.py",
    ),
    Mutation(
        "queue: nothing is said to wait",
        "pipeline/queue.py",
        "        return max(self._handed - self._worked, 0)\n",
        "        return 0\n",
        "tests/pipeline/test_queue.py",
    ),
    Mutation(
        "tail: rows and checksum are not compared",
        "store/tail.py",
        'if f"{checksum:08x}".encode() != form.metadata[CHECKSUM]:',
        "if CHECKSUM not in form.metadata:",
        "tests/store/test_tail_faults.py",
    ),
    Mutation(
        "tail: rows that were taken are taken again",
        "store/tail.py",
        "self._taken, self._checksum = self._taken + end - begin, checksum",
        "self._checksum = checksum",
        "tests/store/test_tail.py",
    ),
    Mutation(
        "read: an attempt keeps the steps that a later one did again",
        "read/merge.py",
        "return step <= end if pass_of(site) else step < end",
        "return True",
        "tests/store/test_samples.py",
    ),
    Mutation(
        "matrix: a column of many steps shows its last one",
        "show/data/matrix.py",
        "            high = np.maximum(high, self.high[:, i::factor])\n",
        "            high = self.high[:, i::factor]\n",
        "tests/show/test_matrix.py",
    ),
    Mutation(
        "guard: any token is right",
        "show/guard.py",
        'return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())',
        "return bool(given)",
        "tests/show/test_guard.py",
    ),
    Mutation(
        "guard: other names of this machine are let in",
        "show/guard.py",
        "return found is not None and found[1].lower() in self._names",
        "return found is not None",
        "tests/show/test_guard.py",
    ),
    Mutation(
        "sites: a weight keeps the name of its layer",
        "sites.py",
        '            layer, _, weight = path.rpartition("/")\n            weight, suffix',
        '            layer, _, weight = "", "", path\n            weight, suffix',
        "tests/store/test_facts.py",
    ),
    Mutation(
        "budget: a captured step costs nothing",
        "plan/budget.py",
        "by_share = (max(at_most.wall / plain.wall, at_most.cpu / plain.cpu, 0.0) + later) / self.share",
        "by_share = 0.0",
        "tests/plan/test_budget.py",
    ),
    Mutation(
        "schedule: every n-th step is every step",
        "schedule.py",
        "else turn.batch) % every == 0",
        "else turn.batch) % every >= 0",
        "tests/test_watch.py",
    ),
    Mutation(
        "shield: an error of ours reaches the training",
        "capture/shield.py",
        "            except Exception as error:\n                told(tell(self), error)\n",
        "            except Exception as error:\n                told(tell(self), error)\n                raise\n",
        "tests/conformance/test_our_errors.py",
    ),
    Mutation(
        "page: a late answer about another run is shown",
        "show/static/main.js",
        "    if (turn !== this.turn) return false;\n    this.trouble = null;\n",
        "    this.trouble = null;\n",
        "tests/browser/test_growing.py -k late_answer",
    ),
    Mutation(
        "black box: the newest steps are dropped first",
        "pipeline/black_box.py",
        "self.laps = self.laps[len(laps) :]",
        "self.laps = self.laps[: -len(laps)]",
        "tests/pipeline/test_black_box.py",
    ),
    Mutation(
        "black box: the steps around a NaN are not set aside",
        "pipeline/black_box.py",
        "self.aside, self.laps = self.laps, []",
        "self.aside = []",
        "tests/pipeline/test_black_box.py",
    ),
    Mutation(
        "black box: every replay agrees with the training",
        "capture/replay.py",
        "found.agrees = all(agreeing) if agreeing else None",
        "found.agrees = True",
        "tests/conformance/test_black_box.py -k does_not_agree",
    ),
    Mutation(
        "ranks: the mean is that of the first one",
        "read/frames.py",
        'take("mean", mean)',
        'take("mean", merged["mean"])',
        "tests/store/test_writer.py tests/store/test_passes.py -k rank",
    ),
    Mutation(
        "ranks: an attempt that recorded nothing takes over",
        "read/state.py",
        'return any(each.get("status") == "running" or each.get("checkpoints") for each in said)',
        "return True",
        "tests/faults/test_kept.py -k recorded_nothing",
    ),
    Mutation(
        "diagnosis: a symptom stands next to its cause",
        "diagnose/causes.py",
        "                owned.add(j)\n",
        "",
        "tests/diagnose/test_findings.py tests/diagnose/test_judgement.py",
    ),
    Mutation(
        "diagnosis: one capture is enough for a dead layer",
        "diagnose/rules/dead_relu.py",
        "if not lowest(late) >= most:",
        "if not share[-1] >= most:",
        "tests/diagnose",
    ),
    Mutation(
        "diagnosis: a thinned history forgets its extremes",
        "diagnose/history.py",
        "        extreme(some, gone[column], out=some)\n",
        "",
        "tests/diagnose/test_evidence.py",
    ),
    Mutation(
        "tensors: a chunk is not compared with its checksum",
        "read/stored.py",
        "if checksum.crc32c(found[:",
        "if False and checksum.crc32c(found[:",
        "tests/faults/test_damage.py -k chunk",
    ),
    Mutation(
        "fate: the last report counts",
        "pipeline/fate.py",
        "            if first:\n                self.ending = ending\n",
        "            self.ending = ending\n",
        "tests/pipeline/test_fate.py",
    ),
    Mutation(
        "writer: the limit does not hold for parts",
        "store/table_store.py",
        "            if not self._meter.room(len(part)):\n",
        "            if False:\n",
        "tests/store/test_writer.py tests/store/test_tail_faults.py -k limit",
    ),
)


def pytest(tree: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether tests pass on a tree, and the first that does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--disable-warnings", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"KERAS_BACKEND": "jax", **os.environ, "PYTHONPATH": path}
    done = subprocess.run([*command, *tests], cwd=tree, env=env, capture_output=True, text=True)
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1):  # not even collected, or nothing to run
        return False, found[1] if found else f"pytest ended with {done.returncode}: {done.stdout[-300:]}"
    return done.returncode == 0, found[1] if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("only", nargs="*", help="only mutations whose name has one of these words in it")
    only = parser.parse_args().only
    chosen = [m for m in MUTATIONS if not only or any(word in m.name for word in only)]
    survived = 0
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        tree.mkdir()
        for name in ("src", "tests", "bench", "docs", "examples"):
            shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
        for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
            shutil.copy(path, tree)
        print("| mutation | caught by |\n|---|---|", flush=True)
        for mutation in chosen:
            path = tree / "src" / "fitscope" / mutation.file
            before = path.read_bytes()
            mutation.apply(tree)
            passed, failing = pytest(tree, mutation.tests.split())
            path.write_bytes(before)
            if not passed and not pytest(tree, [failing])[0]:
                sys.exit(f"{failing} fails before anything is broken. Mend it first.")
            survived += passed
            print(f"| {mutation.name} | {'**survived**' if passed else failing} |", flush=True)
    sys.exit(f"{survived} mutations survived: tests are missing." if survived else 0)


if __name__ == "__main__":
    main()

"""The benchmarks run, at their smallest size, and judge what they measured. No time is looked at here: a benchmark says how
long something takes, a test only that it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def run(script: str, *arguments: Any) -> str:
    command = [sys.executable, str(BENCH / script), *map(str, arguments)]
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_the_suite_continues_after_a_row_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package to be compared with is installed, but broken."""
    package = tmp_path / "site" / "trainscope"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('a broken release')")
    path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    arguments = ["--rows", "plain again", "every step, sampled", "trainscope", "--rounds", 1, "--steps", 2]
    run("run.py", "--backend", "torch", "--models", "mlp", "--parts", "tables", *arguments,
        "--out", tmp_path, "--images", tmp_path)  # fmt: skip

    found = json.loads((tmp_path / "results.json").read_text())
    rows = found["tables"]["torch/auto/mlp"]["rows"]
    assert rows["trainscope"] == {"failed": "RuntimeError: a broken release"}
    assert rows["every step, sampled"]["cpu"] > 0
    assert rows["every step, sampled"]["bytes_per_step"] > 0
    assert rows["every step, sampled"]["compile_seconds"] > 0
    assert rows["every step, sampled"]["captured_share"] == 1
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| trainscope | failed: RuntimeError: a broken release |" in page
    assert "(bench.svg)" in page
    assert "every step, sampled" in (tmp_path / "bench.svg").read_text(encoding="utf-8")


def test_the_growth_benchmark_measures_each_size() -> None:
    out = run(
        "growth_layers.py", "--of", "layers", "--sizes", 2, 3, "--rows", "every step, sampled", "--rounds", 1,
        "--steps", 2,
    )  # fmt: skip
    points = json.loads(out.splitlines()[-1])["points"]
    assert [point["size"] for point in points] == [2, 3]
    sites = [point["rows"]["every step, sampled"]["sites"] for point in points]
    assert sites[0] < sites[1]


def scripted(name: str, walls: list[float | Exception], log: list[str]) -> Any:
    """A row whose turns take what is written down for them."""
    from measuring import Row, Seconds

    class Scripted(Row):
        def timed(self, steps: int) -> Seconds | None:
            log.append(self.name)
            if isinstance(walls[0], Exception):
                self.failed = str(walls[0])
            if self.failed is not None:
                return None
            seconds = walls.pop(0)
            return Seconds(seconds, 2 * seconds)

    return Scripted(name, lambda steps: None)


def test_a_row_is_compared_with_the_plain_training_next_to_it() -> None:
    from measuring import take_turns

    log: list[str] = []
    plain = scripted("plain", [9.0, 9.0, 1.0, 2.0], log)
    first, second = scripted("a", [9.0, 3.0], log), scripted("b", [9.0, 8.0], log)
    take_turns(plain, [first, second], 1, 1)
    assert log == ["plain", "a", "b", "plain"] * 2
    assert first.figures()["cpu"] == 3.0 / 1.0  # the one before it
    assert second.figures()["cpu"] == 8.0 / 2.0  # the one after it


def test_a_row_that_fails_leaves_the_others_alone() -> None:
    from measuring import take_turns

    log: list[str] = []
    plain = scripted("plain", [1.0] * 6, log)
    broken, other = scripted("a", [RuntimeError("no")], log), scripted("b", [1.0, 2.0, 4.0], log)
    take_turns(plain, [broken, other], 1, 2)
    assert broken.figures() == {"failed": "no"}
    assert other.figures()["cpu"] == 3.0
    assert other.figures()["cpu_spread"] == [2.0, 4.0]


def table(**cpu: float) -> dict[str, Any]:
    names = {
        "budget": "default budget",
        "sampled": "every step, sampled",
        "second": "second forward in a callback",
    }
    return {"rows": {names[key]: {"cpu": value} for key, value in cpu.items()}}


def verdict(results: dict[str, Any], begin: str) -> str:
    from targets import judged

    return next(target.verdict for target in judged(results) if target.text.startswith(begin))


def test_targets_are_judged_by_measurements() -> None:
    results = {
        "tables": {
            "jax/auto/cnn": table(budget=1.03, sampled=1.05, second=1.5),
            "jax/auto/mlp": table(budget=1.04, sampled=4.0, second=2.0),
            "torch/auto/cnn": table(budget=1.30, sampled=1.5, second=1.6),
        }
    }
    assert verdict(results, "default budget") == "**no**: jax mlp"  # torch's does not decide
    assert verdict(results, "default watches") == "yes"  # of the CNN and the ResNet alone
    assert verdict(results, "every step, sampled: cheaper than second") == "**no**: jax mlp"
    assert verdict(results, "every step, sampled: cheaper than trainscope") == "not measured"
    assert verdict({}, "default budget") == "not measured"


def test_a_failed_row_misses_its_target() -> None:
    failed = {"tables": {"jax/auto/cnn": {"rows": {"default budget": {"failed": "no"}}}}}
    assert verdict(failed, "default budget") == "**no**: jax cnn"


def test_a_report_without_results_is_marked_empty() -> None:
    from report import markdown

    assert "Nothing is measured yet" in markdown({}, {})


@pytest.mark.parametrize(("script", "measured"), [("ranks.py", "first picture"), ("store.py", "one series")])
def test_a_script_without_a_training_runs(script: str, measured: str) -> None:
    assert measured in run(script, "--quick")

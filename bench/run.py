"""Measures what capture costs and writes `bench/results.md`, its figures as `results.json`, and the pictures in `docs/images`.

    python bench/run.py                             everything: about an hour on two cores that do nothing else; --rounds 5 is calmer
    python bench/run.py --backend jax               what is measured anew replaces its part of the results; the rest stays
    python bench/run.py --models mlp --rows 'every*' --parts tables
    python bench/run.py --quick                     that everything runs, in some ten minutes, written to bench/quick
    python bench/run.py --parts none                only the report and the pictures, from results.json

Each table is a process of its own, and the results so far are written after each. What fails is in the report, with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import plot
import report
from measuring import HERE, in_process, say
from names import ABOUT, AGAIN, DEBUGGER, PLAIN, TRAINSCOPE

#: backend → its tables: how Keras compiles, and which models
TABLES = {
    "jax": {"auto": ["cnn", "mlp", "transformer", "resnet"]},
    "tensorflow": {"auto": ["cnn", "mlp", "transformer", "resnet"], "yes": ["cnn"], "session": ["cnn"]},
    "torch": {"auto": ["cnn", "mlp", "transformer", "resnet"]},
}
MODES = {
    ("jax", "auto"): "jax.jit",
    ("tensorflow", "auto"): "tf.function",
    ("tensorflow", "yes"): "tf.function, XLA",
    ("tensorflow", "session"): "TF1 session",
    ("torch", "auto"): "eager",
}
PARTS = ("kernel", "fixed", "tables", "growth", "peaks")
PACKAGES = ("keras", "jax", "tensorflow", "torch", "numpy", "numba", "trainscope")


class Results:
    """All that was measured, in a file that is written after each part."""

    def __init__(self, out: Path, images: Path, *, anew: bool) -> None:
        self.out, self.images = out, images
        self.file = out / "results.json"
        for directory in (out, images):
            directory.mkdir(parents=True, exist_ok=True)
        there = self.file.exists() and not anew
        self.found: dict[str, Any] = json.loads(self.file.read_text()) if there else {}

    def put(self, part: str, key: str, value: dict[str, Any]) -> None:
        value["at"] = datetime.date.today().isoformat()
        self.found.setdefault(part, {})[key] = value
        self.write()

    def rows(self, part: str, key: str) -> dict[str, Any]:
        """Those that there are of a table."""
        return dict(self.found.get(part, {}).get(key, {}).get("rows", {}))

    def write(self) -> None:
        self.file.write_text(json.dumps(rounded(self.found), indent=1) + "\n")
        store = (
            self.out / "growth.json"
        )  # how the store grows with the steps of a run, by a script of its own
        if store.exists():
            self.found["store"] = json.loads(store.read_text())
        pictures = {
            name: os.path.relpath(path, self.out) for name, path in plot.draw(self.found, self.images).items()
        }
        (self.out / "results.md").write_text(report.markdown(self.found, pictures))


def rounded(found: Any) -> Any:
    """Five digits are more than a measurement has."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return float(f"{found:.5g}") if isinstance(found, float) else found


def tables(options: argparse.Namespace, results: Results) -> None:
    for backend in options.backends:
        for jit, models in TABLES[backend].items():
            for model in models:
                if model in options.models:
                    found = {"backend": backend, "mode": MODES[backend, jit], "model": model}
                    found |= table(backend, jit, model, options)
                    key = f"{backend}/{jit}/{model}"
                    if options.rows != ["*"] and "rows" in found:  # those that were not asked for stay
                        found["rows"] = results.rows("tables", key) | found["rows"]
                    results.put("tables", key, found)


def table(backend: str, jit: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """One table, with the row of the debugger where there is one."""
    if jit == "session":
        return in_process("sessions.py", options.passed, backend)
    found = in_process("train.py", ["--model", model, "--jit", jit, *options.passed], backend)
    debugged = (backend, jit) == ("tensorflow", "auto") and wanted(DEBUGGER, options)
    if debugged and "rows" in found:
        arguments = ["--model", model, *options.passed_always]
        found["rows"][DEBUGGER] = in_process("debugger.py", arguments, backend, minutes=20)
    return found


def peaks(options: argparse.Namespace, results: Results) -> None:
    """Peak memory of the CNN, each row in a process of its own."""
    for backend in options.backends:
        key = f"{backend}/auto/cnn"
        rows = [name for name in ABOUT if name not in (AGAIN, DEBUGGER) and wanted(name, options)]
        found: dict[str, Any] = {}
        for name in [PLAIN, *rows]:
            if name != TRAINSCOPE or backend == "torch":
                say(f"{backend}: peak memory, {name}")
                arguments = ["--model", "cnn", "--peak", name, *(["--steps", 2] if options.quick else [])]
                found[name] = in_process("train.py", arguments, backend, minutes=10)
                results.put("peaks", key, {"rows": results.rows("peaks", key) | found})


def fixed(options: argparse.Namespace, results: Results) -> None:
    arguments = ["--rounds", options.rounds, "--steps", options.steps or (100 if options.quick else 1_000)]
    for backend in options.backends:
        results.put("fixed", backend, in_process("fixed.py", arguments, backend))


def kernel(options: argparse.Namespace, results: Results) -> None:
    results.put("kernel", "host", in_process("kernel.py", ["--json", "--rounds", 5 * options.rounds], "jax"))


def growth(options: argparse.Namespace, results: Results) -> None:
    """On one backend: the one that is asked for, or JAX."""
    backend = options.backends[0]
    quick = ["--rounds", options.rounds, "--seconds", options.seconds, "--least", options.least]
    quick += ["--steps", options.steps] if options.steps else []
    for of, sizes in (("layers", [10, 100]), ("batch", [8, 128])):
        arguments = ["--of", of, *([*quick, "--sizes", *sizes] if options.quick else [])]
        results.put("growth", of, in_process("growth_layers.py", arguments, backend))


def wanted(name: str, options: argparse.Namespace) -> bool:
    return any(fnmatch(name, glob) for glob in options.rows)


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "quick": options.quick,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = TABLES["jax"]["auto"]
    parser.add_argument("--backend", choices=list(TABLES), help="only this one")
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--rows", nargs="+", default=["*"], help="names of rows, or globs")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "none"], default=list(PARTS))
    parser.add_argument("--rounds", type=int, help="that count; 3, quick: 1")
    parser.add_argument(
        "--seconds", type=float, help="of plain training, for each row and round; 1.0, quick: 0.2"
    )
    parser.add_argument("--steps", type=int, help="instead of as many as last that long")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    parser.add_argument(
        "--out", type=Path, help="where results.md and results.json are; bench, quick: bench/quick"
    )
    parser.add_argument("--images", type=Path, help="where the pictures are; docs/images, quick: bench/quick")
    options = parser.parse_args()
    options.out = options.out or (HERE / "quick" if options.quick else HERE)
    options.images = options.images or (options.out if options.quick else HERE.parent / "docs" / "images")
    asked = (options.backend, options.models, options.rows, options.parts)
    options.everything = asked == (None, models, ["*"], list(PARTS))
    options.backends = [options.backend] if options.backend else list(TABLES)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.2 if options.quick else 1.0)
    options.least = 2 if options.quick else 1_000  # at most so many because a model wants them
    options.passed_always = ["--rounds", options.rounds, "--seconds", options.seconds]
    options.passed_always += ["--steps", options.steps] if options.steps else []
    options.passed = [*options.passed_always, "--least", options.least, "--rows", *options.rows]
    return options


def main() -> None:
    options = parsed()
    results = Results(options.out, options.images, anew=options.everything)
    if options.parts != ["none"]:
        results.found["setting"] = setting(options)
    measure = {"kernel": kernel, "fixed": fixed, "tables": tables, "growth": growth, "peaks": peaks}
    for part in PARTS:
        if part in options.parts:
            say(f"—— {part}")
            measure[part](options, results)
    results.write()
    say(f"{options.out / 'results.md'}")


if __name__ == "__main__":
    main()

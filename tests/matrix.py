"""Which versions work: builds an environment for each and runs smoke, exact, identical and roundtrip in it.

    python tests/matrix.py                          every environment below, with every Python that pyenv has
    python tests/matrix.py --only newest-jax --python 3.13
    python tests/matrix.py --keras /path/to/keras   Keras from a checkout, beside the others

Environments are made below `--where` (a temporary directory by default) with `uv` if there is one, else with venv and pip, and
used again if they are there; fitscope itself is installed from this checkout, editable. Results go to `matrix.jsonl`, one line
each. The table has the newest line of each environment, and for the others that of docs/versions.md; `--write` puts it there. What
does not pass is not promised: see the bounds in pyproject.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/conformance/test_exact.py",
    "tests/conformance/test_identical.py",
    "tests/store/test_roundtrip.py",
)
SMOKE = (
    "import numpy as np, keras, fitscope as fs, subprocess, sys, tempfile; "
    "m = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]); "
    "m.compile('sgd', 'mse'); x = np.ones((32, 4), 'float32'); to = tempfile.mkdtemp(); "
    "m.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[fs.Scope(to, every=1)]); r = fs.open(to); "
    "unseen = [site for site in r.unseen if not site.startswith('classes/')]; "  # there are none in a regression
    "assert not unseen and not r.errors, (unseen, r.errors); "
    "subprocess.run([sys.executable, '-m', 'fitscope', 'show', to], check=True); "  # an old typer breaks all
    "print(len(r.sites), r.identity)"
)
CHECKS = ("smoke", *(Path(test).stem for test in TESTS))
CHECKOUT = "-checkout"  #: after the name of an environment with Keras from a checkout
RESULTS = Path("matrix.jsonl")
PAGE = ROOT / "docs" / "versions.md"
HEAD = """# Versions

`make matrix` installs each set of versions in a separate environment and runs four checks there: a smoke test, tensors compared with a
training step written by hand (`test_exact`), weights compared bit for bit with a training without a scope (`test_identical`), and runs
written and read back (`test_roundtrip`). It writes this page. The lower bounds in `pyproject.toml` are the versions of the `lowest` rows.
fitscope warns about a framework that is newer than every tested version, and tests itself there before it records. `keras-nightly` is
Keras as it is being developed. A dash is a check that was not run.

"""
READERS = ("numpy", "pyarrow", "zarr")  #: beside Keras and its backend, the versions that the table names
UNTESTED = ("-W", "ignore:fitscope was never tested with")  #: what this is for; other warnings stay errors
PYTEST = ("pytest", "hypothesis", "httpx", "psutil")


@dataclass(frozen=True)
class Environment:
    """Versions to install, beside the newest of all else."""

    name: str
    backend: str
    pins: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ("3.11", "3.12", "3.13", "3.14")  #: for which its versions have wheels
    nightly: bool = False  #: with keras-nightly of the package index in place of keras


def lowest(**but: str) -> tuple[str, ...]:
    """Every lower bound that pyproject.toml names, as a pin; `but` has those that a framework raises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(dependency.split(">=") for dependency in project["dependencies"])
    return tuple(f"{name}=={but.get(name.replace('-', '_'), version)}" for name, version in pins.items())


#: What is promised, from the bottom to the top.
ENVIRONMENTS = (
    Environment("lowest-jax", "jax", (*lowest(ml_dtypes="0.5.0"), "jax==0.6.0"), ("3.11",)),
    Environment("lowest-tensorflow", "tensorflow", (*lowest(), "tensorflow==2.18.0"), ("3.11",)),
    Environment("lowest-torch", "torch", (*lowest(), "torch==2.5.0"), ("3.11",)),
    Environment("keras-3.13-jax", "jax", ("keras==3.13.*",)),
    Environment("keras-3.14-jax", "jax", ("keras==3.14.*",)),
    Environment("jax-0.8", "jax", ("jax==0.8.*",)),
    Environment("tensorflow-2.20", "tensorflow", ("tensorflow==2.20.*",), ("3.11", "3.12", "3.13")),
    Environment("newest-jax", "jax", ("jax",)),
    Environment("newest-tensorflow", "tensorflow", ("tensorflow",)),
    Environment("newest-torch", "torch", ("torch",)),
    Environment("keras-nightly-jax", "jax", ("jax",), nightly=True),
)


def pythons() -> dict[str, str]:
    """By version such as 3.12: the interpreters that this machine has."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(root.glob("versions/3.1[1-9]*/bin/python")):
        found.setdefault(re.match(r"3\.\d+", path.parents[1].name)[0], str(path))  # type: ignore[index]
    return dict(sorted(found.items()))


def run(command: list[str], seconds: float, **environment: str) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env={**os.environ, **environment},
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"not done after {seconds:.0f} s"
    text = (done.stdout + done.stderr).strip()
    return done.returncode == 0, text.splitlines()[-1] if text else ""


def made(where: Path, python: str, environment: Environment, keras: str | None) -> tuple[bool, str]:
    """The environment, installed."""
    if (where / ".ready").exists():
        return True, ""
    shutil.rmtree(where, ignore_errors=True)
    uv = shutil.which("uv")
    wanted = ["--editable", f"{ROOT}[{environment.backend}]", *environment.pins, *PYTEST]
    wanted += [f"keras @ file://{Path(keras).resolve()}"] if keras else []
    inside = str(where / "bin" / "python")
    if uv:
        steps = [[uv, "venv", "--python", python, str(where)]]
        install, remove = ([uv, "pip", verb, "--python", inside] for verb in ("install", "uninstall"))
    else:
        steps = [[python, "-m", "venv", str(where)]]
        pip = [inside, "-m", "pip"]
        install, remove = [*pip, "install", "--quiet"], [*pip, "uninstall", "--yes", "--quiet"]
    steps.append([*install, *wanted])
    if environment.nightly:  # both are the package `keras`
        steps += [[*remove, "keras"], [*install, "--pre", "--no-deps", "keras-nightly"]]
    for step in steps:
        right, said = run(step, 3600)
        if not right:
            return False, f"cannot be installed: {said}"
    (where / ".ready").touch()
    return True, ""


def tried(
    where: Path, python: str, environment: Environment, keras: str | None, checks: list[str], seconds: float
) -> dict[str, str]:
    """By check: `passed`, or the last line of what it said."""
    right, said = made(where, python, environment, keras)
    if not right:
        return {"install": said}
    inside = str(where / "bin" / "python")
    cache = str(where / "jax-cache")  # not shared with other versions
    asked = {
        "KERAS_BACKEND": environment.backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": "",
        "JAX_COMPILATION_CACHE_DIR": cache,
    }
    names = ("keras-nightly" if environment.nightly else "keras", environment.backend, *READERS)
    code = f"import importlib.metadata as m; print(', '.join(f'{{n}} {{m.version(n)}}' for n in {names!r}))"
    results = {"versions": run([inside, "-c", code], 60)[1]}
    commands = {"smoke": [inside, "-c", SMOKE]}
    for test in TESTS:
        commands[Path(test).stem] = [
            inside,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            *UNTESTED,
            test,
        ]
    for name in checks:
        command = commands[name]
        right, said = run(command, seconds, **asked)
        results[name] = "passed" if right else said
    return results


def written(page: Path) -> list[dict[str, str]]:
    """The lines of the table on the page: other checkouts have no `matrix.jsonl`."""
    lines = []
    for row in page.read_text(encoding="utf-8").splitlines() if page.exists() else ():
        name, python, versions, *cells = (
            (cell.strip() for cell in row.strip("|").split("|")) if "|" in row else [""] * 3
        )
        if name.removesuffix(CHECKOUT) in {environment.name for environment in ENVIRONMENTS}:
            line = {"name": name, "python": python, **({"versions": versions} if versions else {})}
            lines.append(
                line | {check: cell for check, cell in zip(CHECKS, cells, strict=True) if cell != "–"}
            )
    return lines


def results(file: Path, page: Path = PAGE) -> list[dict[str, str]]:
    """The newest line of each environment, in the order of `ENVIRONMENTS`."""
    newest = {(line["name"], line["python"]): line for line in written(page)}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        found = json.loads(line)
        before = newest.get((found["name"], found["python"]), {})
        same = before.get("versions") == found.get("versions")
        newest[found["name"], found["python"]] = {**(before if same else {}), **found}
    names = [environment.name for environment in ENVIRONMENTS]
    return sorted(
        newest.values(),
        key=lambda found: (names.index(found["name"].removesuffix(CHECKOUT)), found["python"]),
    )


def passed(line: dict[str, str]) -> bool:
    return all(
        value == "passed" for name, value in line.items() if name not in ("name", "python", "versions")
    )


def table(lines: list[dict[str, str]]) -> str:
    rows = [
        "| environment | Python | versions | " + " | ".join(CHECKS) + " |",
        "|---" * (3 + len(CHECKS)) + "|",
    ]
    for line in lines:
        cells = [
            line.get("install") or line.get(CHECKS[0], "–"),
            *(line.get(check, "–") for check in CHECKS[1:]),
        ]
        rows.append(
            f"| {line['name']} | {line['python']} | {line.get('versions', '')} | " + " | ".join(cells) + " |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", help="the name of an environment; can be given several times"
    )
    parser.add_argument(
        "--python", action="append", help="a version such as 3.12; can be given several times"
    )
    parser.add_argument(
        "--check", action="append", choices=CHECKS, help="only this; can be given several times"
    )
    parser.add_argument("--keras", help="a checkout of Keras, tried with the newest of all else")
    parser.add_argument("--seconds", type=float, default=3600, help="the time limit of one check")
    parser.add_argument("--where", type=Path, default=Path(tempfile.gettempdir()) / "fitscope-matrix")
    parser.add_argument("--write", action="store_true", help="put the table into docs/versions.md")
    options = parser.parse_args()
    fine = True
    for version, python in pythons().items():
        for environment in ENVIRONMENTS:
            if (
                version not in (options.python or environment.pythons)
                or version not in environment.pythons
                or (options.only and environment.name not in options.only)
            ):
                continue
            name = f"{environment.name}{CHECKOUT if options.keras else ''}"
            found = tried(
                options.where / f"{name}-{version}",
                python,
                environment,
                options.keras,
                options.check or [*CHECKS],
                options.seconds,
            )
            line = {"name": name, "python": version, **found}
            fine = fine and passed(line)
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)
    text = table(results(RESULTS))
    print(text)
    if options.write:
        PAGE.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

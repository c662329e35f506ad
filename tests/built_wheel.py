"""Builds the wheel, checks what is in it, and uses it alone in an empty environment: three commands name the bugs of the demo,
and the others work.

    python tests/built_wheel.py [--backend jax] [--contents]

With `--contents` it is only built and looked into, which takes seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fitscope"
CULPRITS = (
    "Dead ReLU units · side",
    "Odd batch · conv1",
    "batch 39 of each epoch",
)  #: the bugs of the demo, as the third command names them


def built(into: Path) -> Path:
    """The wheel of this checkout."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",  # hatchling is there: nothing to fetch
        "--wheel-dir",
        str(into),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=600)
    (wheel,) = into.glob("fitscope-*.whl")
    return wheel


def metadata(wheel: Path) -> list[str]:
    """What the package index would refuse in its metadata, or show wrongly."""
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return [] if done.returncode == 0 else [done.stdout + done.stderr]


def differences(wheel: Path) -> list[str]:
    """What is in the wheel and not in the package, or the other way round."""
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {
        f"fitscope/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return [f"{name} is not in the wheel" for name in sorted(ours - inside)] + [
        f"{name} should not be in the wheel" for name in sorted(inside - ours)
    ]


def newcomer(wheel: Path, where: Path, backend: str) -> list[str]:
    """Does what a newcomer types: install, train the demo, ask what is wrong. Returns what is not named of its two bugs."""
    subprocess.run([sys.executable, "-m", "venv", str(where / "env")], check=True, timeout=600)
    bin_ = where / "env" / "bin"
    said = ""
    for command in (
        ["pip", "install", "--quiet", f"{wheel}[{backend}]"],
        ["fitscope", "demo", "--to", "runs"],
        ["fitscope", "check", "runs"],
    ):
        print(f"$ {' '.join(command)}", flush=True)
        environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "KERAS_BACKEND")
        }
        done = subprocess.run(
            [str(bin_ / command[0]), *command[1:]], check=True, timeout=3600, cwd=where, env=environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        said = done.stdout
        print(said, flush=True)
    plain = " ".join(said.split())
    return [f"the newcomer is not told: {culprit}" for culprit in CULPRITS if culprit not in plain]


def used(where: Path) -> None:
    """Calls every other command that needs no browser."""
    python, fitscope = where / "env" / "bin" / "python", str(where / "env" / "bin" / "fitscope")
    for command in (
        ["ls", "runs"],
        ["show", "runs"],
        ["report", "runs", "-o", "report.html"],
        ["export", "csv", "runs", "stats.csv"],
    ):
        subprocess.run([fitscope, *command], check=True, timeout=1800, cwd=where)
    serve = (
        "import fitscope as fs, urllib.request as u, http.cookiejar as c\n"
        "with fs.serve('runs', 0) as server:\n"
        "    o = u.build_opener(u.HTTPCookieProcessor(c.CookieJar()))\n"
        "    assert b'fitscope' in o.open(server.url).read()\n"
    )
    subprocess.run([str(python), "-c", serve], check=True, timeout=300, cwd=where)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--contents", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        wheel = built(where)
        wrong = differences(wheel) + metadata(wheel)
        print("\n".join(wrong) or f"{wheel.name}: {len(zipfile.ZipFile(wheel).namelist())} files, all ours")
        if not wrong and not options.contents:
            wrong = newcomer(wheel, where, options.backend)
            print("\n".join(wrong) or "three commands from the wheel to the culprits")
            used(where)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

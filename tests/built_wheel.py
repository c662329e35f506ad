"""Builds the wheel, checks what is in it, and uses it alone in an empty environment: demo, ls, show, report, export.

    python tests/built_wheel.py [--backend jax] [--contents]

With `--contents` it is only built and looked into, which takes seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fitscope"


def built(into: Path) -> Path:
    """The wheel of this checkout."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(into),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=600)
    (wheel,) = into.glob("fitscope-*.whl")
    return wheel


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


def used(wheel: Path, where: Path, backend: str) -> None:
    """Installs it with nothing else beside it, and calls every command that needs no browser."""
    subprocess.run([sys.executable, "-m", "venv", str(where / "env")], check=True, timeout=600)
    python = where / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", f"{wheel}[{backend}]"]
    subprocess.run(install, check=True, timeout=3600)
    fitscope = str(where / "env" / "bin" / "fitscope")
    for command in (
        ["demo", "--to", "runs", "--backend", backend],
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
        wrong = differences(wheel)
        print("\n".join(wrong) or f"{wheel.name}: {len(zipfile.ZipFile(wheel).namelist())} files, all ours")
        twine = subprocess.run(
            [sys.executable, "-m", "twine", "check", str(wheel)], capture_output=True, text=True, check=False
        )
        print(twine.stdout.strip() or "twine is not installed: the metadata were not checked")
        if not wrong and not options.contents:
            used(wheel, where, options.backend)
        return 1 if wrong or "FAILED" in twine.stdout else 0


if __name__ == "__main__":
    sys.exit(main())

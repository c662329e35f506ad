"""`import fitscope` is light: no framework, and nothing of what reading and writing need."""

from __future__ import annotations

import subprocess
import sys

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
HEAVY = {"numba", "numpy", "pandas", "pyarrow", "zarr", "xarray", "duckdb", "rich", "typer"}


def imported_by(code: str) -> set[str]:
    """The top-level modules that are there after running the code in a fresh process."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_fitscope_imports_no_framework() -> None:
    assert not imported_by("import fitscope") & (FRAMEWORKS | HEAVY)


def test_making_a_scope_with_watches_imports_no_framework() -> None:
    code = "import fitscope as fs; fs.Scope('runs', [fs.activations('conv*'), fs.loss()], every=fs.epochs())"
    assert not imported_by(code) & FRAMEWORKS


def test_opening_a_run_imports_no_framework() -> None:
    code = "import fitscope as fs\ntry: fs.open('nowhere')\nexcept fs.RunError: pass"
    assert not imported_by(code) & (FRAMEWORKS | {"numba"})


def test_every_public_name_can_be_imported() -> None:
    import fitscope as fs

    assert sorted(fs.__all__) == dir(fs)
    assert all(getattr(fs, name) is not None for name in fs.__all__)

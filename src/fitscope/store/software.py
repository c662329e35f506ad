"""The versions of the software that made a run, read without importing it."""

from __future__ import annotations

import platform
import sys

from fitscope._version import __version__

#: Listed only if loaded: a framework that is merely installed had no part in the run.
PACKAGES = ("numpy", "pyarrow", "numba", "keras", "tensorflow", "tf_keras", "jax", "torch")


def software() -> dict[str, str]:
    """The versions of Python, the platform, fitscope and the loaded packages of `PACKAGES`, by name."""
    versions = {"python": platform.python_version(), "platform": platform.platform(), "fitscope": __version__}
    for name in PACKAGES:
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "") or _installed(name))
    return versions


def _installed(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"

"""Reserved disk space for the last status: even on a completely full disk a run can still report its losses.

Only in a local directory. The space is a file among the temporary ones. fitscope deletes it when it cannot put a status, and
reserves it again as soon as there is room.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from fitscope.store._base import Objects
from fitscope.store.files import Files

BYTES = 64 << 10  #: several times the size of a status

FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserved space of one rank."""

    def __init__(self, objects: Objects) -> None:
        self._path = Path(objects.staged("reserve")) if isinstance(objects, Files) else None
        self._held = False

    def hold(self) -> None:
        """Reserves the space, if there is any."""
        if self._path is None or self._held:
            return
        try:
            self._path.write_bytes(os.urandom(BYTES))  # compressible bytes would reserve nothing
            self._held = True
        except OSError:
            self._remove()

    def release(self) -> bool:
        """Releases the reserved space. False if there was none."""
        held, self._held = self._held, False
        if held:
            self._remove()
        return held

    def _remove(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

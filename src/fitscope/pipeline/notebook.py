"""Finds the notebook in which a training runs, if any: its kernel, and the cell that a picture appears in.

Nothing here imports IPython. If no kernel has imported it, there is no notebook, and finding that out costs one dict lookup.

A cell shows a picture once and then replaces it (`display_id`), from any thread: while `fit` keeps the kernel busy, the writer thread
does. A message belongs to a cell by its parent header. ipykernel 7 keeps one for each thread; older versions keep one for
all threads, that of the newest cell. So the writer thread names the cell in which the training began, if ipykernel allows it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fitscope.errors import WatchError
from fitscope.pipeline.troubles import warn

_QUIET = ("spyder_kernels",)  #: kernels whose windows show a picture but do not replace it


def shell() -> Any:
    """The IPython shell of this process, if it is a kernel; None in a script or a terminal."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return found if getattr(found, "kernel", None) is not None else None


def checked(live: object) -> bool | None:
    """Checks the setting `live`. It warns if that is True and there is no notebook."""
    if live is not None and not isinstance(live, bool):
        raise WatchError("`live` to be True, False or None", repr(live), "None draws in a notebook only")
    if live and shell() is None:
        warn("live=True draws in a notebook. This process is no Jupyter kernel, so nothing is drawn")
    return live


def wanted(live: bool | None) -> Any:
    """The shell to draw in; None outside a notebook or if pictures are off."""
    found = shell() if live is not False else None
    quiet = found is not None and type(found.kernel).__module__.partition(".")[0] in _QUIET
    return None if quiet and live is None else found


class NotebookCell:
    """The cell that runs now. Its picture has one place, even if several trainings draw it."""

    def __init__(self, shell: Any) -> None:
        self._events = shell.events
        self._publisher = shell.display_pub
        self._parent: Mapping[str, Any] = dict(getattr(self._publisher, "parent_header", None) or {})
        self._id = f"fitscope-{secrets.token_hex(8)}"
        self._shown = False

    def same(self, shell: Any) -> bool:
        """Whether this is the cell that runs now."""
        now = getattr(shell.display_pub, "parent_header", None) or {}
        return bool(self._parent) and now.get("msg_id") == self._parent.get("msg_id")

    def show(self, bundle: Mapping[str, str]) -> None:
        """Shows a picture, by MIME type, in place of the previous one."""
        update, self._shown = self._shown, True
        name_parent = getattr(self._publisher, "set_thread_parent", None)
        token = name_parent(self._parent) if name_parent is not None and self._parent else None
        try:
            self._publisher.publish(dict(bundle), {}, transient={"display_id": self._id}, update=update)
        finally:
            if token is not None:
                self._publisher.reset_thread_parent(token)

    def before_its_end(self, call: Callable[..., None]) -> Callable[[], None]:
        """Calls this at the end of every cell from now on, before the front end hears that it ended. Returns a function that stops it."""
        self._events.register("post_run_cell", call)

        def stop() -> None:
            if call in self._events.callbacks.get("post_run_cell", ()):
                self._events.unregister("post_run_cell", call)

        return stop

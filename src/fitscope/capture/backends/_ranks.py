"""The part of an adapter's contract about a training in several processes. By default each process has its own tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fitscope.capture.backends._harvest import Harvest


class Several:
    """How an adapter treats the other processes of a training."""

    def lockstep(self) -> bool:
        """Whether several processes must run the same programs in the same order, so that none may decide by itself."""
        return False

    def divided(self, harvest: Harvest) -> None:
        """Reduces a harvest to the tensors that this process records, if several processes hold them together."""

    def without_effect(self, model: Any) -> str | None:  # noqa: ARG002
        """The multi-process settings of the user that Keras ignores, and what to do; None if there are none."""
        return None

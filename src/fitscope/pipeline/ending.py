"""How a training ended: complete, failed, interrupted, or unknown."""

from __future__ import annotations

from dataclasses import dataclass

from fitscope.pipeline.troubles import described


@dataclass(frozen=True, slots=True)
class Ending:
    """How a training ended. It does not hold the exception, whose traceback would keep the training alive."""

    status: str
    by_what: str | None

    @classmethod
    def by(cls, error: BaseException | None) -> Ending:
        if error is None:
            return UNKNOWN
        by_hand = isinstance(error, KeyboardInterrupt | SystemExit)
        text = described(error).removesuffix(": ")
        return cls("interrupted" if by_hand else "failed", text)


COMPLETE = Ending("complete", None)
UNKNOWN = Ending("interrupted", "unknown: nothing reported how the training ended")

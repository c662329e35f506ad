"""The storage of runs: the capturing side writes with `RunWriter`, the reading side reads with `Objects`.

`_base` is the contract of a store, `schema` the layout of a run with its history. `files`, `memory` and `objects` are the stores,
and `place` selects one. `writer` is the only sink; `table_store` and `tensors` are its two halves.
"""

from fitscope.store._base import Objects
from fitscope.store.files import Files
from fitscope.store.meeting import attempt_of, next_attempt
from fitscope.store.memory import Memory
from fitscope.store.objects import Remote
from fitscope.store.pace import interval, sampled_ranks
from fitscope.store.places import existing, place
from fitscope.store.writer import RunWriter

__all__ = [
    "Files", "Memory", "Objects", "Remote", "RunWriter", "attempt_of", "existing", "interval", "next_attempt", "place",
    "sampled_ranks",
]  # fmt: skip

"""Where runs live: the capturing side writes through `RunWriter`, the reading side reads through `Objects`.

`_base` is the contract of a store, `schema` the layout of a run as text with its history. `files`, `memory`
and `objects` are the stores there are, `place` picks one. `writer` is the one sink; `tables` and `tensors`
are its two halves.
"""

from fitscope.store._base import Objects
from fitscope.store.files import Files
from fitscope.store.memory import Memory
from fitscope.store.objects import Remote
from fitscope.store.places import existing, place
from fitscope.store.writer import RunWriter, interval

__all__ = ["Files", "Memory", "Objects", "Remote", "RunWriter", "existing", "interval", "place"]

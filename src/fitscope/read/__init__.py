"""The reading side: `open` gives a `Run`, `runs` lists what there is.

`find` goes from a path to a run, `run` is the face of it; `tables` and `tensors` mirror the two halves of
the store's writer, `ranks` is what they are merged from. Imports no framework and nothing of the capturing
side.
"""

from fitscope.read.damage import Damage
from fitscope.read.find import Brief, Runs, open, runs  # noqa: A004
from fitscope.read.run import Run

__all__ = ["Brief", "Damage", "Run", "Runs", "open", "runs"]

"""The reading side: `open` returns a `Run`, `runs` lists all runs.

`find` goes from a path to a run, and `run` is its public interface. `tables` and `tensors` mirror the two halves of the store's writer, and
merge what `ranks` reads. This package imports no framework and no capturing code.
"""

from fitscope.read.damage import Damage
from fitscope.read.find import Brief, Runs, open, runs  # noqa: A004
from fitscope.read.run import Run

__all__ = ["Brief", "Damage", "Run", "Runs", "open", "runs"]

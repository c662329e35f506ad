"""Sinks: further destinations of the records of a training, in addition to the run.

A sink receives the same data as the run, on the writer thread. An error in a sink is reported and harms neither the run nor the
training. A sink that keeps failing is closed. The run has everything in any case.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fitscope.record import Record, Samples, Stretch
from fitscope.store import RunWriter

PATIENCE = 5  #: errors in a row after which fitscope closes a sink


class Sink(Protocol):
    """A destination in addition to the run. It must not grow with the number of steps."""

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None:
        """Takes the records and samples of one or more steps."""

    def flush(self) -> None:
        """Makes the data visible to readers. Called every few seconds, after the run's own flush."""

    def close(self) -> None:
        """Ends the sink: the run is closed, and nothing follows."""


Say = Callable[[str], None]
#: Makes a sink for an attempt that has begun and recorded nothing yet. `Say` takes problems that are no error of the sink.
Make = Callable[[RunWriter, Say], Sink]


class Sinks:
    """Several sinks by name, isolated from the run."""

    def __init__(self, makers: Mapping[str, Make], failed: Say) -> None:
        self._makers = makers
        self._failed = failed
        self._open: dict[str, Sink] = {}
        self._failures: Counter[tuple[str, str]] = Counter()  # failures in a row, by name and action

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, writer: RunWriter) -> None:
        """Creates the sinks for a run that was just opened."""
        for name, make in self._makers.items():
            try:
                self._open[name] = make(writer, self._named(name))
            except Exception as error:
                self._failed(f"{name}: nothing is written there. {type(error).__name__}: {error}")

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None:
        self._each("write", records, samples)

    def write_stretch(self, stretch: Stretch) -> None:
        """Passes on the rows of one scalar over many steps; most sinks get one record per row."""
        for name, sink in list(self._open.items()):
            if hasattr(sink, "write_stretch"):
                self._try(name, sink, "write_stretch", stretch)
            else:
                self._try(name, sink, "write", stretch.records(), [])

    def flush(self) -> None:
        self._each("flush")

    def close(self) -> None:
        self._each("close")
        self._open.clear()

    def _named(self, name: str) -> Say:
        return lambda text: self._failed(f"{name}: {text}")

    def _each(self, action: str, *args: Any) -> None:
        for name, sink in list(self._open.items()):
            self._try(name, sink, action, *args)

    def _try(self, name: str, sink: Sink, action: str, *args: Any) -> None:
        try:
            getattr(sink, action)(*args)
            self._failures[name, action] = 0
        except Exception as error:
            self._failures[name, action] += 1
            self._failed(f"{name}: {type(error).__name__}: {error}")
            if self._failures[name, action] >= PATIENCE:
                self._give_up(name)

    def _give_up(self, name: str) -> None:
        sink = self._open.pop(name)
        with contextlib.suppress(Exception):
            sink.close()
        self._failed(
            f"{name} is given up after {PATIENCE} errors in a row. The run itself goes on: see `fitscope export`"
        )

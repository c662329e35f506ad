"""Notices exceptions that leave a training, although Keras does not report them to callbacks.

An exception on its way out of `fit` passes objects that belong to this one `fit`: the iterator of its epochs, in whose
`catch_stop_iteration` the whole loop over batches stands (on torch only the drawing of data), and the list of its callbacks. Both die
with `fit`. There, and on torch around the model's step, fitscope records a passing exception and lets it pass. fitscope does not see
errors
that Keras itself raises between a batch loop and the next callback.

Whether `fit` is over cannot be concluded from that (a caller may catch the exception), nor from its objects being gone: a reference to
an exception, as a notebook keeps for the last one, keeps all its frames alive. `Frame` looks at the stack of the thread instead.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from fitscope.capture.shield import shield
from fitscope.pipeline.troubles import described, warn

Note = Callable[[BaseException], None]

#: The local variable of `fit`, `evaluate` and `predict` that iterates over epochs: in Keras 3, in legacy Keras.
ITERATORS = ("epoch_iterator", "data_handler")
PASSES = ("on_epoch_begin", "on_epoch_end", "on_train_end", "on_test_begin", "on_test_end", "on_predict_end")
BATCHES = (
    *(f"on_{phase}_batch_{end}" for phase in ("train", "test", "predict") for end in ("begin", "end")),
    "_call_batch_hook",  # legacy Keras in graph mode
)
#: Backends on which Keras runs the steps and the callbacks of batches outside the iterator's block.
OUTSIDE = ("torch",)


class Frame:
    """Recognises a running frame without a reference to it, which would keep all data of the training alive."""

    def __init__(self, frame: FrameType) -> None:
        self._id, self._code, self._thread = id(frame), frame.f_code, threading.get_ident()

    def left(self) -> bool:
        """Whether it has ended."""
        return not self._among(sys._current_frames().get(self._thread))

    def passed(self, error: BaseException) -> bool:
        """Whether the exception passed through it. Keras removes its own frames from tracebacks, but not from the chain of frames."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and self._among(traceback.tb_frame)

    def _among(self, frame: FrameType | None) -> bool:
        code: CodeType = self._code
        while frame is not None:
            if id(frame) == self._id and frame.f_code is code:
                return True
            frame = frame.f_back
        return False


def outside(hook: FrameType | None) -> FrameType | None:
    """The frame in which Keras trains: the one that called the method of the callback list."""
    callbacks = hook.f_locals.get("self") if hook is not None else None
    while hook is not None and (hook.f_globals is globals() or hook.f_locals.get("self") is callbacks):
        hook = hook.f_back
    return hook


def iterator_in(frame: FrameType) -> Any:
    """The data iterator in a frame in which Keras trains."""
    return _local(frame, ITERATORS)


class Notes:
    """The listeners for exceptions through an object, by identity: several scopes may watch one training."""

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}

    def add(self, who: object, note: Note) -> None:
        self._notes[id(who)] = note

    def remove(self, who: object) -> bool:
        """Removes a listener; returns whether none is left."""
        self._notes.pop(id(who), None)
        return not self._notes

    def __call__(self, error: BaseException) -> None:
        for note in list(self._notes.values()):
            with shield(_unseen):
                note(error)


def _unseen(error: Exception) -> None:
    warn(f"fitscope does not see how this training ends. {described(error)}")


def notice(frame: FrameType, callbacks: Any, who: object, note: Note, *, batches: bool) -> None:
    """Reports exceptions that pass the iterator in this frame of Keras, or its list of callbacks.

    `batches` also covers the callbacks of batches, if they are called outside the iterator's block.
    """
    iterator = iterator_in(frame)
    if hasattr(type(iterator), "catch_stop_iteration"):
        notes = _notes(iterator)
        _replace(iterator, "catch_stop_iteration", lambda plain: lambda: _Noticed(plain(), notes))
        notes.add(who, note)
    if callbacks is not None:
        notes = _notes(callbacks)
        for name in PASSES + (BATCHES if batches else ()):
            if hasattr(type(callbacks), name):
                _replace(callbacks, name, lambda plain: Noticed(plain, notes))
        notes.add(who, note)


class Noticed:
    """A function that reports every exception that leaves it."""

    def __init__(self, plain: Callable[..., Any], notes: Notes) -> None:
        self.plain = plain
        self.notes = notes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.plain(*args, **kwargs)
        except BaseException as error:
            self.notes(error)
            error.__traceback__ = _without_ours(error.__traceback__)
            raise


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the leading frames of this module."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


class _Noticed:
    """A `with` block that reports the exceptions that leave it."""

    def __init__(self, plain: Any, notes: Notes) -> None:
        self._plain = plain
        self._notes = notes

    def __enter__(self) -> Any:
        return self._plain.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        leave = Noticed(self._plain.__exit__, self._notes)  # waits for the device, which may raise
        handled = bool(leave(kind, error, traceback))
        if error is not None and not handled:
            self._notes(error)
        return handled


@contextmanager
def noticed_step(model: Any, name: str, who: object, note: Note) -> Iterator[None]:
    """Reports the exceptions of the model's compiled function inside the block.

    There is one object per compiled function, kept with it, because fitscope finds tapped steps by the function they were made for.
    """
    own = vars(model)
    there = own.get(name)
    noticed = there if isinstance(there, Noticed) else getattr(there, "_fitscope_noticed", None)
    if noticed is None and isinstance(there, FunctionType):
        noticed = there._fitscope_noticed = Noticed(there, Notes())  # type: ignore[attr-defined]
    if noticed is None:  # an object of another library is there
        yield
        return
    noticed.notes.add(who, note)
    own[name] = noticed
    try:
        yield
    finally:
        if noticed.notes.remove(who) and own.get(name) is noticed:
            own[name] = noticed.plain


def _local(frame: FrameType, names: tuple[str, ...]) -> Any:
    """A local variable of a running frame."""
    there = frame.f_locals
    try:
        return next((there[name] for name in names if name in there), None)
    finally:
        if type(there) is dict:  # before Python 3.13 this is a copy that the frame keeps, with all data in it
            there.clear()


def _notes(owner: Any) -> Notes:
    notes: Notes = vars(owner).setdefault("_fitscope_notes", Notes())
    return notes


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replaces a method on this instance, once, without a reference cycle: the end of the instance marks the end of `fit`."""
    if name not in vars(owner):
        reference, method = weakref.ref(owner), getattr(type(owner), name)
        vars(owner)[name] = make(lambda *args, **kwargs: method(reference(), *args, **kwargs))

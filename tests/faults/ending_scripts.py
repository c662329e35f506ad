"""Small trainings that end in every way a training ends. Each is a script that simply stops afterwards.

    python ending_scripts.py KIND DIRECTORY

Only `endings.py` starts them: it sends the signals, and looks at what they leave behind.
"""

# ruff: noqa: SIM105 - as people write it

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 3000  #: more than any of them reaches before it is ended
BATCH = 8


class Progress:
    """How far a script is, in memory that its parent sees: steps done, and whether it has left the training."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 16)

    @property
    def steps(self) -> int:
        return int(struct.unpack_from("q", self._bytes, 0)[0])

    @property
    def left(self) -> bool:
        return bool(self._bytes[8])

    def count(self) -> None:
        struct.pack_into("q", self._bytes, 0, self.steps + 1)

    def leave(self) -> None:
        self._bytes[8] = 1


class Script:
    """What all scripts share: a model, data, a scope, and a callback that counts, and acts at a step."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder = folder
        self.at = at  #: the step after which something happens, where the script itself makes it happen
        self.progress = Progress(folder / "progress")

    def scope(self, name: str = "runs", **settings: Any) -> Any:
        import fitscope as fs

        # Steps that are compared with plain ones take longer, and end no other way.
        return fs.Scope(self.folder / name, **{"every": 1, "identity": "trust", **settings})

    def model(self, **settings: Any) -> Any:
        import keras

        layer = keras.layers.Dense(
            2, kernel_initializer="zeros"
        )  # nothing to draw: nothing to compile for it
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile("sgd", "mse", **settings)
        return model

    def data(self) -> tuple[Any, Any]:
        import numpy as np

        return np.ones((BATCH * STEPS, 4), "float32"), np.ones((BATCH * STEPS, 2), "float32")

    def fit(self, *scopes: Any, act: Callable[[], None] = lambda: None, model: Any = None) -> None:
        import keras

        counts, at = self.progress, self.at

        class Acts(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                counts.count()
                if batch == at:
                    act()

        x, y = self.data()
        model = model or self.model()
        model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[*scopes, Acts()])


def boom() -> None:
    raise RuntimeError("boom")


@dataclass(frozen=True)
class Kind:
    """A way to end, and what is right afterwards."""

    run: Callable[[Script], None]
    send: tuple[
        str, ...
    ]  #: the signals that the parent sends: the first while it trains, the next after it has left
    status: str
    by: str  #: what `ended_by` says
    code: tuple[int, ...]  #: exit codes; negative for a signal
    only: str  #: the only backend it exists on
    lossless: bool  #: everything captured has to be on disk
    every: int  #: which steps are captured


KINDS: dict[str, Kind] = {}
BOOM = "boom"


def kind(
    name: str,
    *send: str,
    by: str,
    code: tuple[int, ...] = (0,),
    only: str = "",
    lossless: bool = True,
    every: int = 1,
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    def enter(function: Callable[[Script], None]) -> Callable[[Script], None]:
        status = "failed" if by == BOOM else "interrupted"
        KINDS[name] = Kind(function, send, status, by, code, only, lossless, every)
        return function

    return enter


# ---- the ways to end ---------------------------------------------------------------------------------------


@kind("Ctrl-C, caught", "SIGINT", by="KeyboardInterrupt")
def interrupt_caught(script: Script) -> None:
    try:
        script.fit(script.scope())
    except KeyboardInterrupt:
        pass


@kind("Ctrl-C, not caught", "SIGINT", by="KeyboardInterrupt", code=(-2,))
def interrupt(script: Script) -> None:
    script.fit(script.scope())


@kind("Ctrl-C, held", "SIGINT", by="KeyboardInterrupt")
def interrupt_held(script: Script) -> None:
    try:
        script.fit(script.scope())
    except KeyboardInterrupt as error:
        sys.modules["__main__"].held = error  # type: ignore[attr-defined]


@kind("Ctrl-C twice", "SIGINT", "SIGINT", by="KeyboardInterrupt", code=(0, -2), lossless=False)
def interrupt_twice(script: Script) -> None:
    try:
        script.fit(script.scope())
    except KeyboardInterrupt:
        script.progress.leave()


@kind("Ctrl-C in a console", "SIGINT", by="KeyboardInterrupt")
def interrupt_in_a_console(script: Script) -> None:
    """A console holds on to the last exception, as a notebook does, and goes on."""
    import code

    console = code.InteractiveConsole({"script": script})
    console.push("script.fit(script.scope())")
    console.push("1 + 1")


@kind("error in a callback, caught", by=BOOM)
def error_caught(script: Script) -> None:
    try:
        script.fit(script.scope(), act=boom)
    except RuntimeError:
        pass


@kind("error in a callback, held", by=BOOM)
def error_held(script: Script) -> None:
    try:
        script.fit(script.scope(), act=boom)
    except RuntimeError as error:
        sys.modules["__main__"].held = error  # type: ignore[attr-defined]


@kind("error in a callback, not caught", by=BOOM, code=(1,))
def error(script: Script) -> None:
    script.fit(script.scope(), act=boom)


@kind("error in a step, caught", by=BOOM, every=2)
def error_in_a_step(script: Script) -> None:
    """Eager, as a compiled step runs its Python once; every other step is captured, and this one is not."""
    import keras

    class Trap(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            if script.progress.steps == script.at // 8 * 2 + 1:
                raise RuntimeError("boom")
            return x

    model = keras.Sequential([keras.Input((4,)), Trap(), keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    try:
        script.fit(script.scope(every=2), model=model)
    except RuntimeError:
        pass


@kind("sys.exit in a callback, caught", by="SystemExit: 3")
def exit_caught(script: Script) -> None:
    try:
        script.fit(script.scope(), act=lambda: sys.exit(3))
    except SystemExit:
        pass


@kind("sys.exit in a callback, not caught", by="SystemExit: 3", code=(3,))
def exits(script: Script) -> None:
    script.fit(script.scope(), act=lambda: sys.exit(3))


@kind("SIGTERM", "SIGTERM", by="SIGTERM", code=(-15,))
def terminated(script: Script) -> None:
    script.fit(script.scope())


@kind("three scopes, Ctrl-C", "SIGINT", by="KeyboardInterrupt")
def three_scopes(script: Script) -> None:
    try:
        script.fit(script.scope(), script.scope("second"), script.scope("third"))
    except KeyboardInterrupt:
        pass


@kind("full queue, Ctrl-C", "SIGINT", by="KeyboardInterrupt")
def full_queue(script: Script) -> None:
    """The writer is slower than the training, which waits for it."""
    try:
        script.fit(script.scope(memory="20 kB"))
    except KeyboardInterrupt:
        pass


@kind("thread, error caught", by=BOOM)
def in_a_thread(script: Script) -> None:
    """The main thread ends while the training goes on."""

    def train() -> None:
        try:
            script.fit(script.scope(), act=boom)
        except RuntimeError:
            pass

    threading.Thread(target=train).start()


@kind("daemon thread, the script ends", by="the process ended")
def in_a_daemon(script: Script) -> None:
    """It stands still at the end: a daemon thread that Python stops inside of a framework aborts the process, with us or without."""

    def stop() -> None:
        script.progress.leave()
        threading.Event().wait()

    threading.Thread(target=lambda: script.fit(script.scope(), act=stop), daemon=True).start()
    while not script.progress.left:
        threading.Event().wait(0.001)


def _loop(script: Script, scope: Any, act: Callable[[], None]) -> None:
    model = script.model()
    scope.attach(model)
    x, y = (part[:BATCH] for part in script.data())
    for step in range(STEPS):
        model.train_on_batch(x, y)
        script.progress.count()
        if step == script.at:
            act()


@kind("own loop, Ctrl-C", "SIGINT", by="")
def loop_interrupt(script: Script) -> None:
    try:
        _loop(script, script.scope(), lambda: None)
    except KeyboardInterrupt:
        pass


@kind("own loop, error not caught", by=BOOM, code=(1,))
def loop_error(script: Script) -> None:
    _loop(script, script.scope(), boom)


@kind("own step, error caught", by=BOOM, every=2)
def step_error(script: Script) -> None:
    """In a step that is not captured: every other one is."""
    import keras

    scope, model = script.scope(every=2), script.model()
    x = script.data()[0][:BATCH]

    @scope.step(model=model)  # type: ignore[untyped-decorator]
    def step() -> Any:
        if script.progress.steps == script.at // 2 * 2 + 1:
            raise RuntimeError("boom")
        return keras.ops.mean(model(x, training=True))

    try:
        while True:
            step()
            script.progress.count()
    except RuntimeError:
        pass


def _graph() -> tuple[Any, Any]:
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    weight = tf.compat.v1.get_variable("weight", (4, 2))
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.ones((BATCH, 4)), weight) - 1.0))
    tf.compat.v1.train.get_or_create_global_step()
    return tf.compat.v1, tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)


@kind("session, Ctrl-C", "SIGINT", by="KeyboardInterrupt", only="tensorflow")
def session_interrupt(script: Script) -> None:
    tf, train = _graph()
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    try:
        with script.scope().session(sess):
            while True:
                sess.run(train)
                script.progress.count()
    except KeyboardInterrupt:
        pass


@kind("monitored session, error caught", by=BOOM, only="tensorflow")
def monitored_error(script: Script) -> None:
    tf, train = _graph()
    try:
        with tf.train.MonitoredTrainingSession(hooks=[script.scope().hook()]) as sess:
            for step in range(STEPS):
                sess.run(train)
                script.progress.count()
                if step == script.at:
                    boom()
    except RuntimeError:
        pass


def main(name: str, folder: str, at: int) -> None:
    KINDS[name].run(Script(Path(folder), at))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

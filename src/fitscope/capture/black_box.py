"""Keeps the training steps for a black box, on the training thread.

Before each step it draws and copies the batch, and now and then copies the state; after the step it keeps the logs. The step itself is
the user's own or the tapped one, as without a black box, and gets the same batch and state. An error in here ends the keeping, and the
run records it; the training continues. Errors of drawing a batch belong to the user and are raised as they would have been.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fitscope.capture.backends import Adapter, Call, Own
from fitscope.capture.backends._black_box import Keeper
from fitscope.capture.optimizer_taps import optimizers
from fitscope.capture.shield import shield
from fitscope.errors import FitscopeWarning
from fitscope.pipeline.black_box import Kept
from fitscope.pipeline.troubles import described
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.black_box import BlackBox
from fitscope.schedule import Turn
from fitscope.store import black_box as stored
from fitscope.store.software import software
from fitscope.store.structure import taken_apart

MOST_MODEL = 12 << 20  #: the most bytes of a stored configuration


class Keeping:
    """Keeps the steps of one training."""

    def __init__(self, keeper: Keeper, kept: Kept, failed: Callable[[BaseException | str], None]) -> None:
        self.kept = kept
        self._keeper = keeper
        self._failed = failed
        self._turn: Turn | None = None
        self._running: stored.KeptCall | None = None  # the step that has begun and not ended

    @classmethod
    def of(
        cls,
        settings: BlackBox,
        adapter: Adapter,
        anatomy: Anatomy,
        failed: Callable[[BaseException | str], None],
    ) -> Keeping:
        """The keeping of a training that begins now."""
        model = anatomy.model
        keeper = adapter.keeper(model, list(optimizers(anatomy).values()))
        kept = Kept(settings, adapter.to_numpy)
        keeping = cls(keeper, kept, failed)
        compiled = ("run_eagerly", "jit_compile", "steps_per_execution")
        kept.about = {
            "backend": adapter.name,
            "software": software(),
            "accelerator": adapter.on_accelerator(),
            "compiled": {name: getattr(model, name, None) for name in compiled},
            "model_class": f"{type(model).__module__}.{type(model).__qualname__}",
        }
        kept.model, kept.about["model_why"] = _configuration(model)
        together = "several processes train together" if adapter.lockstep() else None
        why_not = together or keeper.why_not()
        if why_not is not None:
            keeping.stop(why_not)
        return keeping

    def stop(self, why: str) -> None:
        """Stops keeping steps, for this reason."""
        if self.kept.trouble is None:
            self.kept.stop(why)
            self._heard()

    def at(self, turn: Turn) -> Keeping | None:
        """Prepares for the step that runs next; None if it is not kept."""
        self._turn = turn
        return self if self.kept.keeping else None

    def before(self, call: Call, own: Own) -> Call:
        """Keeps the step that these arguments begin. Returns the arguments to run it with."""
        try:
            batches, call, facts = self._keeper.held(call)
        except Exception:
            # There is no batch, or drawing it fails. A TensorFlow graph changes some of its state even then.
            with contextlib.suppress(Exception):
                call.of(own)
            raise
        with shield(self._failed):
            try:
                self._keep(batches, call, facts)
            except MemoryError:
                self.stop("this machine has no memory left for a copy of the step")
            except FitscopeWarning:
                raise
            except Exception as error:
                self.stop(described(error))
            self._heard()
        return call

    def _keep(self, batches: list[Any], call: Call, facts: dict[str, Any]) -> None:
        kept, keeper, turn = self.kept, self._keeper, self._turn
        assert turn is not None
        if not batches:
            raise TypeError("the batches of this training cannot be given to a step twice")
        changed = None
        if not kept.due and self._running is None:  # after a failed step the state is unknown
            changed = keeper.changed(call, first=turn.batch == 0)
        if changed is None:
            state, changed = keeper.state(call), {}
            names = [(group, str(variable.path)) for group, variable in keeper.variables()]
            kept.begin(stored.Lap(turn.step, state, names))
        leaves: list[Any] = []
        given: list[str] = []

        def array(leaf: Any) -> Any:
            found = keeper.array(leaf)
            if isinstance(found, np.ndarray):
                given.append("numpy" if isinstance(leaf, np.ndarray | np.generic) else "tensor")
            return found

        forms = [taken_apart(batch, array, leaves) for batch in batches]
        facts = {**facts, "given": given}
        self._running = stored.KeptCall(
            turn.step, turn.epoch, turn.batch, forms, leaves, changed, keeper.random(), facts
        )
        kept.add(self._running)

    def _heard(self) -> None:
        """Reports a limit that ended the keeping, once."""
        if self.kept.trouble is not None and not self.kept.told:
            self.kept.told = True
            self._failed(f"the black box keeps nothing: {self.kept.trouble}")

    def ran(self, result: Any) -> None:
        """Takes the logs of a finished step."""
        with shield(self._failed):
            logs = self._keeper.ran(result)
            if self._running is not None:
                self._running.logs = logs or {}
            self._running = None


def _configuration(model: Any) -> tuple[bytes | None, str | None]:
    """The configuration of a model as JSON, or the reason why there is none."""
    import keras  # the user has imported it by now

    try:
        data = json.dumps(keras.saving.serialize_keras_object(model)).encode()
    except Exception as error:
        return None, described(error)
    return (data, None) if len(data) <= MOST_MODEL else (None, f"its configuration has {len(data):,} bytes")

"""The taps of a legacy Keras step: in the model only while its step is traced, or runs eagerly.

A stand-in for a method is written so that AutoGraph can convert it like the method itself. Functions that look at values are not
converted.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from fitscope.capture.backends._harvest import LOCAL, NO_LOCAL, Harvest
from fitscope.capture.backends._tensorflow_taps import Collector, asking_tapes, detach
from fitscope.capture.patch import leaves
from fitscope.plan.plan import Plan
from fitscope.plan.wants import Wants
from fitscope.sites import Site

KEY = "fitscope"  #: the key of the tapped tensors in the logs of a step


class LegacyTaps:
    """The taps of one kind of step. They are in the model only while it is traced, or runs eagerly."""

    def __init__(self, model: Any, plan: Plan, in_pass: str) -> None:
        every = frozenset(range(len(plan.watches)))
        self.seen = Harvest()
        self._model = model
        self._anatomy = plan.anatomy
        self._wants: Wants = plan.wants(every, in_pass)
        self._in_pass = in_pass
        self._collector: Collector | None = None
        self._undo = ExitStack()
        self._calls: dict[str, int] = {}
        self._zero = tf.Variable(0, trainable=False, dtype=tf.int64) if model.jit_compile else None

    def around(self, step: Any) -> Any:
        """The model's own step, with taps."""
        enter, leave = _unconverted(self._enter), _unconverted(self._leave)

        def tapped(self: Any, data: Any) -> Any:  # noqa: ARG001
            enter(data)
            try:
                logs = step(data)
            finally:
                shown = leave()
            return {**logs, KEY: shown}

        return types.MethodType(tapped, self._model)

    # ---- adding and removing the taps ------------------------------------------------------------------------------------------

    def _enter(self, data: Any) -> None:
        collector = self._collector = Collector()
        self._calls = {}
        self._undo = ExitStack()
        for owner, name, make in self._patches():
            _patch(self._undo, owner, name, make)
        if self._in_pass == "train":
            self._undo.enter_context(asking_tapes(collector, ("loss", "") in self._wants))
        x, y, _ = data_adapter.unpack_x_y_sample_weight(data)
        for kind, value, names in (
            ("inputs", x, None),
            ("targets", y, getattr(self._model, "output_names", None)),
        ):
            if (kind, "") in self._wants:
                self._show(Site(kind), value, names)

    def _leave(self) -> dict[str, Any]:
        self._undo.close()
        collector = self._collector
        assert collector is not None
        collector.no_more_gradients()
        if not self._model.run_eagerly:
            detach(collector, self._zero)
        self.seen.sites.update(collector.harvest.sites)
        self.seen.failed.update(collector.failed)
        if self._in_pass == "train":
            local = (place for place, want in self._wants.items() if want.local)
            self.seen.failed.update({Site.at(place, suffix=LOCAL): NO_LOCAL for place in local})
        return dict(collector.harvest.tensors)

    def _patches(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        for part in self._anatomy.layers:
            if ("activations", part.path) in self._wants or ("gradients", part.path) in self._wants:
                yield part.layer, "call", self._layer(part.path)
        if ("predictions", "") in self._wants:
            yield self._model, "call", self._after_call(self._predictions)
        if ("loss", "") in self._wants:
            yield self._model, "compute_loss", self._after_call(self._loss)
        if any(kind == "weight_gradients" for kind, _ in self._wants):
            yield self._model.optimizer, "apply_gradients", self._apply

    def _layer(self, path: str) -> Callable[[Any], Any]:
        def see(outputs: Any) -> None:
            self._calls[path] = n = self._calls.get(path, 0) + 1
            call = "" if n == 1 else f"#{n}"
            self._show(Site("activations", path, suffix=call), outputs)
            self._show(Site("gradients", path, suffix=call), outputs, gradient=True)

        return self._after_call(see)

    def _after_call(self, see: Callable[[Any], None]) -> Callable[[Any], Any]:
        look = _unconverted(self._guarded(see))

        def make(call: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                outputs = call(*args, **kwargs)
                look(outputs)
                return outputs

            return tapped

        return make

    def _apply(self, apply_gradients: Any) -> Any:
        paths = {id(weight.variable): weight.path for weight in self._anatomy.weights}

        def show(pairs: list[Any]) -> None:
            for gradient, variable in pairs:
                path = paths.get(id(variable))
                if gradient is not None and path is not None:
                    self._show(Site.at(("weight_gradients", path)), gradient)

        look = _unconverted(self._guarded(show))

        def tapped(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            look(pairs)
            return apply_gradients(pairs, *args, **kwargs)

        return tapped

    def _predictions(self, outputs: Any) -> None:
        if not any(site.base == "predictions" for site in self._harvest.sites.values()):
            self._show(Site("predictions"), outputs, getattr(self._model, "output_names", None))

    def _loss(self, loss: Any) -> None:
        if loss is not None:
            assert self._collector is not None
            self._collector.losses.computed(loss)

    # ---- reported values ----------------------------------------------------------------------------------------

    @property
    def _harvest(self) -> Harvest:
        assert self._collector is not None
        return self._collector.harvest

    def _show(self, site: Site, value: Any, names: Any = None, *, gradient: bool = False) -> None:
        collector = self._collector
        assert collector is not None
        if site.place not in self._wants:
            return
        sliced = hasattr(value, "indices")  # slices of an embedding's gradient, which is zero elsewhere
        for suffix, tensor in [("", value)] if sliced else leaves(value, names):
            (collector.see_gradient if gradient else collector.see)(
                site.but(suffix=site.suffix + suffix), tensor
            )

    def _guarded(self, see: Callable[[Any], None]) -> Callable[[Any], None]:
        def guarded(value: Any) -> None:
            try:
                see(value)
            except Exception as error:  # an error in fitscope never becomes an error of the step
                assert self._collector is not None
                self._collector.failed[Site(getattr(see, "__name__", "tap"))] = (
                    f"{type(error).__name__}: {error}"
                )

        return guarded


def _patch(undo: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    own = vars(owner)
    before = own.get(name)
    own[name] = make(getattr(owner, name))
    undo.callback(lambda: own.pop(name, None) if before is None else own.update({name: before}))


def _unconverted(function: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)

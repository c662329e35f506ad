"""The taps on a model's layers, predictions, loss and metrics, and on the values of `fs.tap`.

Every tap runs the user's own method first and returns its result, or an identity of it. An error in between becomes the reason
why that site was not recorded.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fitscope.capture.collector import Collector, guarded, kept, leaves, rebuilt
from fitscope.pipeline.troubles import described
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.wants import LOSS, SAMPLE_LOSS, Wants
from fitscope.sites import Site

Patch = tuple[
    Any, str, Callable[[Any], Any]
]  #: an object, the name of a method, and a function that makes its replacement


class Taps:
    """The patches of one model, and the number of calls of each layer."""

    def __init__(self, anatomy: Anatomy, wants: Wants, collector: Collector) -> None:
        self.anatomy = anatomy
        self.wants = wants
        self.collector = collector
        self.calls: Counter[str] = Counter()
        self._metrics: list[tuple[str, Any]] = []  # the metrics of this step, by name
        self._updated: set[int] = set()
        self._metric_sites: dict[tuple[int, str], Site] = {}
        self._tracked: Any = None  # the value given to the model's own loss metric
        self.states: dict[
            str, tuple[Any, list[Any]]
        ] = {}  #: metrics by name, each with its state after this batch alone

    def patches(self) -> Iterator[Patch]:
        model = self.anatomy.model
        for part in self.anatomy.layers:
            if self.wants.of_layer(part.path):
                tap = self._layer(part.path)
                # Keras runs one of the two: the second if the layer is quantized.
                yield part.layer, "call", tap
                if getattr(part.layer, "quantization_mode", None) is not None:
                    yield part.layer, "quantized_call", tap
        if ("predictions", "") in self.wants:
            yield model, "call", self._predictions
        if LOSS in self.wants or SAMPLE_LOSS in self.wants:
            yield model, "compute_loss", self._loss
        metrics = model.metrics if LOSS in self.wants or ("metrics", "") in self.wants else ()
        if LOSS in self.wants:
            for metric in own_loss_metrics(model, metrics):
                yield metric, "update_state", self._tracker
        if ("metrics", "") in self.wants:
            self._metrics = batch_metrics(model, metrics)
            for name, metric in self._metrics:
                yield metric, "update_state", self._metric(name, metric)

    def account(self) -> None:
        """Ends the step: lists the wanted sites that it did not reach."""
        if self._tracked is not None and not self.collector.losses.any:
            with kept(self.collector, Site("loss")):
                self.collector.losses.tracked(self._tracked)
        for part in self.anatomy.layers:
            for site in self.wants.of_layer(part.path):
                if not self.calls[part.path]:
                    self.collector.failed.setdefault(site, NOT_CALLED)
        for name, metric in self._metrics:
            if id(metric) not in self._updated:
                for each in [m.name for m in getattr(metric, "metrics", ())] or [name]:
                    site = Site("metrics", label=each)
                    self.collector.failed.setdefault(site, "the step does not update it")

    def _layer(self, path: str) -> Callable[[Any], Any]:
        inside = False  # one of the two methods may call the other
        sites = self.wants.of_layer(path)

        def make(call: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                if inside:
                    return call(*args, **kwargs)
                inside = True
                try:
                    outputs = call(*args, **kwargs)
                finally:
                    inside = False
                with kept(self.collector, *sites):
                    if self.collector.recomputing:
                        self._seen_again(path, outputs)
                        return outputs
                    return self._seen(path, outputs)
                return outputs

            return tapped

        return make

    def _seen(self, path: str, outputs: Any) -> Any:
        """Records the outputs of a layer, and returns the tensors to continue with: usually the same."""
        self.calls[path] += 1
        call = _numbered(self.calls[path])
        if hasattr(outputs, "dtype") and not isinstance(outputs, tuple):  # most layers return one tensor
            return self._shown(path, call, outputs)
        seen = [self._shown(path, call + suffix, tensor) for suffix, tensor in leaves(outputs)]
        if not seen:
            self.collector.failed.update(
                dict.fromkeys(self.wants.of_layer(path), "the layer returns no tensor")
            )
        if all(new is old for new, (_, old) in zip(seen, leaves(outputs), strict=True)):
            return outputs
        return rebuilt(outputs, iter(seen))

    def _shown(self, path: str, suffix: str, tensor: Any) -> Any:
        """Records one output of a layer and its gradient, and returns the tensor to continue with."""
        for site in self.wants.of_layer(path):
            one = Site(site.base, path, suffix=suffix) if suffix else site
            tensor = guarded(self.collector, one, tensor, gradient=site.base == "gradients")
        return tensor

    def _seen_again(self, path: str, outputs: Any) -> None:
        """Takes an output that the backward pass computes again: on TensorFlow only that has a gradient.

        It is unknown which call of the layer the backward pass repeats, so with several calls none gets it.
        """
        if ("gradients", path) not in self.wants:
            return
        calls = self.calls[path]
        for call in range(1, calls + 1):
            for suffix, tensor in leaves(outputs):
                site = Site("gradients", path, suffix=_numbered(call) + suffix)
                self.collector.see_again(site, tensor if calls == 1 else None)

    def _predictions(self, call: Any) -> Any:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            if self.collector.recomputing:
                return outputs
            with kept(self.collector, Site("predictions")):
                self.calls[""] += 1
                call_number = _numbered(self.calls[""])
                names = getattr(self.anatomy.model, "output_names", None)
                for suffix, tensor in leaves(outputs, names):
                    guarded(self.collector, Site("predictions", suffix=call_number + suffix), tensor)
            return outputs

        return tapped

    def show(self, name: str, value: Any) -> None:
        """Records the value of `fs.tap`."""
        tap = Site("taps", label=name)
        if self.wants.at(tap.place) is None or self.collector.recomputing:
            return
        with kept(self.collector, tap):
            self.calls[tap] += 1
            times = self.calls[tap]
            if times == 2:
                self.collector.noted.append(
                    f"{tap}: this name is used more than once in a step; later uses are recorded as {tap}#2 and so on"
                )
            for suffix, tensor in leaves(value):
                site = Site("taps", label=name, suffix=_numbered(times) + suffix)
                guarded(self.collector, site, tensor)

    def _loss(self, compute_loss: Any) -> Any:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            if SAMPLE_LOSS in self.wants:
                with kept(self.collector, Site("sample_loss")):
                    self._samples(inspect.signature(compute_loss).bind(*args, **kwargs).arguments)
            loss = compute_loss(*args, **kwargs)
            if loss is not None and LOSS in self.wants:
                with kept(self.collector, Site("loss")):
                    self.collector.losses.computed(loss)
            return loss

        return tapped

    def _tracker(self, update_state: Any) -> Any:
        """Records the loss that a custom step computes without a gradient, but tracks."""

        def tapped(*args: Any, **kwargs: Any) -> Any:
            result = update_state(*args, **kwargs)
            self._tracked = args[0] if args else kwargs.get("values")
            return result

        return tapped

    def _samples(self, given: Mapping[str, Any]) -> None:
        names = getattr(self.anatomy.model, "output_names", None)
        masks = [getattr(tensor, "_keras_mask", None) for _, tensor in leaves(given.get("y_pred"))]
        for part in ("y", "y_pred", "sample_weight"):
            show_sample(self.collector, part, given.get(part), names)
        show_sample(self.collector, "mask", masks, names)

    def _metric(self, own: str, metric: Any) -> Callable[[Any], Any]:
        """Computes the metric of this batch alone, with Keras's stateless form, next to the stateful update."""
        state: list[Any] | None = None
        inside = False  # the stateless form calls update_state itself

        def make(update_state: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal state, inside
                result = update_state(*args, **kwargs)
                if inside:
                    return result
                inside = True
                self._updated.add(id(metric))
                try:
                    fresh = metric.stateless_reset_state() if state is None else state
                    state = metric.stateless_update_state(fresh, *args, **kwargs)
                    self.states[own] = metric, state
                    self.show_metric(own, metric, state)
                except Exception as error:
                    why = described(error)
                    site = Site("metrics", label=own)
                    self.collector.failed[site] = why
                    self.collector.noted.append(f"{site} has no value for one batch alone: {why}")
                finally:
                    inside = False
                return result

            return tapped

        return make

    def show_metric(self, own: str, metric: Any, state: list[Any]) -> None:
        """Records the results of a metric that has this state."""
        values = metric.stateless_result(state)
        for name, value in values.items() if isinstance(values, Mapping) else [(own, values)]:
            guarded(self.collector, self._metric_site(metric, name), value)

    def _metric_site(self, metric: Any, name: str) -> Site:
        """A separate site for each metric: of two with the same name, the second is `name_1`, as in Keras's logs."""
        known = self._metric_sites
        if (id(metric), name) not in known:
            site, n = Site("metrics", label=name), 0
            while site in known.values():
                n += 1
                site = Site("metrics", label=f"{name}_{n}")
            known[id(metric), name] = site
        return known[id(metric), name]


NOT_CALLED = (
    "the step does not call this layer, or calls it inside a function that was compiled before the step was"
)


def _numbered(call: int) -> str:
    return "" if call == 1 else f"#{call}"


def show_sample(collector: Collector, part: str, value: Any, names: list[str] | None = None) -> None:
    """Reports data of the samples: see `sample_loss.py`."""
    for suffix, tensor in leaves(value, names):
        guarded(collector, Site("sample_loss", label=part, suffix=suffix), tensor)


def own_loss_metrics(model: Any, metrics: Iterable[Any]) -> list[Any]:
    """The metrics with which the model tracks its own loss: those called "loss" that are not Keras's."""
    keras_own = getattr(model, "_loss_tracker", None)
    return [metric for metric in metrics if metric.name == "loss" and metric is not keras_own]


def batch_metrics(model: Any, metrics: Iterable[Any]) -> list[tuple[str, Any]]:
    """The metrics to compute on the batch alone, by name: those of compile(), and the model's own."""
    compiled = getattr(model, "_compile_metrics", None)
    inner = {id(m) for m in getattr(compiled, "metrics", ())} | {id(getattr(model, "_loss_tracker", None))}
    own = [(m.name, m) for m in metrics if id(m) not in inner and m is not compiled]
    return ([(compiled.name, compiled)] if compiled is not None else []) + own

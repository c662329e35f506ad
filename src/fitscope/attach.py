"""Puts the taps into a model for the length of one step or one trace, and takes them out again.

A tap is an identity: the layer's own `call` runs, its output is shown to the collector, and goes on. What is patched is
patched on the instances (never on a Keras class), inside a `with` block, and undone in reverse order whatever
happens. Outside that block the model is the user's own, so that saving, cloning and exporting never meet us.

The collector is the adapter's: `see(site, tensor)` for a value, `see_gradient(site, tensor)` for the gradient that will
flow back through it; both return the tensor to go on with. Nothing in here may raise into the user's step: an error
at a site is kept in `collector.failed` and that site is left alone.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fitscope.anatomy import Anatomy
from fitscope.plan import LEARNING_RATE, LOSS_SCALE, SAMPLE_LOSS, Place, Wants, scaled_dynamically
from fitscope.tapping import listening


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the step that was really passed, and what is wanted of it."""

    name: str
    place: Place
    batched: bool


class Collector(Protocol):
    """Where taps report to. One per execution of an eager step, or per trace of a compiled one."""

    failed: dict[str, str]  #: site → why it could not be seen
    noted: list[str]  #: what the user should hear of

    def see(self, site: Site, tensor: Any) -> Any: ...

    def see_gradient(self, site: Site, tensor: Any) -> Any: ...


@contextmanager
def attached(
    anatomy: Anatomy, wants: Wants, collector: Collector, *, stateless: bool = False
) -> Iterator[None]:
    """The model with taps at the wanted places, for the length of the block.

    `stateless`: the step is the user's own and may carry the weights through it as bare arrays.
    """
    taps = _Taps(anatomy, wants, collector, stateless)
    with ExitStack() as undo:
        undo.enter_context(listening(taps.show))
        for owner, name, make in taps.patches():
            undo.enter_context(patched(owner, name, make))
        yield


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` replaced by `make(original)` on this instance alone.

    Written straight into the instance's dictionary: Keras and torch watch attribute assignment, and a tap is not a part
    of the model.
    """
    own = vars(owner)
    missing = object()
    before = own.get(name, missing)
    own[name] = make(getattr(owner, name))
    try:
        yield
    finally:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before


def show_batch(wants: Wants, anatomy: Anatomy, collector: Collector, data: Any) -> None:
    """Reports what the step was given. A custom step may be given anything: then all of it is its input."""
    from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

    model = anatomy.model
    try:
        x, y, _ = unpack_x_y_sample_weight(data)
    except ValueError:
        x, y = data, None
    for kind, value, names in (
        ("inputs", x, [tensor.name for tensor in getattr(model, "inputs", None) or ()]),
        ("targets", y, getattr(model, "output_names", None)),
    ):
        if (kind, "") in wants:
            for suffix, tensor in leaves(value, names):
                guarded(collector, Site(kind + suffix, (kind, ""), True), tensor)
        if kind == "inputs" and SAMPLE_LOSS in wants:
            _show_sample(collector, "x", value, names)


def _show_sample(collector: Collector, part: str, value: Any, names: list[str] | None = None) -> None:
    """Reports something that the samples are made of: see `samples.py`."""
    for suffix, tensor in leaves(value, names):
        guarded(collector, Site(f"sample_loss/{part}{suffix}", SAMPLE_LOSS, True), tensor)


def leaves(structure: Any, names: list[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The tensors of a nested structure with the end of their site's name: "", "/name" or "[0]"."""
    if isinstance(structure, Mapping):
        for key in structure:
            for suffix, tensor in leaves(structure[key]):
                yield f"/{key}{suffix}", tensor
    elif isinstance(structure, list | tuple):
        if len(structure) == 1:
            yield from leaves(structure[0])
            return
        named = names if names is not None and len(names) == len(structure) else None
        for i, item in enumerate(structure):
            for suffix, tensor in leaves(item):
                yield (f"/{named[i]}" if named else f"[{i}]") + suffix, tensor
    elif structure is not None:
        yield "", structure


def rebuilt(structure: Any, tensors: Iterator[Any]) -> Any:
    """The same structure with its leaves replaced, in the order of `leaves`."""
    if isinstance(structure, Mapping):
        same_type: Any = type(structure)
        return same_type((key, rebuilt(structure[key], tensors)) for key in structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(rebuilt(item, tensors) for item in structure))
    if isinstance(structure, list | tuple):
        return type(structure)([rebuilt(item, tensors) for item in structure])
    return None if structure is None else next(tensors)


def guarded(collector: Collector, site: Site, tensor: Any, *, gradient: bool = False) -> Any:
    """Shows a tensor to the collector; an error of ours never becomes an error of the step."""
    try:
        return (collector.see_gradient if gradient else collector.see)(site, tensor)
    except Exception as error:
        collector.failed[site.name] = f"{type(error).__name__}: {error}"
        return tensor


class _Taps:
    """The patches for one model, and how often each layer was called so far."""

    def __init__(self, anatomy: Anatomy, wants: Wants, collector: Collector, stateless: bool) -> None:
        self.anatomy = anatomy
        self.wants = wants
        self.collector = collector
        self.calls: Counter[str] = Counter()
        self.applying = False
        self.stateless = stateless

    def patches(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        model = self.anatomy.model
        for part in self.anatomy.layers:
            if ("activations", part.path) in self.wants or ("gradients", part.path) in self.wants:
                yield part.layer, "call", self._layer(part.path)
        if ("predictions", "") in self.wants:
            yield model, "call", self._predictions
        if ("loss", "") in self.wants:
            yield model, "compute_loss", self._loss
        kinds = {kind for kind, _ in self.wants}
        if "weight_gradients" in kinds or (self.stateless and "updates" in kinds):
            for optimizer in optimizers(self.anatomy):
                yield optimizer, "apply", self._apply(optimizer)
                yield optimizer, "stateless_apply", self._stateless_apply(optimizer)
        if self.stateless and "weights" in kinds:
            yield model, "stateless_call", self._stateless_call
        if LOSS_SCALE in self.wants and scaled_dynamically(model):
            yield model.optimizer, "scale_loss", self._loss_scale(model.optimizer)
        if LEARNING_RATE in self.wants:
            for optimizer in optimizers(self.anatomy)[:1]:
                yield optimizer, "apply", self._rate(optimizer)
                yield optimizer, "stateless_apply", self._stateless_rate(optimizer)
        if ("metrics", "") in self.wants:
            for prefix, metric in batch_metrics(model):
                yield metric, "update_state", self._metric(prefix, metric)

    def _layer(self, path: str) -> Callable[[Any], Any]:
        value, gradient = ("activations", path) in self.wants, ("gradients", path) in self.wants

        def make(call: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                outputs = call(*args, **kwargs)
                self.calls[path] += 1
                name = path if self.calls[path] == 1 else f"{path}#{self.calls[path]}"
                seen = []
                for suffix, tensor in leaves(outputs):
                    if value:
                        site = Site(f"activations/{name}{suffix}", ("activations", path), True)
                        tensor = guarded(self.collector, site, tensor)
                    if gradient:
                        site = Site(f"gradients/{name}{suffix}", ("gradients", path), True)
                        tensor = guarded(self.collector, site, tensor, gradient=True)
                    seen.append(tensor)
                return self._with(outputs, seen)

            return tapped

        return make

    def _with(self, outputs: Any, seen: list[Any]) -> Any:
        """The outputs with the tensors the collector wants to go on with: mostly just what they were."""
        if all(new is old for new, (_, old) in zip(seen, leaves(outputs), strict=True)):
            return outputs
        return rebuilt(outputs, iter(seen))

    def _predictions(self, call: Any) -> Any:
        place = ("predictions", "")

        def tapped(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            self.calls[""] += 1
            name = "predictions" if self.calls[""] == 1 else f"predictions#{self.calls['']}"
            names = getattr(self.anatomy.model, "output_names", None)
            for suffix, tensor in leaves(outputs, names):
                guarded(self.collector, Site(name + suffix, place, True), tensor)
            return outputs

        return tapped

    def show(self, name: str, value: Any) -> None:
        """What `fs.tap` was given."""
        place = ("taps", name)
        if self.wants.at(place) is None:
            return
        self.calls["taps/" + name] += 1
        times = self.calls["taps/" + name]
        if times == 2:
            self.collector.noted.append(
                f"taps/{name}: this name is used more than once in a step; later uses are recorded as taps/{name}#2 and so on"
            )
        for suffix, tensor in leaves(value):
            site = f"taps/{name}{suffix}" if times == 1 else f"taps/{name}#{times}{suffix}"
            guarded(self.collector, Site(site, place, True), tensor)

    def _loss(self, compute_loss: Any) -> Any:
        signature = inspect.signature(compute_loss)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            if SAMPLE_LOSS in self.wants:
                given = signature.bind(*args, **kwargs).arguments
                names = getattr(self.anatomy.model, "output_names", None)
                masks = [getattr(tensor, "_keras_mask", None) for _, tensor in leaves(given.get("y_pred"))]
                for part in ("y", "y_pred", "sample_weight"):
                    _show_sample(self.collector, part, given.get(part), names)
                _show_sample(self.collector, "mask", masks, names)
            loss = compute_loss(*args, **kwargs)
            if loss is not None:
                guarded(self.collector, Site("loss", ("loss", ""), False), loss)
            return loss

        return tapped

    def _loss_scale(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(scale_loss: Any) -> Any:
            def tapped(loss: Any) -> Any:
                # Read where the step reads it: on JAX the variable has its value only here, in Keras's stateless scope.
                scale = optimizer.dynamic_scale.value if optimizer.built else optimizer.initial_scale
                guarded(self.collector, Site("loss_scale", LOSS_SCALE, False), scale)
                return scale_loss(loss)

            return tapped

        return make

    def _show_rate(self, optimizer: Any) -> None:
        site = Site("learning_rate", LEARNING_RATE, False)
        self.calls[site.name] += 1
        try:
            # A function of the user's own may count its calls; a schedule can be asked once more.
            given = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
            own = callable(given) and not hasattr(given, "get_config")
            if self.calls[site.name] == 1 and not own:
                rate = optimizer.learning_rate
                guarded(self.collector, site, getattr(rate, "value", rate))
        except Exception as error:
            self.collector.failed[site.name] = f"{type(error).__name__}: {error}"

    def _rate(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(apply: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                self._show_rate(optimizer)
                return apply(*args, **kwargs)

            return tapped

        return make

    def _stateless_rate(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(stateless_apply: Any) -> Any:
            def tapped(optimizer_variables: Any, *args: Any, **kwargs: Any) -> Any:
                # A loss scale may apply inside of a condition, out of which nothing is seen: so it is read before.
                from keras import StatelessScope

                with StatelessScope(list(zip(optimizer.variables, optimizer_variables, strict=False))):
                    self._show_rate(optimizer)
                return stateless_apply(optimizer_variables, *args, **kwargs)

            return tapped

        return make

    def _apply(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(apply: Any) -> Any:
            def tapped(grads: Any, trainable_variables: Any = None) -> Any:
                grads = list(grads)
                if not self.applying:  # stateless_apply has shown them already
                    variables = list(trainable_variables) if trainable_variables is not None else None
                    self._weight_gradients(grads, variables or known_variables(optimizer, self.anatomy.model))
                return apply(grads, trainable_variables)

            return tapped

        return make

    def _stateless_apply(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(stateless_apply: Any) -> Any:
            def tapped(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
                # Here the variables are bare arrays; which weight each one is follows from its position.
                variables = known_variables(optimizer, self.anatomy.model)
                self._weight_gradients(grads, variables)
                self.applying = True
                try:
                    after, state = stateless_apply(optimizer_variables, grads, trainable_variables)
                finally:
                    self.applying = False
                if self.stateless:
                    moved = (new - old for new, old in zip(after, trainable_variables, strict=True))
                    self._of_weights("updates", variables, moved)
                return after, state

            return tapped

        return make

    def _stateless_call(self, stateless_call: Any) -> Any:
        """What the model is called with are its weights, by position."""

        def tapped(trainable: Any, non_trainable: Any, *args: Any, **kwargs: Any) -> Any:
            model = self.anatomy.model
            self._of_weights("weights", model.trainable_variables, trainable)
            self._of_weights("weights", model.non_trainable_variables, non_trainable)
            return stateless_call(trainable, non_trainable, *args, **kwargs)

        return tapped

    def _weight_gradients(self, grads: list[Any], variables: list[Any]) -> None:
        self._of_weights("weight_gradients", variables, grads)

    def _of_weights(self, kind: str, variables: Iterable[Any], values: Iterable[Any]) -> None:
        paths = {id(weight.variable): weight.path for weight in self.anatomy.weights}
        for variable, value in zip(variables, values, strict=False):
            path = paths.get(id(variable))
            if value is not None and path is not None and (kind, path) in self.wants:
                guarded(self.collector, Site(f"{kind}/{path}", (kind, path), False), value)

    def _metric(self, prefix: str, metric: Any) -> Callable[[Any], Any]:
        """The metric on this batch alone: Keras's stateless form of it, beside the stateful update."""
        state: list[Any] | None = None
        inside = False  # the stateless form calls update_state itself

        def make(update_state: Any) -> Any:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal state, inside
                result = update_state(*args, **kwargs)
                if inside:
                    return result
                inside = True
                try:
                    fresh = metric.stateless_reset_state() if state is None else state
                    state = metric.stateless_update_state(fresh, *args, **kwargs)
                    values = metric.stateless_result(state)
                    for name, value in values.items() if isinstance(values, Mapping) else [(prefix, values)]:
                        guarded(self.collector, Site(f"metrics/{name}", ("metrics", ""), False), value)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
                    self.collector.failed[f"metrics/{prefix}"] = why
                    self.collector.noted.append(f"metrics/{prefix} has no value for one batch alone: {why}")
                finally:
                    inside = False
                return result

            return tapped

        return make


def optimizers(anatomy: Anatomy) -> list[Any]:
    """The model's optimizer, any other that a custom training step keeps on the model, and those of a loop."""
    model = anatomy.model
    found = [getattr(model, "optimizer", None), *vars(model).values(), *anatomy.optimizers]
    unique = {id(o): o for o in found if hasattr(o, "stateless_apply") and hasattr(o, "apply_gradients")}
    return list(unique.values())


def known_variables(optimizer: Any, model: Any) -> list[Any]:
    """The variables an optimizer was built on, in its order."""
    return list(getattr(optimizer, "_trainable_variables", None) or model.trainable_variables)


def batch_metrics(model: Any) -> list[tuple[str, Any]]:
    """The metrics to take on the batch alone: those given to compile() as one, and the model's own."""
    compiled = getattr(model, "_compile_metrics", None)
    inner = {id(m) for m in getattr(compiled, "metrics", ())} | {id(getattr(model, "_loss_tracker", None))}
    own = [(m.name, m) for m in model.metrics if id(m) not in inner and m is not compiled]
    return ([(compiled.name, compiled)] if compiled is not None else []) + own

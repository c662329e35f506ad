"""The taps on a model's optimizers: their gradients, the updates of the weights, learning rates and loss scale.

A model has one optimizer, or a custom step keeps several on it (a GAN). Several optimizers have names, the attributes that hold
them. A single one has no name, and its sites are `learning_rate` and `loss_scale`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fitscope.capture.collector import Collector, guarded, kept
from fitscope.capture.layer_taps import Patch
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.plan import scaled_dynamically
from fitscope.plan.wants import LEARNING_RATE, LOSS, LOSS_SCALE, Wants
from fitscope.sites import Site


class OptimizerTaps:
    """The patches for the optimizers of one model."""

    def __init__(self, anatomy: Anatomy, wants: Wants, collector: Collector, stateless: bool) -> None:
        self.anatomy = anatomy
        self.wants = wants
        self.collector = collector
        self.stateless = stateless
        self.applying = False  # inside the stateless form, which calls the stateful one
        self.calls: Counter[str] = Counter()
        self._paths = {id(weight.variable): weight.path for weight in anatomy.weights}

    def patches(self) -> Iterator[Patch]:
        model = self.anatomy.model
        for name, optimizer in optimizers(self.anatomy).items():
            yield optimizer, "apply", self._apply(optimizer, name)
            yield optimizer, "stateless_apply", self._stateless_apply(optimizer, name)
        if self.stateless and any(kind == "weights" for kind, _ in self.wants):
            yield model, "stateless_call", self._stateless_call
        if LOSS_SCALE in self.wants and scaled_dynamically(model):
            yield model.optimizer, "scale_loss", self._loss_scale(model.optimizer)

    def _apply(self, optimizer: Any, name: str) -> Callable[[Any], Any]:
        def make(apply: Any) -> Any:
            def tapped(grads: Any, trainable_variables: Any = None) -> Any:
                if self.applying:  # stateless_apply has reported everything already
                    return apply(grads, trainable_variables)
                grads = list(grads)
                with kept(self.collector):
                    given = list(trainable_variables) if trainable_variables is not None else None
                    self._applied(optimizer, name, grads, given or self._known(optimizer))
                return apply(grads, trainable_variables)

            return tapped

        return make

    def _stateless_apply(self, optimizer: Any, name: str) -> Callable[[Any], Any]:
        def make(stateless_apply: Any) -> Any:
            def tapped(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
                with kept(self.collector):
                    from keras import StatelessScope

                    # Here the variables are bare arrays; the position of each says which weight it is. A loss-scale optimizer
                    # applies the gradients inside a `cond`, which fitscope cannot see into. So fitscope reads the gradients
                    # and the learning rate before the call.
                    with StatelessScope(list(zip(optimizer.variables, optimizer_variables, strict=False))):
                        self._applied(optimizer, name, grads, self._known(optimizer))
                self.applying = True
                try:
                    after, state = stateless_apply(optimizer_variables, grads, trainable_variables)
                finally:
                    self.applying = False
                if self.stateless:
                    with kept(self.collector):
                        moved = (new - old for new, old in zip(after, trainable_variables, strict=True))
                        self._of_weights("updates", self._known(optimizer), moved)
                return after, state

            return tapped

        return make

    def _applied(self, optimizer: Any, name: str, grads: Iterable[Any], variables: list[Any]) -> None:
        """Takes the gradients that an optimizer gets for these variables."""
        if LOSS in self.wants:
            self.collector.losses.applied(name)
        self._of_weights("weight_gradients", variables, grads)
        if LEARNING_RATE in self.wants:
            self._rate(optimizer, Site("learning_rate", label=name))

    def _rate(self, optimizer: Any, site: Site) -> None:
        self.calls[site] += 1
        with kept(self.collector, site):
            # A function of the user may count its calls, so only a schedule is called again.
            given = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
            own = callable(given) and not hasattr(given, "get_config")
            if self.calls[site] == 1 and not own:
                rate = getattr(optimizer, "learning_rate", None)  # Keras's MultiOptimizer has none
                if rate is not None:
                    guarded(self.collector, site, getattr(rate, "value", rate))

    def _loss_scale(self, optimizer: Any) -> Callable[[Any], Any]:
        def make(scale_loss: Any) -> Any:
            def tapped(loss: Any) -> Any:
                with kept(self.collector, Site.at(LOSS_SCALE)):
                    # Read where the step reads it: on JAX the variable has its value only here, in Keras's stateless scope.
                    scale = optimizer.dynamic_scale.value if optimizer.built else optimizer.initial_scale
                    guarded(self.collector, Site.at(LOSS_SCALE), scale)
                return scale_loss(loss)

            return tapped

        return make

    def _stateless_call(self, stateless_call: Any) -> Any:
        """Handles a stateless call, whose arguments are the model's weights by position."""

        def tapped(trainable: Any, non_trainable: Any, *args: Any, **kwargs: Any) -> Any:
            with kept(self.collector):
                model = self.anatomy.model
                self._of_weights("weights", model.trainable_variables, trainable)
                self._of_weights("weights", model.non_trainable_variables, non_trainable)
            return stateless_call(trainable, non_trainable, *args, **kwargs)

        return tapped

    def _of_weights(self, kind: str, variables: Iterable[Any], values: Iterable[Any]) -> None:
        for variable, value in zip(variables, values, strict=False):
            path = self._paths.get(id(variable))
            site = None if path is None else self.wants.site((kind, path))
            if site is None:
                continue
            if value is None:
                self.collector.failed[site] = (
                    "its optimizer is given no gradient of it: the loss is not made from it"
                )
            else:
                guarded(self.collector, site, value)

    def _known(self, optimizer: Any) -> list[Any]:
        """The variables that an optimizer was built on, in its order."""
        return list(
            getattr(optimizer, "_trainable_variables", None) or self.anatomy.model.trainable_variables
        )


def optimizers(anatomy: Anatomy) -> dict[str, Any]:
    """The optimizers that train a model, by name: its own, those that a custom step keeps on it, and those of a loop.

    A single optimizer has the name "".
    """
    model, found = anatomy.model, {id(o): (_loops(n), o) for n, o in enumerate(anatomy.optimizers, 1)}
    # If the user names the optimizer of a loop, the compiled one does not count.
    own = None if found else getattr(model, "optimizer", None)
    # Keras also keeps the parts of a model in private lists, whose names begin with an underscore: they come last.
    held = sorted(_holders(model), key=lambda item: item[0].startswith("_"))
    for name, thing in [("optimizer", own), *held]:
        if not (found and thing is getattr(model, "optimizer", None)):
            for label, optimizer in _inside(name, thing):
                found.setdefault(id(optimizer), (label, optimizer))
    alone = [("", optimizer) for _, optimizer in found.values()]
    return dict(found.values() if len(found) > 1 else alone)


def _loops(number: int) -> str:
    return "loop" if number == 1 else f"loop#{number}"


def _holders(model: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that may be optimizers or hold some. An eager step asks at each of its steps."""
    for name, thing in vars(model).items():
        if _is_optimizer(thing) or (isinstance(thing, list | tuple | Mapping) and thing):
            yield name, thing


def _inside(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """An optimizer, or those of a short list or dictionary, with their names."""
    if _is_optimizer(thing):
        yield name, thing
    elif isinstance(thing, Mapping) and len(thing) <= _MOST:
        yield from ((f"{name}/{key}", item) for key, item in thing.items() if _is_optimizer(item))
    elif isinstance(thing, list | tuple) and len(thing) <= _MOST:
        yield from ((f"{name}[{number}]", item) for number, item in enumerate(thing) if _is_optimizer(item))


def _is_optimizer(thing: Any) -> bool:
    kind = type(thing)  # looking up an attribute that a torch module lacks is slow
    return hasattr(kind, "stateless_apply") and hasattr(kind, "apply_gradients")


_MOST = 100  #: the longest list that may be one of optimizers; a longer one is data

"""The rows of the tables: plain `fit`, `fit` with a scope in different settings, and what people use instead.

Each is what it adds to the callbacks of `fit`. All rows of a table train one and the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import keras
import numpy as np
from names import AGAIN, BUDGET, EXACT, SAMPLED, SECOND, TENSORBOARD, TRAINSCOPE, TWIN, UNCAPTURED, WHOLE

import fitscope as fs


@dataclass(frozen=True, slots=True)
class Kind:
    """A row before there is a model: the callbacks, made once the model is there."""

    #: Of its directory, the model and a batch.
    callbacks: Callable[[Path, keras.Model, np.ndarray], list[Any]]
    longer: int = 1
    backend: str | None = None  #: where alone it exists


def kinds() -> dict[str, Kind]:
    """All of them, by name, in the order of the tables. A budget is kept over many steps, and one in ten
    needs ten, so those rows train longer."""
    whole = [fs.activations(keep="tensor"), fs.gradients(keep="tensor")]
    return {
        AGAIN: Kind(lambda to, model, batch: []),
        UNCAPTURED: Kind(lambda to, model, batch: [fs.Scope(to, every=fs.steps(10**12))]),
        BUDGET: Kind(lambda to, model, batch: [fs.Scope(to, allowance=0)], longer=4),
        SAMPLED: Kind(lambda to, model, batch: [fs.Scope(to, every=1)]),
        EXACT: Kind(lambda to, model, batch: [fs.Scope(to, every=1, exact=True)]),
        TWIN: Kind(lambda to, model, batch: [fs.Scope(to, every=1, identity="twin")]),
        WHOLE: Kind(lambda to, model, batch: [fs.Scope(to, whole, every=10, limit=None)], longer=2),
        SECOND: Kind(lambda to, model, batch: [SecondForward(batch)]),
        TENSORBOARD: Kind(
            lambda to, model, batch: [keras.callbacks.TensorBoard(str(to), histogram_freq=1, update_freq=1)]
        ),
        TRAINSCOPE: Kind(lambda to, model, batch: [trainscope(to)], backend="torch"),
    }


def chosen(globs: list[str], backend: str) -> dict[str, Kind]:
    """Those whose names match, of those that exist on a backend."""
    return {
        name: kind
        for name, kind in kinds().items()
        if kind.backend in (None, backend) and any(fnmatch(name, glob) for glob in globs)
    }


class SecondForward(keras.callbacks.Callback):
    """What people write: run the layers again, on the same batch, after the step, and reduce with NumPy."""

    def __init__(self, batch: np.ndarray) -> None:
        super().__init__()
        self.batch = batch
        self.probe: keras.Model | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model = self.model  # on JAX this is what brings the weights back from the training state
        if self.probe is None:
            self.probe = keras.Model(model.inputs, [layer.output for layer in model.layers])
        for output in self.probe.predict_on_batch([self.batch]):
            float(np.mean(output)), float(np.std(output)), float(np.min(output)), float(np.max(output))


def trainscope(to: Path) -> keras.callbacks.Callback:
    """trainscope in Keras's `fit`, as its README has it in a loop: attached to the layers, told of each step between backward
    and update, with its own settings (activations at each 5th step, histograms of weights at each 50th).

    It looks at the leaves of a torch module and reads a torch optimizer. Keras keeps the parameters of all layers in one
    place instead, so it is given a module with one leaf for each layer, which holds that layer's parameters and hears
    its outputs; and the second moments of Adam under torch's name for them.
    """
    import torch
    from trainscope import TrainScope, TrainScopeConfig

    class Adam:
        """A Keras optimizer as trainscope reads one."""

        def __init__(self, model: keras.Model) -> None:
            moments = [v.value for v in model.optimizer.variables if v.path.endswith("velocity")]
            pairs = zip(model.trainable_variables, moments, strict=True)
            self.state = {variable.value: {"exp_avg_sq": moment} for variable, moment in pairs}
            self.param_groups = [{"lr": float(model.optimizer.learning_rate)}]

    class Callback(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            model = self.model
            leaves, self.hooks = torch.nn.Module(), []
            for layer in model.layers:
                leaf = torch.nn.Module()
                for k, variable in enumerate(layer.trainable_variables):
                    leaf.register_parameter(f"{variable.name}{k}", variable.value)
                leaves.add_module(layer.name, leaf)
                self.hooks.append(layer.register_forward_hook(_hear(leaf)))
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            self.scope = TrainScope(leaves, Adam(model), TrainScopeConfig(run_dir=str(to))).attach()
            loss: list[Any] = []
            compute_loss, apply = model.compute_loss, model.optimizer.apply

            def computed(*args: Any, **kwargs: Any) -> Any:
                loss[:] = [compute_loss(*args, **kwargs)]
                return loss[0]

            def applied(*args: Any, **kwargs: Any) -> Any:
                self.scope.step(loss[0].item())  # between backward and update
                return apply(*args, **kwargs)

            model.compute_loss, model.optimizer.apply = computed, applied

        def on_train_end(self, logs: Any = None) -> None:
            del self.model.compute_loss, self.model.optimizer.apply
            for hook in self.hooks:
                hook.remove()
            self.scope.detach()

    return Callback()


def _hear(leaf: Any) -> Callable[[Any, Any, Any], None]:
    """Has a leaf's hooks called with what a layer gives."""

    def hear(layer: Any, inputs: Any, output: Any) -> None:
        for hook in leaf._forward_hooks.values():
            hook(leaf, inputs, output)

    return hear

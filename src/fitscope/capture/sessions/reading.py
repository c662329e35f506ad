"""The extra fetches for one way of calling `run`, and how to read their values.

A `RunCall` is the meaning of one signature: its operations, and whether it trains, validates, predicts, saves, or can be ignored. A
`Reading` says which tensors to take out of it for a set of wants. fitscope works out both once and keeps them, because a graph only grows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fitscope.capture.backends._harvest import LOCAL, NO_LOCAL
from fitscope.capture.backends._tensorflow_shadow import Excerpt
from fitscope.capture.sessions import arrays
from fitscope.capture.sessions.anatomy import site_path
from fitscope.capture.sessions.backward import Backward, gradient_scope, inner_scopes
from fitscope.capture.sessions.graph import Op, Tensor, executed, saves, written_references
from fitscope.capture.sessions.outlets import Outlets, Unseen
from fitscope.capture.sessions.roles import Roles
from fitscope.capture.sessions.signature import Signature, operations
from fitscope.capture.sessions.train_ops import (
    Applied,
    applied_gradients,
    changed,
    losses,
    training_roots,
    trains,
    updates,
)
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.wants import LOSS, Want
from fitscope.sites import Place, Site

ROLES = ("loss", "inputs", "targets", "predictions")
_NOT_GIVEN = "this run gives it to no optimizer kernel; give scope.session or scope.hook `grads_and_vars=`"


@dataclass(frozen=True)
class Watched:
    """A graph with everything known about it."""

    graph: Any
    anatomy: Anatomy
    roles: Roles
    outlets: Outlets
    train_ops: tuple[Op, ...] = ()
    given_gradients: Mapping[str, Any] = field(
        default_factory=dict
    )  #: the gradients that the user named, by variable
    # The tensor that each short name belongs to.
    _plain: dict[tuple[str, str], str] = field(default_factory=dict)

    def call(self, sig: Signature) -> RunCall:
        """Reads a signature: its operations, and whether they train or validate."""
        ops = executed(operations(self.graph, sig), sig.fed)
        return RunCall(self, sig, ops, self._kind(sig, ops))

    def name(self, in_pass: str, kind: str, tensor: Tensor) -> Site:
        """The name of a tensor in a role and a pass: the same in every run of the session, and unique.

        A network may be built twice, for training and validation. The only tensor of the training network gets the short name, or
        else the only other one.
        """
        peers = [t for t in self.roles.of(kind) if self.trained(t) == self.trained(tensor)]
        plain = len(peers) == 1 and self._plain.get((in_pass, kind), tensor.name) == tensor.name
        return Site(kind, label="" if plain else site_path(tensor))

    def take_name(self, in_pass: str, kind: str, tensor: Tensor) -> Site:
        """Reserves the name of a recorded tensor: no other tensor in its role gets it."""
        name = self.name(in_pass, kind, tensor)
        if name == kind:
            self._plain[in_pass, kind] = tensor.name
        return name

    def trained(self, tensor: Tensor) -> bool:
        """Whether training steps compute a tensor."""
        return self._steps.runs(tensor.op) or self.outlets.computed(tensor, self._steps)

    @cached_property
    def _steps(self) -> Excerpt:
        return Excerpt(executed(training_roots(self.graph, self.train_ops)))

    def _kind(self, sig: Signature, ops: set[Op]) -> str | None:
        if trains(ops, self.graph, self.train_ops):
            return "train"
        if saves(ops):
            return "save"
        inner = inner_scopes(self.graph)
        if any((scope := gradient_scope(op)) is not None and scope not in inner for op in ops):
            return None  # gradients without an update: the program accumulates or inspects them
        excerpt = Excerpt(ops, sig.fed)
        if any(self.outlets.computed(tensor, excerpt) for tensor in self.roles.predictions):
            labelled = any(t.name in sig.fed or t.op in ops for t in self.roles.targets)
            return "validation" if labelled else "predict"
        return None


@dataclass(eq=False)
class RunCall:
    """The meaning of one way to call `run`."""

    watched: Watched
    sig: Signature
    ops: set[Op]
    kind: str | None
    broken: bool = False  #: the extra fetches failed
    _readings: dict[object, Reading] = field(default_factory=dict)

    @cached_property
    def excerpt(self) -> Excerpt:
        """The part of the graph that runs."""
        return Excerpt(self.ops, self.sig.fed, written_references(self.ops))

    @cached_property
    def trainer(self) -> frozenset[str]:
        """The operations that train, which identify one of several train ops."""
        return frozenset(op.name for op in updates(self.ops, self.watched.graph)) or frozenset(
            op.name for op in self.watched.train_ops if op in self.ops
        )

    @cached_property
    def backward(self) -> Backward:
        return Backward(self.watched.graph, self.ops)

    @cached_property
    def applied(self) -> Applied:
        """The gradients that this call applies, by variable."""
        found = applied_gradients(self.ops, self.watched.graph)
        for name, gradient in self.watched.given_gradients.items():
            sliced = hasattr(gradient, "indices")
            found[name] = (gradient.values, gradient.indices) if sliced else (gradient, None)
        return found

    def reading(self, wants: Mapping[Place, Want], key: object, *, in_graph: bool) -> Reading:
        """The reading for these wants. Equal keys have equal wants."""
        if key not in self._readings:
            self._readings[key] = Reading.of(self, wants, in_graph=in_graph)
        return self._readings[key]

    def role(self, kind: str) -> list[Tensor]:
        """The tensors in a role that this call may compute."""
        roles = self.watched.roles
        found = roles.of(kind)
        if kind == "loss" and self.kind == "train" and "loss" not in roles.named:
            mine = {loss.name for loss in losses(self.watched.graph, self.ops)}
            found = [tensor for tensor in found if tensor.name in mine] or found
        return found


@dataclass(slots=True)
class Reading:
    """The tensors to fetch, and their meaning."""

    sites: dict[str, Site] = field(default_factory=dict)
    fetches: dict[str, Any] = field(default_factory=dict)  #: for each site a tensor, or its parts
    #: The shapes of gradients that arrive as slices.
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  #: sites whose array is also the user's
    unseen: dict[Site, str] = field(default_factory=dict)
    #: Variables by path, to be read in a separate run.
    variables: dict[str, Any] = field(default_factory=dict)
    pack: Any = None

    @classmethod
    def of(cls, call: RunCall, wants: Mapping[Place, Want], *, in_graph: bool) -> Reading:
        reading = cls()
        for (kind, path), want in wants.items():
            reading._add(call, kind, path)
            if want.local and call.kind == "train":
                reading.unseen[Site.at((kind, path), suffix=LOCAL)] = NO_LOCAL
        if in_graph:
            reading._pack(call, wants)
        return reading

    # ---- what to fetch -------------------------------------------------------------------------------------

    def _add(self, call: RunCall, kind: str, path: str) -> None:
        watched = call.watched
        if kind in ("weights", "updates"):
            weights = {weight.path: weight.variable for weight in watched.anatomy.weights}
            self.variables[path] = weights[path]
            site = Site.at((kind, path))
            self.sites[site] = site
        elif kind == "weight_gradients":
            self._weight_gradient(call, path)
        elif kind in ("activations", "gradients"):
            output = next(part.layer.output for part in watched.anatomy.layers if part.path == path)
            if kind == "activations":
                self._fetch(call, Site(kind, path), output)
            elif (gradient := call.backward.gradient(output)) is not None:
                self._fetch(call, Site(kind, path), gradient, forward=False)
            else:
                self.unseen[Site(kind, path)] = call.backward.why_not(output)
        elif kind in ROLES:
            self._role(call, kind)
        elif kind not in ("metrics", "taps"):
            self.unseen[Site(kind)] = "a graph does not say what it is; watch its tensors by name"

    def _role(self, call: RunCall, kind: str) -> None:
        assert call.kind is not None
        watched, missing, found = call.watched, {}, set()
        for tensor in call.role(kind):
            try:
                outlet = _outlet(call, tensor)
            except Unseen as why:
                missing[tensor.name] = tensor, str(why)
            else:
                found.add(watched.trained(tensor))
                self._take(call, watched.take_name(call.kind, kind, tensor), tensor, outlet)
        for tensor, reason in missing.values():
            if found <= {
                watched.trained(tensor)
            }:  # otherwise the same tensor of a network built twice was found
                self.unseen[watched.name(call.kind, kind, tensor)] = reason
        if not watched.roles.of(kind):
            self.unseen[Site(kind)] = (
                f"the graph does not say which tensor it is: give scope.session or scope.hook `{kind}=`"
            )

    def _weight_gradient(self, call: RunCall, path: str) -> None:
        site = Site.at(("weight_gradients", path))
        variable = next(w.variable for w in call.watched.anatomy.weights if w.path == path)
        if variable.op.name not in call.applied:
            moves = variable.op.name in changed(call.ops)
            self.unseen[site] = _NOT_GIVEN if moves else "the training step does not change it"
            return
        values, rows = call.applied[variable.op.name]
        self._fetch(call, site, values, forward=False)
        if rows is not None and site in self.fetches:
            self.fetches[site] = [self.fetches[site], rows]
            self.shapes[site] = tuple(variable.shape.as_list())

    def _fetch(self, call: RunCall, site: Site, tensor: Tensor, *, forward: bool = True) -> None:
        try:
            self._take(call, site, tensor, _outlet(call, tensor, forward=forward))
        except Unseen as why:
            self.unseen[site] = str(why)

    def _take(self, call: RunCall, site: Site, tensor: Tensor, outlet: Tensor) -> None:
        dtype = tensor.dtype.base_dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            self.unseen[site] = f"it holds no numbers but {dtype.name}"
            return
        self.sites[site] = site
        self.fetches[site] = outlet
        if tensor.name in call.sig.fed or tensor.name in call.sig.fetched:
            self.shared.add(site)

    def _pack(self, call: RunCall, wants: Mapping[Place, Want]) -> None:
        """Computes statistics in the graph, for tensors that need nothing else."""
        small = {
            name: tensor
            for name, tensor in self.fetches.items()
            # A loss that is not one number is reduced when fitscope reads it.
            if not isinstance(tensor, list)
            and self.sites[name].place != LOSS
            and _reducible(wants[self.sites[name].place])
        }
        self.pack = call.watched.outlets.pack(small)
        for name in self.pack.names if self.pack is not None else ():
            del self.fetches[name]

    # ---- the results --------------------------------------------------------------------------------------

    @property
    def asked(self) -> dict[str, Any]:
        """fitscope's fetches, in addition to the user's."""
        return {"tensors": self.fetches, **({"pack": self.pack.fetch} if self.pack is not None else {})}

    def values(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The values by site: an array, or statistics."""
        found: dict[str, Any] = {}
        for name, value in results["tensors"].items():
            if name in self.shapes:
                gradient, rows = value
                found[name] = arrays.dense(gradient, rows, self.shapes[name])
            else:
                found[name] = np.array(value) if name in self.shared else value
        if self.pack is not None:
            found |= self.pack.read(results["pack"])
        return found


def _reducible(want: Want) -> bool:
    """Whether statistics suffice. Derived sites are then dropped, because they need the tensor off the device."""
    return want.stats and not (want.tensor or want.mean or want.whole)


def _outlet(call: RunCall, tensor: Tensor, *, forward: bool = True) -> Tensor:
    if tensor.name in call.sig.fetched:
        return tensor
    return call.watched.outlets.of(tensor, call.excerpt, forward=forward)


def weights_of(
    reading: Reading, wants: Collection[Place], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Weights and updates, from the values before and after the step."""
    found: dict[str, Any] = {}
    for path in reading.variables:
        if ("weights", path) in wants:
            found[Site.at(("weights", path))] = before[path]
        if ("updates", path) in wants:
            found[Site.at(("updates", path))] = arrays.difference(after[path], before[path])
    return found

"""The tensors of a graph that the user names, if fitscope cannot find them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from fitscope.errors import WatchError, one_of

if TYPE_CHECKING:
    import tensorflow as tf

    Fetch: TypeAlias = tf.Tensor | tf.Operation | str  #: a part of a TF1 graph, or its name


class Named(TypedDict, total=False):
    """The arguments that `scope.session` and `scope.hook` share."""

    loss: Fetch | None
    predictions: Fetch | Iterable[Fetch] | None
    targets: Fetch | Iterable[Fetch] | None
    inputs: Fetch | Iterable[Fetch] | None
    train_op: Fetch | Iterable[Fetch] | None
    grads_and_vars: Iterable[tuple[tf.Tensor | None, tf.Variable]] | None


def checked(named: Any) -> Named:
    """Checks the arguments; raises an error that names an unknown one."""
    for name in named:
        if name not in Named.__annotations__:
            known = tuple(Named.__annotations__)
            raise WatchError(f"some of {known}", f"`{name}=`", one_of(known, name))
    found: Named = named
    return found

"""The contract between fitscope and a framework.

An adapter knows one way in which Keras runs a training step, and how to take tensors out of it. It says whether it can tap a model, and
if not, why (`why_not`). It builds a `Program`: the step with taps. A program takes the arguments of `model.train_function`, has the same
effect, and returns one `Harvest` per training step with its result. A compiler may round it differently, so it can also be compared with
the user's own program, and run alongside it. Outside a call of the tapped step no patch exists.

A program runs in the user's mode: compiled steps compiled, eager steps eagerly. One thread at a time may call it. Tensors in a
harvest must stay valid and unchanged while they are referenced: if the framework updates a tensor in place or donates it, the
step copies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.backends._ranks import Several
from fitscope.pipeline.handover import Finish
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.wants import Wants
from fitscope.sites import Site

if TYPE_CHECKING:
    from fitscope.capture.backends._black_box import Keeper

#: The attribute of a Keras model that holds the compiled function of a phase, and the method it is made from.
PHASES = {
    "train": ("train_function", "train_step"),
    "test": ("test_function", "test_step"),
    "predict": ("predict_function", "predict_step"),
}


class Call(NamedTuple):
    """The arguments of one step."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, step: Own) -> Any:
        """Runs a step with these arguments."""
        return step(*self.args, **self.kwargs)


class TapFailed(Exception):  # noqa: N818 - a message between adapter and dispatch, never seen by a user
    """The tapped step could not be built. `call` has the arguments for the user's own step.

    It is only raised while neither state nor batch has changed. Errors of a running step belong to the user.
    """

    def __init__(self, error: BaseException, call: Call, harvests: list[Harvest] | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.call = call
        self.harvests = harvests or []


@dataclass(frozen=True, slots=True)
class Ask:
    """The request to the tapped step."""

    anatomy: Anatomy
    wants: Wants
    phase: str = "train"
    finish: Finish = field(default_factory=Finish)
    #: The user's own step, if it is not a step of the model (phase "step").
    function: Callable[..., Any] | None = None
    traced: Callable[[], None] = lambda: None  #: called whenever a program is traced, which is then compiled
    #: Sites left out because their taps may change the step, with the reason.
    left_out: Mapping[Site, str] = field(default_factory=dict)

    def without_gradients(self, why: str) -> Ask | None:
        """The same request without gradients of layers; None if it has none."""
        left_out = {Site.at(place): why for place in self.wants if place[0] == "gradients"}
        rest = Wants({place: want for place, want in self.wants.items() if place[0] != "gradients"})
        return replace(self, wants=rest, left_out=left_out) if left_out else None


#: The user's own compiled step, with the arguments and the result that Keras or the user's loop expects.
Own = Callable[..., Any]
Outcome = tuple[Any, list[Harvest]]  #: the result of a step, and its tapped tensors


class Obstacle(NamedTuple):
    """The reason why a step must not run twice."""

    why: str
    beside: bool  #: the tapped program may still run alongside the user's own
    instead: Program | None = None  #: records less than the request, and is identical by construction


class Held(ABC):
    """The arguments of one step, held so that the step can run from the same state more than once."""

    signature: Hashable = None  #: of the arguments: another signature may be another compiled program

    @abstractmethod
    def save(self) -> None:
        """Copies the state that a run changes or uses up. It may fail for lack of memory; then nothing has changed."""

    @abstractmethod
    def call(self) -> Call:
        """The arguments for the real run, on the state itself."""

    @abstractmethod
    def rehearsal(self) -> Call:
        """The arguments for a run on the saved copy. Once per `save`."""

    @abstractmethod
    def after(self, result: Any) -> Any:
        """Everything that a run returned and changed, fully computed."""

    @abstractmethod
    def result(self, after: Any) -> Any:
        """The return value of that run."""

    def restore(self) -> None:  # noqa: B027 - most steps of JAX change nothing in place
        """Restores the saved state, if a run changes it in place."""

    def adopt(self, after: Any) -> None:  # noqa: B027
        """Sets the state to the result of one run, if a run changes it in place."""

    @abstractmethod
    def numbers(self, after: Any) -> int:
        """The number of compared values."""

    @abstractmethod
    def same(self, one: Any, other: Any) -> str | None:
        """The difference between two results of `after`, bit for bit; None if there is none."""


class Program(ABC):
    """A step with taps, and three ways to use it: instead of the user's own step, compared with it, or alongside it."""

    identical: str | None = None  #: the reason why it equals the user's own step by construction

    @abstractmethod
    def take(self, call: Call) -> Outcome:
        """Runs the step. Raises `TapFailed` only while nothing has changed."""

    @abstractmethod
    def hold(self, call: Call) -> Held:
        """Holds the arguments. It draws the batches that the step would draw, and raises the errors of drawing them."""

    def signature(self, call: Call) -> Hashable:  # noqa: ARG002
        """The key of the compiled program for these arguments, if they show it. None: use `Held.signature`."""
        return None

    def obstacle(self, held: Held) -> Obstacle | None:  # noqa: ARG002
        """Traces the program without running it, and returns the reason why it must not run twice. Raises `TapFailed` like `take`."""
        return None

    def look(self, held: Held) -> list[Harvest]:
        """Runs the program alongside the user's own, which takes the step afterwards. It leaves no trace."""
        held.save()
        try:
            return self.take(held.rehearsal())[1]
        finally:
            held.restore()


def steps_of(optimizer: Any) -> Any:
    """The variable that counts the batches of an optimizer."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of loss scaling
    # `iterations` leaves out the batches whose gradients are only added up for a later one.
    return getattr(optimizer, "_iterations", optimizer.iterations)


class Adapter(Several, ABC):
    """The adapter to one framework."""

    name: str

    @abstractmethod
    def why_not(self, model: Any) -> str | None:
        """The reason why this model cannot be tapped as it is, or None."""

    def unbuilt(self, model: Any) -> bool:  # noqa: ARG002
        """Whether the first step will build parts of the model. Most backends build them earlier."""
        return False

    def build(self, model: Any, phase: str, *args: Any) -> tuple[Any, ...]:  # noqa: ARG002
        """Builds what the first step would build, given its arguments; returns the arguments for that step."""
        return args

    def build_step(self, function: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ARG002
        """Builds what the first call of a custom step would build, without using anything up. False if it cannot."""
        return False

    @abstractmethod
    def tapped(self, ask: Ask) -> Program:
        """The model's own step, or a custom one (`ask.function`), with taps."""

    def around(self, ask: Ask, function: Callable[..., Any]) -> Program | None:  # noqa: ARG002
        """The function that the user made in place of Keras's, with taps on the model while it runs; None if it cannot be seen into."""
        return None

    @abstractmethod
    def keeper(self, model: Any, optimizers: Sequence[Any] = ()) -> Keeper:
        """Keeps the training steps of a model for a black box, and puts them back for a replay."""

    @abstractmethod
    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        """Inside a step: the rows of a large tensor to read, as a `Thin`; a small tensor unchanged."""

    def small(self, tensor: Any) -> bool:  # noqa: ARG002
        """Inside a step: whether to return the tensor joined with others. Eager code usually gains nothing from it."""
        return False

    def joined(self, tensors: dict[int, Any]) -> list[tuple[Any, Any]]:
        """Inside a step: small numbered tensors of one dtype as vectors, each with a vector of their numbers, ranks and shapes."""
        raise NotImplementedError

    @abstractmethod
    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The values of a tensor. It may wait for the step to finish, so it is called off the training thread."""

    @abstractmethod
    def nbytes(self, tensor: Any) -> int:
        """The memory of a tensor in bytes, without waiting for its value."""

    @abstractmethod
    def settle(self, values: Any) -> None:
        """Waits until these values are computed."""

    @abstractmethod
    def iterations(self, optimizer: Any) -> int:
        """The number of batches that the optimizer has processed."""

    @abstractmethod
    def on_accelerator(self) -> bool:
        """Whether tensors live on a device outside this machine's memory."""

"""The list of all programs: after which official one each is written, where it runs, and what CI runs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL = ("jax", "tensorflow", "torch")
JAX, TENSORFLOW, TORCH = (("jax",), ("tensorflow",), ("torch",))
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@dataclass(frozen=True)
class Program:
    """One program, and what is expected of it."""

    name: str  #: of its module, in this folder
    after: str  #: the official program whose structure it follows, in the repository of keras.io
    backends: tuple[str, ...] = ALL
    quick: bool = False  #: CI runs it
    runs: int = 1  #: how many runs its trainings make
    environment: dict[str, str] = field(
        default_factory=dict
    )  #: it needs a process of its own, with these variables
    warns: dict[str, str] = field(
        default_factory=dict
    )  #: expected warnings: a regular expression, and the reason
    without: dict[str, str] = field(default_factory=dict)  #: kinds of sites it cannot have, and the reason


PROGRAMS = (
    Program("guides.train_step_jax", "guides/custom_train_step_in_jax.py", JAX, quick=True),
    Program("guides.train_step_tensorflow", "guides/custom_train_step_in_tensorflow.py", TENSORFLOW, quick=True),
    Program("guides.train_step_torch", "guides/custom_train_step_in_torch.py", TORCH, quick=True),
    Program("guides.loop_jax", "guides/writing_a_custom_training_loop_in_jax.py", JAX, quick=True),
    Program("guides.loop_tensorflow", "guides/writing_a_custom_training_loop_in_tensorflow.py", TENSORFLOW, quick=True),
    Program("guides.loop_torch", "guides/writing_a_custom_training_loop_in_torch.py", TORCH, quick=True),
    Program("generative.dcgan", "examples/generative/dcgan_overriding_train_step.py"),
)  # fmt: skip

#: Failures that are known, by program and backend: the reason. A line goes as soon as its program passes.
KNOWN: dict[tuple[str, str], str] = {
    ("guides.train_step_jax", "jax"): "the loss of an own test_step is not seen",
    ("guides.train_step_tensorflow", "tensorflow"): "the loss of an own test_step is not seen",
    ("guides.train_step_torch", "torch"): "the loss of an own test_step is not seen",
    ("guides.loop_jax", "jax"): "the loss of a value_and_grad from outside of the step is not seen",
    ("generative.dcgan", "tensorflow"): "ModelError: a container that the step never calls is not built",
}

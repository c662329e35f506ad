"""Draws a model, its training and the scope that watches it from a seed, as plain data: a *spec*.

A spec can be written as JSON, printed as a program (`program.py`) and made smaller (`shrink.py`). The seed also chooses the layer that
the model must have, in turn, so that as many seeds as there are layers meet all of them.
"""

from __future__ import annotations

from typing import Any

from fuzz.chance import Chance
from fuzz.graph import Drawing, Tensor, draw_graph
from fuzz.layers import LAYERS, drawable
from fuzz.training import loss, optimizer

Spec = dict[str, Any]

POLICIES = {"float32": 72, "mixed_bfloat16": 9, "mixed_float16": 9, "float64": 5, "bfloat16": 3, "float16": 2}
MODES: dict[str, dict[tuple[object, bool], float]] = {  # (jit_compile, run_eagerly)
    "jax": {(None, False): 45, ("auto", False): 15, (True, False): 25, (False, False): 2, (None, True): 3},
    "tensorflow": {
        (None, False): 15,
        ("auto", False): 10,
        (True, False): 30,
        (False, False): 35,
        (None, True): 10,
    },
    "torch": {
        (None, False): 40,
        ("auto", False): 20,
        (False, False): 30,
        (None, True): 9.5,
        (True, False): 0.5,
    },
}
#: On JAX every so many seeds one trains on four virtual devices, in a process of its own.
DISTRIBUTED_EVERY = 12


def draw(seed: int, backend: str, attempt: int = 0) -> Spec:
    """The spec of a seed. A later attempt draws another one around the same layer."""
    chance = Chance(backend, seed, attempt)
    names = drawable(backend)
    must = names[seed % len(names)]
    distributed = backend == "jax" and seed % DISTRIBUTED_EVERY == DISTRIBUTED_EVERY - 1
    policies = {
        name: share for name, share in POLICIES.items() if not (backend == "jax" and name == "float64")
    }
    policy = "float32" if distributed else chance.weighted(policies)
    jit, eager = (None, False) if distributed else chance.weighted(MODES[backend])
    if LAYERS[must].eager:
        jit, eager, distributed = None, True, False
    spec: Spec = {
        "seed": seed, "backend": backend, "attempt": attempt, "must": must, "policy": policy, "jit": jit, "eager": eager,
        "distribution": chance.one_of("data", "model") if distributed else None,
    }  # fmt: skip
    step = chance.weighted({"": 70, "plain": 9, "add_loss": 6, "gradients": 8, "two": 7})
    if step == "two" and LAYERS[must].takes != "float":
        step = "plain"
    spec["step"] = step
    if step == "two":
        _two_models(chance, spec)
    else:
        _one_model(chance, spec)
    spec["optimizer"] = optimizer(chance, policy)
    _training(chance, spec)
    _scope(chance, spec)
    return spec


def _one_model(chance: Chance, spec: Spec) -> None:
    style = chance.weighted({"functional": 55, "sequential": 15, "subclass": 30})
    inputs = 2 if style != "sequential" and chance.maybe(0.2) else 1
    drawing, ends = draw_graph(chance, style, spec["must"], most=3, inputs=inputs)
    if not drawing.linear and style == "sequential":
        style = "functional"
    outputs, losses = [], []
    for i, end in enumerate(ends):
        output, found = _head(chance, drawing, end, f"out{i}", spec["policy"])
        outputs.append(output)
        losses.append(found)
    spec["graph"] = drawing.graph(style, outputs)
    spec["losses"] = losses
    if len(losses) > 1 and chance.maybe(0.4):
        spec["loss_weights"] = [1.0, 0.3]
    if chance.maybe(0.15):
        spec["weighted_metrics"] = True


def _head(
    chance: Chance, drawing: Drawing, given: Tensor, name: str, policy: str
) -> tuple[Tensor, dict[str, Any]]:
    """The last layers before an output, as its loss wants them."""
    sequence = given.takes == "float" and len(given.shape) == 2 and chance.maybe(0.4)
    found = loss(chance, sequence, policy)
    if found["name"] == "CTC" and given.shape[0] < 4:  # too short for its labels
        sequence, found = False, loss(chance, False, policy)
    given = given if sequence else drawing.flat(given)
    lead = given.shape[:1] if sequence else ()
    found["lead"] = list(lead)
    units, activation = found["units"], found["activation"]
    args = {"units": str(units)}
    apart = activation != "linear" and chance.maybe(0.3)
    if activation != "linear" and not apart:
        args["activation"] = f"'{activation}'"
    output = drawing.layer("Dense", given, args, (*lead, units))  # type: ignore[arg-type]
    if apart:
        output = drawing.layer("Activation", output, {"activation": f"'{activation}'"}, (*lead, units))  # type: ignore[arg-type]
    drawing.nodes[-1]["name"] = name
    return output, found


def _two_models(chance: Chance, spec: Spec) -> None:
    """A generator and a discriminator, each with an optimizer of its own."""
    graphs = []
    for must, units, shape in ((spec["must"], 6, None), ("Dense", 1, (6,))):
        style = chance.one_of("functional", "sequential", "subclass")
        drawing, ends = draw_graph(chance, style, must, most=2, inputs=1, shape=shape)
        style = "functional" if style == "sequential" and not drawing.linear else style
        output = drawing.layer("Dense", drawing.flat(ends[0]), {"units": str(units)}, (units,))
        graphs.append(drawing.graph(style, [output]))
    spec["generator"], spec["discriminator"] = graphs
    spec["losses"] = []


def _training(chance: Chance, spec: Spec) -> None:
    batch = 8 if spec["distribution"] else chance.one_of(4, 5, 8)
    # A program with taps is trusted after so many proofs: only a longer training meets it.
    compiled = (
        not spec["eager"]
        and {"jax": spec["jit"] is not False, "tensorflow": True, "torch": spec["jit"] is True}[
            spec["backend"]
        ]
    )
    steps = chance.between(22, 26) if compiled and chance.maybe(0.5) else chance.between(2, 4)
    odd = 0 if spec["distribution"] or chance.maybe(0.85) else chance.between(1, batch - 1)
    form = chance.weighted({"arrays": 70, "generator": 8, "pydataset": 8, "tf": 8, "loader": 6})
    if spec["distribution"] or (form == "tf" and spec["backend"] != "tensorflow" and chance.maybe(0.7)):
        form = "arrays"
    if form == "loader" and (spec["backend"] != "torch" or not _plain_pairs(spec)):
        form = "arrays"
    data: dict[str, Any] = {
        "n": batch * steps - odd,
        "batch": batch,
        "form": form,
        "epochs": chance.one_of(1, 1, 2),
    }
    if form == "arrays":
        data["shuffle"] = chance.maybe(0.5)
    if not spec["distribution"] and spec["backend"] != "torch" and chance.maybe(0.07):
        spec["steps_per_execution"] = chance.one_of(2, 3)
    if spec["step"] != "two":
        if chance.maybe(0.2):
            data["validation"] = (
                "data" if form != "arrays" or spec["distribution"] else chance.one_of("data", "split")
            )
        single = len(spec["losses"]) == 1
        if (
            form in ("arrays", "generator")
            and spec["step"] in ("", "plain")
            and single
            and chance.maybe(0.25)
        ):
            classes = spec["losses"][0]["targets"] == "class" and not spec["losses"][0]["lead"]
            data["weights"] = chance.one_of("sample", "class") if classes and form == "arrays" else "sample"
    spec["data"] = data
    spec["callbacks"] = (
        chance.some(
            [
                "keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5)",
                "keras.callbacks.TerminateOnNaN()",
                "keras.callbacks.ReduceLROnPlateau(monitor='loss', patience=1)",
            ],
            1,
        )
        if chance.maybe(0.15)
        else []
    )
    if "schedules" in str(spec["optimizer"]) or spec["optimizer"]["name"] == "MultiOptimizer":
        spec["callbacks"] = []  # Keras sets no learning rate that a schedule decides
    if chance.maybe(0.1):
        spec["again"] = chance.one_of("fit", "fit", "compile")


def _plain_pairs(spec: Spec) -> bool:
    """Whether a sample is one input and one target, which is what a TensorDataset gives."""
    return spec["step"] != "two" and len(spec["graph"]["inputs"]) == len(spec["losses"]) == 1


KEEP = ["", "keep='both'", "keep='tensor'", "keep='average'"]


def _scope(chance: Chance, spec: Spec) -> None:
    """What to watch, and when."""
    which = chance.weighted({"default": 15, "all": 40, "some": 45})
    keep = chance.one_of("", "keep='both'")
    watch = None
    if which == "all":
        kinds = (
            "activations",
            "gradients",
            "weights",
            "weight_gradients",
            "updates",
            "inputs",
            "targets",
            "predictions",
        )
        watch = [f"fs.{kind}({keep})" for kind in kinds] + [
            "fs.loss()", "fs.metrics()", "fs.taps()", "fs.activity()", "fs.data()",
        ]  # fmt: skip
    if which == "some":
        kept = [
            f"fs.{kind}({chance.member(KEEP)})"
            for kind in ("activations", "gradients", "weights", "weight_gradients", "updates")
        ]
        more = [
            "fs.loss()", "fs.loss(per_sample=True)", "fs.metrics()", "fs.inputs()", "fs.targets()", "fs.predictions()",
            "fs.predictions(samples=2)", "fs.activations(samples=2)", "fs.changes()", "fs.changes(of='gradients')",
            "fs.changes(of='weights')", "fs.changes(of='predictions')", "fs.taps()", "fs.gradients(every=2)",
            "fs.weights(every=fs.epochs())", "fs.activity()", "fs.activity(every=2)", "fs.data()",
        ]  # fmt: skip
        watch = chance.some(kept + more, 6, 1)
    settings = chance.options(0.15, exact=["True"], reduce=["'step'"]) | chance.options(
        0.1, identity=["'twin'"]
    )
    if spec["data"].get("validation") and chance.maybe(0.6):
        settings["on"] = "('train', 'validation')"
    every = chance.weighted(
        {"1": 60, "2": 15, "fs.steps(0, 2)": 8, "fs.epochs()": 8, "lambda step: step % 3 == 0": 4, "": 5}
    )
    spec["scope"] = {"watch": watch, "settings": ({"every": every} if every else {}) | settings}

"""Writes a spec as a Python program. The fuzzer trains what this program defines, so the printed program is the one that failed.

The program defines `make()`, `fit(model, callbacks)` and `scope(to)`, and compares the two trainings when it is run by itself.
"""

from __future__ import annotations

import re
from typing import Any

from fuzz import steps
from fuzz.chance import Args
from fuzz.fitting import data_code, fit_code, indented, written

Spec = dict[str, Any]
Graph = dict[str, Any]

HEAD = '''"""Trains one model with and without a scope and compares what they leave behind."""

import os

os.environ["KERAS_BACKEND"] = "{backend}"
{flags}
import keras
import numpy as np
from keras import layers
{imports}
import fitscope as fs
'''

MAIN = """

def left(model, history):
    optimizers = [model.optimizer, *(vars(model).get(name) for name in ("g_optimizer", "d_optimizer"))]
    variables = [v for part in (model, *filter(None, optimizers)) for v in part.variables]
    return [np.asarray(keras.ops.convert_to_numpy(v)).astype("float64") for v in variables] + [
        np.asarray(values, "float64") for epochs in history for values in epochs.values()
    ]


def train(*callbacks):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = make()
    return left(model, fit(model, list(callbacks)))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as to:
        plain, again, watched = train(), train(), train(scope(to))
        run = fs.open(to)
        for a, b, c in zip(plain, again, watched, strict=True):
            assert np.array_equal(a, b, equal_nan=True), "the program does not repeat itself"
            assert np.array_equal(a, c, equal_nan=True), f"differs by {np.nanmax(np.abs(a - c))}"
        print(run.status, run.errors, run.unseen)
"""


def program(spec: Spec, *, main: bool = False) -> str:
    """The program of a spec; with `main`, one that can be run by itself."""
    backend = spec["backend"]
    body = "\n\n".join(
        part.strip("\n") for part in (*_definitions(spec), data_code(spec), fit_code(spec), _scope(spec))
    )
    imports = {
        "import jax": r"\bjax\.", "import tensorflow as tf": r"\btf\.", "import torch": r"\btorch\.",
    }  # fmt: skip
    needed = "\n".join(line for line, pattern in imports.items() if re.search(pattern, body))
    flags = (
        'os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"\n'
        if spec["distribution"]
        else ""
    )
    return (
        HEAD.format(backend=backend, imports=needed, flags=flags)
        + "\n\n"
        + body
        + "\n"
        + (MAIN if main else "")
    )


def names(text: str) -> set[str]:
    """The layers of Keras that a program has."""
    return set(re.findall(r"\blayers\.([A-Z]\w+)", text))


# ---- models ------------------------------------------------------------------------------------------------------


def _definitions(spec: Spec) -> list[str]:
    graphs = (
        {"Generator": spec["generator"], "Discriminator": spec["discriminator"]}
        if spec["step"] == "two"
        else {"Net": spec["graph"]}
    )
    found: list[str] = []
    base = "keras.Model"
    for graph in graphs.values():
        found += _preludes(graph)
    if spec["step"] == "two":
        found.append(steps.pair(spec["backend"]))
    elif spec["step"]:
        base = "Trained"
        style = spec["graph"]["style"]
        found.append(
            steps.trained(
                spec["step"], spec["backend"], "keras.Sequential" if style == "sequential" else "keras.Model"
            )
        )
    for name, graph in graphs.items():
        found += _graph(graph, name, base)
    whole = "Pair(make_Generator(), make_Discriminator())" if spec["step"] == "two" else "make_Net()"
    return [*dict.fromkeys(found), _compile(spec), _make(spec, whole)]


def _preludes(graph: Graph) -> list[str]:
    return [
        text
        for node in graph["nodes"]
        for text in (
            [node["prelude"]] if "prelude" in node else _preludes(node["graph"]) if "graph" in node else []
        )
    ]


def _graph(graph: Graph, name: str, base: str = "keras.Model") -> list[str]:
    """A function `make_NAME` that builds this graph, with all it needs before it."""
    inside = [
        part
        for node in graph["nodes"]
        if "graph" in node
        for part in _graph(node["graph"], f"Net_{node['id']}")
    ]
    style = {"functional": _functional, "sequential": _sequential, "subclass": _subclass}[graph["style"]]
    return [*inside, style(graph, name, base)]


def _functional(graph: Graph, name: str, base: str) -> str:
    lines = [f"{x['id']} = {_input(x)}" for x in graph["inputs"]]
    made = set()
    for node in graph["nodes"]:
        if "op" not in node and node.get("same") is None:
            lines.append(f"{node['id']}_layer = {_layer(node)}")
            made.add(node["id"])
        lines.append(_call(node, "{}_layer"))
    inputs = [x["id"] for x in graph["inputs"]]
    lines.append(f"return {base}({_one(inputs)}, {_one(graph['outputs'])}, name='{name.lower()}')")
    return f"def make_{name}():\n" + indented(lines)


def _sequential(graph: Graph, name: str, base: str) -> str:
    parts = [] if graph.get("lazy") else [_input(graph["inputs"][0])]
    parts += [_layer(node) for node in graph["nodes"]]
    base = "keras.Sequential" if base == "keras.Model" else base
    return f"def make_{name}():\n" + indented(
        [f"return {base}([", *(f"    {part}," for part in parts), f"], name='{name.lower()}')"]
    )


def _subclass(graph: Graph, name: str, base: str) -> str:
    own = [
        f"self.{node['id']}_layer = {_layer(node)}"
        for node in graph["nodes"]
        if "op" not in node and "same" not in node
    ]
    inputs = [x["id"] for x in graph["inputs"]]
    calls = [
        f"{', '.join(inputs)} = inputs",
        *(_call(node, "self.{}_layer") for node in graph["nodes"]),
        f"return {_one(graph['outputs'])}",
    ]
    return (
        f"class {name}({base}):\n    def __init__(self):\n        super().__init__(name='{name.lower()}')\n"
        + indented(own, 2)
        + "\n\n    def call(self, inputs, training=None):\n"
        + indented(calls, 2)
        + f"\n\n\ndef make_{name}():\n    return {name}()"
    )


def _input(x: dict[str, Any]) -> str:
    dtype = {"float": "", "int": ", dtype='int32'", "string": ", dtype='string'"}[x["takes"]]
    return f"layers.Input({tuple(x['shape'])!r}{dtype}, name='{x['id']}')"


def _layer(node: dict[str, Any]) -> str:
    if "graph" in node:
        return f"make_Net_{node['id']}()"
    args = {**node["args"], "name": repr(node.get("name", node["id"]))}
    module = "" if "prelude" in node and node["layer"] == "Scaled" else "layers."
    return f"{module}{node['layer']}({written(args)})"


def _call(node: dict[str, Any], layer: str) -> str:
    given = node["in"]
    if "op" in node:
        return f"{node['id']} = {node['op'].format(*given)}"
    call = node.get("call", "one")
    taken = {"list": f"[{', '.join(given)}]", "tuple": f"({', '.join(given)})"}.get(call, ", ".join(given))
    targets = ", ".join(f"{node['id']}_{i}" for i in range(node["outs"])) if node.get("outs") else node["id"]
    extra = "".join(f", {name}={value}" for name, value in node.get("kwargs", {}).items())
    return f"{targets} = {layer.format(node.get('same', node['id']))}({taken}{extra})"


def _one(refs: list[str]) -> str:
    return refs[0] if len(refs) == 1 else f"[{', '.join(refs)}]"


# ---- training ----------------------------------------------------------------------------------------------------


def _optimizer(spec: Spec) -> str:
    chosen = spec["optimizer"]
    if chosen["name"] == "MultiOptimizer":
        inner = "keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.01), {'.*kernel': keras.optimizers.Adam(0.01)})"
        return f"keras.optimizers.MultiOptimizer({inner})"
    code = f"keras.optimizers.{chosen['name']}({written(chosen['args'])})"
    return (
        f"keras.optimizers.LossScaleOptimizer({code}, initial_scale=64.0, dynamic_growth_steps=2)"
        if chosen["scaled"]
        else code
    )


def _compile(spec: Spec) -> str:
    args: Args = {"optimizer": _optimizer(spec)}
    if spec["step"] == "two" and spec["backend"] != "jax":
        args["second"] = "keras.optimizers.SGD(0.01)"
    if spec["losses"]:
        args["loss"] = _listed(
            [f"keras.losses.{loss['name']}({written(loss['args'])})" for loss in spec["losses"]]
        )
        metrics = [f"[{', '.join(loss['metrics'])}]" for loss in spec["losses"]]
        if any(loss["metrics"] for loss in spec["losses"]):
            args["weighted_metrics" if spec.get("weighted_metrics") else "metrics"] = _listed(metrics)
    if spec.get("loss_weights"):
        args["loss_weights"] = repr(spec["loss_weights"])
    if spec["jit"] is not None:
        args["jit_compile"] = repr(spec["jit"])
    if spec["eager"]:
        args["run_eagerly"] = "True"
    if spec.get("steps_per_execution"):
        args["steps_per_execution"] = str(spec["steps_per_execution"])
    return (
        "def compile_model(model):\n    model.compile(\n"
        + "".join(f"        {k}={v},\n" for k, v in args.items())
        + "    )"
    )


def _listed(codes: list[str]) -> str:
    return codes[0] if len(codes) == 1 else f"[{', '.join(codes)}]"


def _make(spec: Spec, whole: str) -> str:
    lines = [f"keras.config.set_dtype_policy('{spec['policy']}')"]
    if spec["distribution"] == "data":
        lines.append(
            "keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))"
        )
    if spec["distribution"] == "model":
        lines += [
            "mesh = keras.distribution.DeviceMesh((2, 2), ('batch', 'model'), keras.distribution.list_devices())",
            "layout = keras.distribution.LayoutMap(mesh)",
            "layout['n[0-9]+/kernel'] = keras.distribution.TensorLayout([None, 'model'], mesh)",
            "keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name='batch'))",
        ]
    lines.append(f"model = {whole}")
    if (
        spec["step"] == "two" and spec["backend"] != "tensorflow"
    ):  # elsewhere Keras wants to have it built before
        lines += [
            "real, noise = data(0, 4)[0]",
            "model.discriminator(real)",
            "model.generator(noise)",
            "model.built = True",
        ]
    return "def make():\n" + indented([*lines, "compile_model(model)", "return model"])


# ---- the scope ----------------------------------------------------------------------------------------------------


def _scope(spec: Spec) -> str:
    scope = spec["scope"]
    args: Args = {
        **({"watch": f"[{', '.join(scope['watch'])}]"} if scope["watch"] else {}),
        **scope["settings"],
    }
    return "def scope(to):\n" + indented(
        [f"return fs.Scope({', '.join(['to', written(args)] if args else ['to'])})"]
    )

"""The part of a program that makes data and trains on it: arrays, generators, datasets and loaders, with weights and validation."""

from __future__ import annotations

from typing import Any

from fuzz.chance import Args
from fuzz.training import TARGETS

Spec = dict[str, Any]


def written(args: Args) -> str:
    """Keyword arguments as code."""
    return ", ".join(f"{name}={value}" for name, value in args.items())


def indented(lines: list[str], by: int = 1) -> str:
    """The lines of a block."""
    return "\n".join("    " * by + line for line in lines) if lines else "    " * by + "pass"


def data_code(spec: Spec) -> str:
    lines = ["rng = np.random.default_rng(seed)"]
    if spec["step"] == "two":
        noise = spec["generator"]["inputs"][0]
        lines += [
            "real = rng.normal(size=(n, 6)).astype('float32')",
            f"noise = rng.normal(size=(n, {', '.join(map(str, noise['shape']))})).astype('float32')",
            "return (real, noise), None, None",
        ]
        return "def data(seed, n):\n" + indented(lines)
    masked = "Masking" in str(spec["graph"])
    given = [_values(x, masked) for x in spec["graph"]["inputs"]]
    wanted = [
        TARGETS[loss["targets"]]
        .replace("N", "n")
        .replace("*LEAD", ", ".join(map(str, loss["lead"])) or "*()")
        .replace("K", str(loss["units"]))
        for loss in spec["losses"]
    ]
    weight = (
        "rng.uniform(0.5, 1.5, n).astype('float32')" if spec["data"].get("weights") == "sample" else "None"
    )
    lines += [f"x = {_packed(given)}", f"y = {_packed(wanted)}", f"return x, y, {weight}"]
    return "def data(seed, n):\n" + indented(lines)


def _packed(codes: list[str]) -> str:
    return codes[0] if len(codes) == 1 else f"({', '.join(codes)})"


def _values(x: dict[str, Any], masked: bool) -> str:
    shape = ", ".join(map(str, x["shape"]))
    if x["takes"] == "int":
        return f"rng.integers(0, 8, (n, {shape})).astype('int32')"
    if x["takes"] == "string":
        return f"rng.choice(['a', 'b', 'c', 'd'], (n, {shape})).astype(object)"
    if len(x["shape"]) == 3 and x["shape"][-1] == 3:
        return f"rng.uniform(0.0, 1.0, (n, {shape})).astype('float32')"
    code = f"rng.normal(size=(n, {shape})).astype('float32')"
    if masked and len(x["shape"]) == 2:
        length = x["shape"][0]
        code += (
            f" * (np.arange({length}) < rng.integers(1, {length + 1}, (n, 1)))[..., None].astype('float32')"
        )
    return code


FORMS = {
    "arrays": "",
    "generator": '''
def batches(x, y, weight, size, n):
    """The same as a generator."""
    for i in range(0, n, size):
        rows = slice(i, i + size)
        yield keras.tree.map_structure(lambda a: a[rows], (x, y) if weight is None else (x, y, weight))
''',
    "pydataset": '''
class Batches(keras.utils.PyDataset):
    """The same as a dataset of Keras."""

    def __init__(self, x, y, size, n):
        super().__init__()
        self.x, self.y, self.size, self.n = x, y, size, n

    def __len__(self):
        return -(-self.n // self.size)

    def __getitem__(self, i):
        rows = slice(i * self.size, (i + 1) * self.size)
        return keras.tree.map_structure(lambda a: a[rows], (self.x, self.y))
''',
    "tf": "",
    "loader": "",
}  # fmt: skip


def fit_code(spec: Spec) -> str:
    data = spec["data"]
    n, size, form = data["n"], data["batch"], data["form"]
    two = spec["step"] == "two"
    if two and form in ("pydataset", "generator", "tf", "loader"):
        form = "arrays"
    args: Args = {"epochs": str(data["epochs"]), "verbose": "0"}
    lines = [f"x, y, weight = data(0, {n})"]
    call = {
        "arrays": "x, y" if not two else "x",
        "generator": f"batches(x, y, weight, {size}, {n})",
        "pydataset": f"Batches(x, y, {size}, {n})",
        "tf": f"tf.data.Dataset.from_tensor_slices((x, y)).batch({size})",
        "loader": f"torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size={size})",
    }[form]
    if form == "arrays":
        args |= {"batch_size": str(size), "shuffle": repr(data.get("shuffle", False))}
        if data.get("weights") == "sample":
            args["sample_weight"] = "weight"
        if data.get("weights") == "class":
            args["class_weight"] = repr({0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0})
    if form == "generator":
        args["epochs"] = "1"
    if form == "loader":
        lines.append("tensors = [torch.as_tensor(a) for a in keras.tree.flatten((x, y))]")
    if data.get("validation") == "data":
        args["validation_data"] = f"data(1, {n})[:2]"
        args["validation_batch_size"] = str(size)
    if data.get("validation") == "split":
        args["validation_split"] = "0.3"
    own = "".join(f", {callback}" for callback in spec["callbacks"])
    fit = f"model.fit({call}, callbacks=[*callbacks{own}], {written(args)}).history"
    lines.append(f"histories = [{fit}]")
    if spec.get("again") == "compile":
        lines.append("compile_model(model)")
    if spec.get("again"):
        lines.append(f"histories.append({fit})")
    return FORMS[form] + "\n\ndef fit(model, callbacks):\n" + indented([*lines, "return histories"])

"""Makes a failing spec smaller: deletes what it can do without, one thing at a time, as long as it fails in the same way.

A candidate that does not train is no candidate. All are judged in one process, the smallest again in one of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fuzz.program import program

Spec = dict[str, Any]
SECONDS = 300.0  #: that a candidate may take


class Judge(Protocol):
    """A process that judges specs: `workers.Worker`."""

    def ask(self, spec: Spec) -> dict[str, Any]: ...

    def close(self) -> None: ...


#: The dull value of each option of a spec.
DULL: dict[str, Any] = {
    "again": None, "callbacks": [], "steps_per_execution": None, "weighted_metrics": None, "loss_weights": None, "step": "",
    "policy": "float32", "distribution": None, "eager": False, "jit": None,
}  # fmt: skip
DULL_DATA: dict[str, Any] = {
    "validation": None,
    "weights": None,
    "form": "arrays",
    "shuffle": False,
    "epochs": 1,
    "n": 8,
    "batch": 4,
}
SGD = {"name": "SGD", "args": {"learning_rate": "0.01"}, "scaled": False}


def shrink(spec: Spec, result: dict[str, Any], start: Callable[[float], Judge], most: int = 60) -> str:
    """The program of the smallest spec found that still fails with the kinds of faults it failed with.

    `start` starts a process that judges; the first and the last verdict come from one that judges nothing else.
    """
    wanted = {kind for kind, _ in result["faults"]}

    def fails(judge: Judge, candidate: Spec) -> bool:
        found = judge.ask(candidate)
        return found["outcome"] == "failed" and bool({kind for kind, _ in found["faults"]} & wanted)

    judge = start(SECONDS)
    if not fails(judge, spec):
        judge.close()
        return "# It does not fail in a process of its own.\n" + program(spec, main=True)
    whole, position, in_vain = spec, 0, 0
    for _ in range(most):
        possible = list(candidates(spec))
        if in_vain >= len(possible):
            break
        candidate = possible[position % len(possible)]
        if fails(judge, candidate):
            spec, in_vain = candidate, 0  # what comes next stands at the same position now
        else:
            position, in_vain = position + 1, in_vain + 1
    judge.close()
    alone = start(SECONDS)
    found = fails(alone, spec)
    alone.close()
    return (
        program(spec, main=True)
        if found
        else "# Smaller ones fail only after others.\n" + program(whole, main=True)
    )


def candidates(spec: Spec) -> Iterator[Spec]:
    """Specs with one thing less, the largest cuts first."""
    for name, graph in _graphs(spec):
        for i in range(len(graph["outputs"]) - 1, 0, -1):
            yield _edited(spec, lambda s, name=name, i=i: _drop_output(s, name, i))
        for i in range(len(graph["nodes"]) - 1, -1, -1):
            yield _edited(spec, lambda s, name=name, i=i: _drop_node(_at(s, name), i))
    for key, dull in DULL.items():
        if spec.get(key) not in (dull, None, "") and not (key == "step" and spec["step"] == "two"):
            yield _edited(spec, lambda s, key=key, dull=dull: s.update({key: dull}))
    if spec["optimizer"]["name"] != "SGD" or spec["optimizer"]["scaled"]:
        yield _edited(spec, lambda s: s.update(optimizer=SGD))
    for name in list(spec["optimizer"]["args"]):
        yield _edited(spec, lambda s, name=name: s["optimizer"]["args"].pop(name))
    for key, dull in DULL_DATA.items():
        if spec["data"].get(key) not in (dull, None) and not (key == "n" and spec["distribution"]):
            yield _edited(spec, lambda s, key=key, dull=dull: s["data"].update({key: dull}))
    yield from _smaller_scopes(spec)
    for i, loss in enumerate(spec["losses"]):
        if loss["metrics"]:
            yield _edited(spec, lambda s, i=i: s["losses"][i].update(metrics=[]))
    for name, graph in _graphs(spec):
        if graph["style"] != "functional":
            yield _edited(spec, lambda s, name=name: _at(s, name).update(style="functional"))
        for i, node in enumerate(graph["nodes"]):
            for arg in node.get("args", ()):
                yield _edited(
                    spec, lambda s, name=name, i=i, arg=arg: _at(s, name)["nodes"][i]["args"].pop(arg)
                )


def _smaller_scopes(spec: Spec) -> Iterator[Spec]:
    watch = spec["scope"]["watch"]
    if watch is None:
        yield _edited(
            spec,
            lambda s: s["scope"].update(
                watch=["fs.activations()", "fs.gradients()", "fs.weight_gradients()"]
            ),
        )
    for one in watch or ():
        if len(watch) > 1:
            yield _edited(spec, lambda s, one=one: s["scope"]["watch"].remove(one))
    for name in list(spec["scope"]["settings"]):
        if spec["scope"]["settings"][name] != "1":
            value = {"every": "1"}.get(name)
            yield _edited(spec, lambda s, name=name, value=value: _set(s["scope"]["settings"], name, value))


def _set(settings: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        settings.pop(name)
    else:
        settings[name] = value


def _edited(spec: Spec, edit: Callable[[Spec], Any]) -> Spec:
    new = copy.deepcopy(spec)
    edit(new)
    return new


def _graphs(spec: Spec) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every graph of a spec with the way to it, the outer ones first."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((key,), spec[key]) for key in ("graph", "generator", "discriminator") if key in spec
    ]
    for way, graph in found:  # grows as it goes
        found += [
            ((*way, "nodes", i, "graph"), node["graph"])
            for i, node in enumerate(graph["nodes"])
            if "graph" in node
        ]
    return found


def _at(spec: Spec, way: tuple[Any, ...]) -> dict[str, Any]:
    place: Any = spec
    for key in way:
        place = place[key]
    return place  # type: ignore[no-any-return]


def _drop_output(spec: Spec, way: tuple[Any, ...], i: int) -> None:
    graph = _at(spec, way)
    graph["outputs"].pop(i)
    if way == ("graph",):
        spec["losses"].pop(i)
        spec.pop("loss_weights", None)


def _drop_node(graph: dict[str, Any], i: int) -> None:
    """Without this node: those that took its output take what it took, those that used its layer again get a layer of their own."""
    gone = graph["nodes"].pop(i)
    ref = gone["id"]
    outputs = {ref, *(f"{ref}_{k}" for k in range(gone.get("outs", 0)))}
    instead = gone["in"][0]
    for node in graph["nodes"]:
        node["in"] = [instead if taken in outputs else taken for taken in node["in"]]
        if node.get("same") == ref:
            node.pop("same")
            node.update(
                {
                    key: gone[key]
                    for key in ("layer", "args", "call", "kwargs", "prelude", "graph")
                    if key in gone
                }
            )
            ref = node["id"]  # the others use this one
    graph["outputs"] = [instead if taken in outputs else taken for taken in graph["outputs"]]

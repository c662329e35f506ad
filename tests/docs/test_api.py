"""The public API has precise types and consistent arguments, and docs/api.md describes all of it."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fitscope as fs
from fitscope.show.plot import Plot

#: The classes that people hold objects of, by the name that stands for such an object in the docs.
CLASSES: dict[str, type] = {
    "scope": fs.Scope,
    "run": fs.Run,
    "run.plot": Plot,
    "view": fs.View,
    "server": fs.Server,
}
#: What Keras calls, not people.
HOOKS = ("on_", "set_")

TENSOR_WATCHES = (
    fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates, fs.inputs, fs.targets, fs.predictions, fs.taps,
)  # fmt: skip


def members(of: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class."""
    for name, value in inspect.getmembers(of):
        if not name.startswith(("_", *HOOKS)) and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything public that can be called, by the name that people call it by."""
    for name in fs.__all__:
        value = getattr(fs, name)
        if name == "layers":
            yield from (
                (f"fs.layers.{n}", getattr(value, n)) for n in ("Tap", "BatchChange", "ResetBatchChange")
            )
        elif callable(value) and not (inspect.isclass(value) and issubclass(value, Exception)):
            yield f"fs.{name}", value
    for owner, of in CLASSES.items():
        yield from ((f"{owner}.{n}", value) for n, value in members(of) if inspect.isfunction(value))


@pytest.mark.parametrize(("name", "function"), [pytest.param(n, f, id=n) for n, f in callables()])
def test_every_parameter_has_a_precise_type(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        assert parameter.annotation is not parameter.empty, f"{parameter.name} of {name} has no type"
        outside_brackets = re.sub(r"\[.*\]", "", str(parameter.annotation))
        assert not re.search(r"\bAny\b", outside_brackets), f"{parameter.name} of {name} may be anything"


#: What cannot be said more precisely, and why.
UNSAID = {
    "scope.step": "it has overloads, which give back the function as it is",
}


def results() -> Iterator[tuple[str, Any]]:
    """What everything public returns, by the name that people call it by."""
    for name, function in callables():
        if not inspect.isclass(function):
            yield name, inspect.signature(function).return_annotation
    for owner, of in CLASSES.items():
        for name, value in members(of):
            if isinstance(value, property):
                yield f"{owner}.{name}", inspect.signature(value.fget).return_annotation


@pytest.mark.parametrize(("name", "result"), [pytest.param(n, r, id=n) for n, r in results()])
def test_every_result_has_a_precise_type(name: str, result: Any) -> None:
    vague = result is inspect.Signature.empty or re.search(r"\bAny\b", re.sub(r"\[.*\]", "", str(result)))
    assert bool(vague) == (name in UNSAID), f"{name} returns {result}"


def test_nothing_is_excused_that_is_not_there() -> None:
    assert set(UNSAID) <= {name for name, _ in results()}


def test_watches_take_the_same_arguments() -> None:
    def types_of(watch: Callable[..., Any]) -> dict[str, Any]:
        return {p.name: (p.annotation, p.default) for p in inspect.signature(watch).parameters.values()}

    model = types_of(fs.activations)
    for watch in TENSOR_WATCHES:
        same = {"keep", "every", "on", "exact"}
        assert {name: types_of(watch).get(name) for name in same} == {name: model[name] for name in same}, (
            watch
        )
    for watch in (*TENSOR_WATCHES, fs.loss, fs.metrics, fs.changes, fs.activity, fs.data):
        shared = types_of(watch).keys() & model.keys()
        assert {"every", "on"} <= shared
        assert all(types_of(watch)[name] == model[name] for name in shared), watch


DOCS = Path(__file__).parents[2] / "docs"


def test_the_api_page_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "make_api.py"))
    assert (DOCS / "api.md").read_text(encoding="utf-8") == made["page"](), "Run `make docs`."
    assert made["listed"]() == set(fs.__all__)


def entries() -> dict[str, str]:
    """The text of the API page below each heading."""
    parts = re.split(r"^#{2,4} (.+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_api_page_has_every_public_name_method_and_argument() -> None:
    described = entries()
    for name, function in callables():
        if inspect.isclass(function) and name not in ("fs.Scope", "fs.layers.Tap", "fs.layers.BatchChange"):
            assert name in described, name  # people do not call these, or they take no arguments
            continue
        for argument in inspect.signature(function).parameters:
            assert argument == "self" or f"{argument}: " in described[name], f"{argument} of {name}"


def test_the_api_page_has_every_property_and_error() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for owner, of in CLASSES.items():
        for name, value in members(of):
            assert not isinstance(value, property) or f"| `{owner}.{name}` |" in page, f"{owner}.{name}"
    for name in fs.__all__:
        assert f"fs.{name}" in page, name

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
from fitscope.watch import KINDS

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

DOCS = Path(__file__).parents[2] / "docs"


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


def test_every_exception_in_the_list_of_results_exists() -> None:
    assert set(UNSAID) <= {name for name, _ in results()}


#: Which arguments of `fs.activations` other watches do not take, and why.
NOT_TAKEN = {
    "a weight has no row for each sample": (("weights", "weight_gradients", "updates"), {"samples"}),
    "it is a single number": (("loss", "metrics"), {"keep", "samples", "exact"}),
    "only the statistics of a computed value are kept": (
        ("activity", "data", "changes"),
        {"keep", "samples"},
    ),
    "it belongs to the model, not to a layer": (
        ("loss", "metrics", "inputs", "targets", "predictions", "data"),
        {"layers"},
    ),
    "it is chosen by its own name": (("taps",), {"layers"}),
}


def watches() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that make a watch."""
    for name in fs.__all__:
        value = getattr(fs, name)
        if inspect.isfunction(value) and inspect.signature(value).return_annotation == "Watch":
            yield name, value


def test_watches_take_the_same_arguments() -> None:
    shared = inspect.signature(fs.activations).parameters
    missing: dict[str, set[str]] = {name: set() for name, _ in watches()}
    for names, arguments in NOT_TAKEN.values():
        for name in names:
            missing[name] |= arguments
    assert {*missing} == {*KINDS} - {"sample_loss"}
    for name, watch in watches():
        taken = inspect.signature(watch).parameters
        assert shared.keys() - taken.keys() == missing[name], name
        same = [argument for argument in shared if argument in taken]
        assert [argument for argument in taken if argument in shared] == same, f"the order of {name}"
        assert [taken[argument] for argument in same] == [shared[argument] for argument in same], name


def test_the_watches_page_lists_the_arguments_of_every_watch() -> None:
    page = (DOCS / "watches.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `fs\.(\w+)\(.*\| ([^|]+) \|$", page, flags=re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", options)) for name, options in rows}
    assert listed == {
        name: {p.name for p in inspect.signature(watch).parameters.values() if p.kind is p.KEYWORD_ONLY}
        for name, watch in watches()
    }


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

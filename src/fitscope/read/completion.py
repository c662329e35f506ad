"""Tab completion of names in IPython and Jupyter: `run.series("grad⇥` offers the sites of that run.

IPython itself completes keys in `[...]`, but not the arguments of a call. This adds a matcher to the shell that runs,
when a run is opened there. The name of the parameter decides what is offered, so every method of `Run` and `run.plot` has
completion. The matcher only looks names up and never calls the user's code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_args

from fitscope.read.run import STATS, Run
from fitscope.sites import Site

#: An unfinished call whose argument is an open string: owner and method, earlier arguments, keyword, quote, text.
_CALL = re.compile(r"([A-Za-z_][\w.]*)\.(\w+)\(((?:[^()]*,)?)\s*(?:(\w+)\s*=\s*)?([\"'])([^\"']*)$")
_MARK = "_fitscope_names"


def offer_names() -> None:
    """Adds the matcher to the shell that runs, once; does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
    if matchers is None or any(getattr(matcher, _MARK, False) for matcher in matchers):
        return
    matchers.append(_matcher(lambda: shell.user_ns))


def _matcher(namespace: Callable[[], Mapping[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    from IPython.core.completer import SimpleCompletion  # type: ignore[import-not-found, unused-ignore]

    def names_of_a_run(context: Any) -> dict[str, Any]:
        typed, names = candidates(context.text_until_cursor, namespace())
        found = [SimpleCompletion(text=name, type="site") for name in names]
        return {"completions": found, "suppress": bool(found), "matched_fragment": typed}

    setattr(names_of_a_run, _MARK, True)
    names_of_a_run.matcher_api_version = 2  # type: ignore[attr-defined]
    return names_of_a_run


def candidates(line: str, namespace: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The text so far inside the open string at the end of a line, and the names that complete it."""
    call = _CALL.search(line)
    if call is None:
        return "", []
    path, method, before, keyword, _, typed = call.groups()
    run, function = _method(path, method, namespace)
    parameter = _parameter(function, before.count(","), keyword)
    offered = [] if run is None or parameter is None else _names(run, function, parameter)
    return typed, [name for name in offered if name.startswith(typed)]


def _method(path: str, method: str, namespace: Mapping[str, Any]) -> tuple[Run | None, Any]:
    """The run that a dotted name leads to, and the method of it or of its views."""
    first, *rest = path.split(".")
    found = namespace.get(first)
    views = bool(rest) and rest[-1] == "plot"
    for name in rest[: len(rest) - views]:
        found = getattr(found, "__dict__", {}).get(name)
    if not isinstance(found, Run) or method.startswith("_"):
        return None, None
    return found, getattr(found.plot if views else found, method, None)


def _parameter(function: Any, position: int, keyword: str | None) -> str | None:
    if not inspect.ismethod(function):
        return None
    names = list(inspect.signature(function).parameters)
    return keyword or (names[position] if position < len(names) else None)


def _names(run: Run, function: Any, parameter: str) -> list[str]:
    sites = [Site.parse(name) for name in run.sites]
    if parameter == "site":
        layers = (site.layer for site in sites if site.layer)
        shown = function.__self__ is not run  # a view also takes the name of a layer, for its output
        return [*map(str, sites), *(dict.fromkeys(layers) if shown else ())]
    if parameter == "kind":
        return list(dict.fromkeys(site.kind for site in sites))
    if parameter == "stat":
        return list(STATS)
    hint = getattr(inspect.signature(function).parameters.get(parameter), "annotation", None)
    alias = vars(sys.modules[function.__module__]).get(str(hint))  # annotations are strings
    return [value for value in get_args(alias) if isinstance(value, str)]  # the values of a Literal

"""Finds the worst samples of a batch, and the earlier losses of each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fitscope.read import Run
from fitscope.show.data.gather import Gathered
from fitscope.show.data.preview import previews

MOST = 12  #: the most samples of a batch
VISITS = 24  #: the most earlier losses of each


def worst_of_batch(g: Gathered, step: int, most: int = MOST) -> dict[str, Any]:
    """The samples of the newest recorded training batch up to a step, the worst first."""
    if not g.has_samples:
        return {"step": None, "samples": []}
    rows = g.run.sql(
        f"""
        select * from samples where pass = 'train' and step =
            (select max(step) from samples where pass = 'train' and step <= {int(step)})
        order by (loss is null or isnan(loss)) desc, loss desc, sample limit {int(most)}
        """
    )
    found = [_sample({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]
    names = [sample["id"] for sample in found if sample["id"] is not None]
    earlier = visits(g.run, names, step) if names else {}
    at = int(rows["step"].iloc[0]) if len(rows) else None
    # Samples are counted within their rank, but kept inputs are those of all ranks. With several ranks they cannot be matched.
    alone = at is not None and not rows["rank"].any()
    pictures = previews(g, at, [sample["sample"] for sample in found]) if at is not None and alone else {}
    for sample in found:
        sample["history"] = earlier.get(sample["id"], [])
        sample["picture"] = pictures.get(sample["sample"])
    return {"step": at, "samples": found}


def visits(
    run: Run, names: list[str], step: int | None = None, most: int = VISITS
) -> dict[str, list[list[float]]]:
    """The visits of each sample up to a step as (step, loss), by id, the newest last."""
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    until = f"and step <= {int(step)}" if step is not None else ""
    rows = run.sql(
        f"select id, step, loss from samples where pass = 'train' and id in ({listed}) {until} order by step"
    )
    found: dict[str, list[list[float]]] = {}
    for name, at, loss in zip(rows["id"], rows["step"], rows["loss"], strict=True):
        found.setdefault(str(name), []).append([int(at), float(loss)])
    return {name: pairs[-most:] for name, pairs in found.items()}


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    truth, predicted = (_numbers(row.get(name)) for name in ("target", "prediction"))
    loss = row.get("loss")
    name = row.get("id")
    return {
        "id": None if name is None or name != name else str(name),
        "sample": int(row["sample"]),
        "output": row.get("output") or "",
        "loss": None if loss is None else float(loss),
        **said(truth, predicted),
    }


def said(truth: list[float], predicted: list[float]) -> dict[str, Any]:
    """Target and prediction as text: the class if the target names one, else the numbers."""
    finite = bool(np.isfinite(predicted).all())
    right = _class(truth, len(predicted))
    if right is not None:
        guess = int(np.argmax(predicted))
        sure = predicted[guess] if min(predicted) >= 0 and max(predicted) <= 1 else None
        told = str(guess) if finite else "NaN" if np.isnan(predicted).any() else "Inf"
        return {
            "truth": str(right),
            "predicted": told,
            "p": sure if finite else None,
            "wrong": finite and guess != right,
        }
    yes_or_no = len(predicted) == len(truth) == 1 and truth[0] in (0, 1) and finite
    wrong = yes_or_no and (predicted[0] > 0.5) != (truth[0] > 0.5)
    return {"truth": _short(truth), "predicted": _short(predicted), "p": None, "wrong": bool(wrong)}


def _class(truth: list[float], classes: int) -> int | None:
    """The true class: an integer below the number of classes, or the index of the only 1 among zeros. None otherwise."""
    if classes < 2:
        return None
    if len(truth) == 1:
        return int(truth[0]) if truth[0].is_integer() and 0 <= truth[0] < classes else None
    if len(truth) == classes and sorted(truth) == [0.0] * (classes - 1) + [1.0]:
        return truth.index(1.0)
    return None


def _numbers(value: Any) -> list[float]:
    if value is None or (isinstance(value, float) and value != value):
        return []
    return [float(number) for number in np.atleast_1d(np.asarray(value, float))]


def _short(numbers: list[float]) -> str:
    shown = ", ".join(_word(number) for number in numbers[:4])
    return f"{shown}, …" if len(numbers) > 4 else shown or "–"


def _word(number: float) -> str:
    if math.isfinite(number):
        return f"{number:.3g}"
    return "NaN" if math.isnan(number) else "Inf" if number > 0 else "-Inf"

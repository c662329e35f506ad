"""Reads the arguments of `fit` from its frame when the training begins."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any


def fit_facts(frame: FrameType | None, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The known facts about the data and the length of this training; unknown facts are absent. Never raises.

    "batch_size", "steps_per_epoch", "epochs", "shuffle" (True, False or "batch"; absent if the data decides),
    "samples", "class_weight", "sample_weight", "validation".
    """
    found: dict[str, Any] = {
        "steps_per_epoch": (params or {}).get("steps"),
        "epochs": (params or {}).get("epochs"),
    }
    try:
        if frame is not None and frame.f_code.co_name == "fit":
            found |= _facts(frame.f_locals)
    except Exception:  # the fact is missing; the training continues
        found["unknown"] = True
    return {key: value for key, value in found.items() if value is not None}


def _facts(given: Mapping[str, Any]) -> dict[str, Any]:
    adapter = getattr(given.get("epoch_iterator"), "data_adapter", None)
    batch_size = getattr(adapter, "batch_size", None)
    shuffle = getattr(adapter, "_shuffle", getattr(adapter, "shuffle", None))
    loader = getattr(adapter, "_dataloader", None)  # torch's adapter has one
    if loader is not None:
        shuffle = type(getattr(loader, "sampler", None)).__name__ == "RandomSampler"
    samples = getattr(adapter, "_num_samples", None)
    return {
        "batch_size": int(batch_size) if batch_size is not None else given.get("batch_size"),
        "shuffle": shuffle if isinstance(shuffle, bool | str) else None,
        "samples": int(samples) if samples is not None else None,
        "class_weight": given.get("class_weight") is not None,
        "sample_weight": given.get("sample_weight") is not None,
        "validation": given.get("validation_data") is not None or bool(given.get("validation_split")),
    }

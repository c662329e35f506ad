"""Trains programs one after the other under a scope, and prints what was found in each: a line of JSON at its begin and at its end.

    python -m diagnosis.worker SETTING FOLDER [--judge] NAME:VARIANT ...

A process of its own, so that a crash costs one program and not the table. A variant is `fault`, `twin` or `healthy`. The run stays in
FOLDER/NAME-VARIANT; `--judge` reads it there instead of training again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

MARK = "@diagnose "  #: begins each line that is meant for the parent
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "every1": {"every": 1}, "validation": {}}
FIELDS = ("rule", "severity", "site", "layer", "first_step", "last_step", "message")


def main(setting: str, folder: str, *rest: str) -> None:
    warnings.simplefilter("ignore")  # of Keras and the frameworks
    answers = os.fdopen(os.dup(1), "w")  # what a program prints itself goes to stderr
    os.dup2(2, 1)
    judge = rest[:1] == ("--judge",)
    for task in rest[judge:]:
        name, _, variant = task.partition(":")
        print(MARK + json.dumps({"begins": task}), file=answers, flush=True)
        told: dict[str, Any] = {"name": name, "variant": variant, "findings": [], "error": ""}
        begun = time.monotonic()
        try:
            told |= examine(name, variant, setting, Path(folder) / f"{name}-{variant}", judge)
        except Exception as error:
            told["error"] = "".join(traceback.format_exception_only(error)).strip()[-600:]
        told["seconds"] = round(time.monotonic() - begun, 2)
        print(MARK + json.dumps(told), file=answers, flush=True)


def examine(name: str, variant: str, setting: str, place: Path, judge: bool) -> dict[str, Any]:
    """Train one program, or open the run of its last training, and say what is found."""
    import fitscope as fs

    told: dict[str, Any] = {}
    if not judge:
        shutil.rmtree(place, ignore_errors=True)
        history = train(name, variant, setting, place)
        losses = [float(value) for value in history.get("loss", [])]
        told["losses"] = [repr(losses[0]), repr(losses[-1])] if losses else []
    run = fs.open(place)
    # Judged again, the rules are applied as they are now; otherwise what they found while it trained is read.
    told["findings"] = [told_of(each) for each in run.findings(rules=fs.RULES if judge else None)]
    told["steps"] = len(run.series("loss")) if "loss" in run.sites else 0
    return told


def train(name: str, variant: str, setting: str, place: Path) -> dict[str, list[float]]:
    import keras

    import fitscope as fs
    from diagnosis.corpus import by_name

    program = by_name(name)
    keras.backend.clear_session()
    keras.utils.set_random_seed(program.seed)
    training = program.build(*(() if variant == "healthy" else (variant == "fault",)))
    scope = fs.Scope(place, **SETTINGS[setting])
    return training.fit(scope, validate=setting == "validation")


def told_of(finding: Any) -> dict[str, Any]:
    """The fields of a finding that are scored or printed."""
    told = {field: getattr(finding, field, None) for field in FIELDS}
    return {key: value if isinstance(value, int | None) else str(value) for key, value in told.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])

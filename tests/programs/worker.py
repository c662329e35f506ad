"""Runs programs one after the other in this process and prints what came of each: a line of JSON at its begin and at its end.

A process of its own, so that a crash ends this one and not the table: the parent knows from the lines which program it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings

from programs.catalog import PROGRAMS

MARK = "@programs "  #: begins each line that is meant for the parent


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")  # of Keras and the frameworks; the harness catches those of fitscope
    answers = os.fdopen(os.dup(1), "w")  # what a program prints itself goes to stderr
    os.dup2(2, 1)
    from programs.harness import examine

    for name in names:
        program = next(one for one in PROGRAMS if one.name == name)
        print(MARK + json.dumps({"begins": name}), file=answers, flush=True)
        print(MARK + json.dumps(dataclasses.asdict(examine(program))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

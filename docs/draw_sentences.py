"""Draws sentences at random, to be judged by a reader: `python docs/draw_sentences.py [--seed 1] [--most 30] [prose|errors|tests]`.

`prose` are the sentences of the docs and of docstrings in `src`, `errors` the texts of errors that fitscope raises, and `tests` the names
of tests. Nobody reads all of them at once. A drawn one that fails is one of many of its kind: mend the kind.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTEST = 4  #: words of a sentence


def prose() -> Iterator[tuple[str, str]]:
    """Where each sentence stands, and the sentence."""
    pages = [*ROOT.glob("*.md"), *(p for p in ROOT.glob("docs/**/*.md") if p.name != "api.md")]
    for page in sorted(pages):
        text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for block in re.split(r"\n\s*\n|\n(?=[-*#|\d])", text):
            for sentence in sentences(block.replace("|", " ")):
                yield str(page.relative_to(ROOT)), sentence
    for file, tree in sources("src"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for block in (ast.get_docstring(node) or "").split("\n\n"):
                    for sentence in sentences(block):
                        yield file, sentence


def errors() -> Iterator[tuple[str, str]]:
    """Where each error is raised, and its three parts."""
    for file, tree in sources("src"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                texts = [ast.unparse(argument) for argument in node.exc.args]
                if name.endswith("Error") and any(
                    isinstance(a, ast.Constant | ast.JoinedStr) for a in node.exc.args
                ):
                    yield f"{file}:{node.lineno}", f"{name}: " + " · ".join(texts)


def tests() -> Iterator[tuple[str, str]]:
    """Where each test is, and its name in words."""
    for file, tree in sources("tests"):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{file}:{node.lineno}", node.name.removeprefix("test_").replace("_", " ")


def sources(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def sentences(block: str) -> Iterator[str]:
    """The sentences of a paragraph, without its marks of structure."""
    line = re.sub(r"^[\s#>*-]+|^\d+\. ", "", " ".join(block.split()))
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", line):
        if len(sentence.split()) >= SHORTEST:
            yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="prose", choices=["prose", "errors", "tests"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=30)
    options = parser.parse_args()
    found = sorted(set({"prose": prose, "errors": errors, "tests": tests}[options.what]()))
    print(f"{options.most} of {len(found)} ({options.what}), seed {options.seed}")
    drawn = random.Random(options.seed).sample(found, min(options.most, len(found)))
    for number, (where, text) in enumerate(drawn, 1):
        print(f"{number:2}. [{where}] {text}")


if __name__ == "__main__":
    main()

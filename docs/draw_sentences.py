"""Draws sentences at random, to be judged by a reader: `python docs/draw_sentences.py [KIND] [--seed 1] [--most 30]`.

KIND is one of `prose` (sentences of the docs and of docstrings in `src`), `errors` (texts of errors that fitscope raises), `tests`
(names of tests) and `comments` (those in `src`). Nobody reads all of them at once. A drawn one that fails is one of many of its kind:
mend the kind.
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
    """Where each test is, and its name in words, after the name of its class."""
    for file, tree in sources("tests"):
        if not Path(file).name.startswith("test_"):
            continue
        for node in tree.body:
            inside = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]
            where = f"{node.name}: " if isinstance(node, ast.ClassDef) else ""
            for each in inside:
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                    words = each.name.removeprefix("test_").replace("_", " ")
                    yield f"{file}:{each.lineno}", where + words


def comments() -> Iterator[tuple[str, str]]:
    """Where each comment of `src` stands, in Python and in JavaScript, and its text. Lines of one comment are joined."""
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]):
        mark = r"#:?" if path.suffix == ".py" else r"//"
        block, begins = [], 0
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate([*lines, ""], 1):
            alone = re.match(rf"\s*{mark} (.+)", line)
            if alone:
                begins = begins if block else number
                block.append(alone[1])
                continue
            if block:
                yield f"{path.relative_to(ROOT)}:{begins}", " ".join(block)
                block = []
            behind = re.search(rf"\S  ?{mark} (?!noqa|type:|fmt:|pragma)(.+)", line)
            if behind and len(behind[1].split()) >= SHORTEST:
                yield f"{path.relative_to(ROOT)}:{number}", behind[1]


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


KINDS = {"prose": prose, "errors": errors, "tests": tests, "comments": comments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="prose", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=30)
    options = parser.parse_args()
    found = sorted(set(KINDS[options.what]()))
    print(f"{options.most} of {len(found)} ({options.what}), seed {options.seed}")
    drawn = random.Random(options.seed).sample(found, min(options.most, len(found)))
    for number, (where, text) in enumerate(drawn, 1):
        print(f"{number:2}. [{where}] {text}")


if __name__ == "__main__":
    main()

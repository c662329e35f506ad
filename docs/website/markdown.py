"""Markdown as the site shows it: highlighted code, anchors at headings, tables that scroll, and the text that the search reads."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
REPORT = re.compile(r"<!-- report: (\w+) -->")
_FORMAT = HtmlFormatter(nowrap=True)


@dataclass
class Section:
    """A heading and the text below it: one result of the search."""

    level: int
    title: str
    anchor: str
    text: list[str] = field(default_factory=list)


@dataclass
class Rendered:
    """A page without the frame around it."""

    title: str
    body: str
    sections: list[Section]


def coloured(code: str, language: str) -> str:
    """Highlighted code, as HTML."""
    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        return html.escape(code)
    return highlight(code, lexer, _FORMAT)


def anchor(title: str, taken: set[str]) -> str:
    """The anchor of a heading, as the usual hosts make them."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")
    found, n = kept, 0
    while found in taken:
        n += 1
        found = f"{kept}-{n}"
    taken.add(found)
    return found


def render(text: str, link: Callable[[str], str], report: Callable[[str], str]) -> Rendered:
    """A page. `link` says what a link becomes, and `report` what stands for a `<!-- report: name -->`."""
    parser = MarkdownIt("commonmark", {"html": True, "highlight": _fence}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="table"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    parser.add_render_rule("html_block", lambda *arguments: _comment(report, *arguments))
    parser.add_render_rule("html_inline", lambda _, tokens, i, *__: COMMENT.sub("", tokens[i].content))
    tokens = parser.parse(text)
    sections = _sections(tokens)
    for child in (child for token in tokens for child in token.children or ()):
        for name in ("href", "src"):
            if name in child.attrs:
                child.attrs[name] = link(str(child.attrs[name]))
        if child.type == "image":
            child.attrs["loading"] = "lazy"
        elif str(child.attrs.get("href", "")).startswith("https://"):
            child.attrs["rel"] = "external noreferrer"
    body = parser.renderer.render(tokens, parser.options, {})
    return Rendered(sections[0].title, body, sections)


def _fence(code: str, language: str, _: str) -> str:
    inside = coloured(code, language)
    return f'<pre class="code" data-language="{html.escape(language)}"><code>{inside}</code></pre>\n'


def _comment(report: Callable[[str], str], _: Any, tokens: list[Token], i: int, *__: Any) -> str:
    content = REPORT.sub(lambda found: report(found[1]), tokens[i].content)
    return COMMENT.sub("", content)


def _sections(tokens: list[Token]) -> list[Section]:
    """The sections of a page. Gives each heading its anchor, and a link to itself."""
    sections = [Section(1, "", "")]
    taken: set[str] = set()
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            title = tokens[i + 1].content
            found = Section(int(token.tag[1]), re.sub(r"[`*]", "", title), anchor(title, taken))
            token.attrs["id"] = found.anchor
            mark = Token("html_inline", "", 0)
            mark.content = f'<a class="anchor" href="#{found.anchor}" aria-label="Link to this section">#</a>'
            tokens[i + 1].children = [*(tokens[i + 1].children or ()), mark]
            sections.append(found)
        elif token.type == "inline" and tokens[i - 1].type != "heading_open":
            sections[-1].text.append(_words(token))
        elif token.type == "fence":
            sections[-1].text.append(token.content)
    return sections[1:] or sections


def _words(token: Token) -> str:
    kept = (
        child.content or " "
        for child in token.children or ()
        if child.type in ("text", "code_inline", "softbreak")
    )
    return "".join(kept)

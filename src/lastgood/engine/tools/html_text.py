"""Turns HTML into text or Markdown.

Reads every character a bounded number of times, whatever is sent: the standard library's
parser takes minutes over some pages of a few hundred kilobytes. Broken HTML gives
broken text, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from urllib.parse import urljoin

MOST_CHARACTERS = 1024 * 1024
#: A longer tag ends at its first `>`, even within quotes.
_TAG_CHARACTERS = 512
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>"']|"[^"]*+"|'[^']*+')*+)>""")
_ATTRIBUTE = re.compile(r"""([^\s"'>/=]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))""")
_SILENT = frozenset({"script", "style", "template", "svg"})
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset",
    "figure", "footer", "form", "header", "main", "nav", "p", "section", "summary", "table", "title",
})
# fmt: on
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}


@dataclass(frozen=True, slots=True)
class _Tag:
    name: str
    closes: bool
    rest: str

    def attribute(self, name: str) -> str:
        for found in _ATTRIBUTE.finditer(self.rest):
            if found[1].lower() == name:
                return unescape(found[2] or found[3] or found[4] or "").strip()
        return ""


def to_text(html: str) -> str:
    return _TextWriter("", markdown=False).write(html)


def to_markdown(html: str, url: str) -> str:
    """`url` is where the page came from, so that its links lead somewhere."""
    return _TextWriter(url, markdown=True).write(html)


def _read(html: str) -> Iterator[str | _Tag]:
    """Text and tags, in order. What does not end swallows the rest, as in a browser."""
    at = 0
    while at < len(html):
        start = html.find("<", at)
        if start != at:
            yield html[at:start] if start > 0 else html[at:]
        if start < 0:
            return
        at = _after(html, start)
        if at == start:
            yield html[start : start + 1]  # a lone `<` is text
            at += 1
            continue
        tag = _tag(html[start:at])
        if tag is None:
            continue
        if tag.name in _SILENT and not tag.closes:
            end = re.compile(f"</{tag.name}", re.IGNORECASE).search(html, at)
            at = len(html) if end is None else end.start()
            continue
        yield tag


def _after(html: str, start: int) -> int:
    """Where what begins with `<` ends; its beginning if it is no tag."""
    if html.startswith("<!--", start):
        return _past(html, "-->", start + 4)
    if not (html[start + 1 : start + 2].isalpha() or html.startswith(("</", "<!", "<?"), start)):
        return start
    whole = _TAG.match(html, start, start + _TAG_CHARACTERS)
    return whole.end() if whole else _past(html, ">", start)


def _past(html: str, what: str, start: int) -> int:
    found = html.find(what, start)
    return len(html) if found < 0 else found + len(what)


def _tag(text: str) -> _Tag | None:
    found = re.match(r"<(/?)([a-zA-Z][^\s/>]*+)", text)
    return found and _Tag(found[2].lower(), bool(found[1]), text[found.end() : -1])


class _TextWriter:
    def __init__(self, url: str, markdown: bool) -> None:
        self._url = url
        self._markdown = markdown
        self._out: list[str] = []
        self._length = 0
        self._links: list[str] = []
        self._lists: list[int] = []  # the next number of each open list; 0: bullets
        self._is_pre = False

    def write(self, html: str) -> str:
        for token in _read(html):
            if self._length > MOST_CHARACTERS:
                break
            if isinstance(token, str):
                self._text(unescape(token))
            else:
                self._obey(token)
        lines = "".join(self._out).split("\n")
        kept = (line.rstrip() for line in lines)
        return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()

    def _put(self, text: str) -> None:
        self._out.append(text)
        self._length += len(text)

    def _text(self, text: str) -> None:
        if self._is_pre:
            self._put(text)
            return
        words = " ".join(text.split())
        before = " " if text[:1].isspace() and not self._at_line_start() else ""
        if words:
            self._put(before + words + (" " if text[-1:].isspace() else ""))
        elif before:
            self._put(" ")

    def _at_line_start(self) -> bool:
        return not self._out or self._out[-1].endswith((" ", "\n"))

    def _obey(self, tag: _Tag) -> None:
        match tag.name:
            case "br":
                self._put("\n")
            case "hr":
                self._put("\n\n---\n\n")
            case "li":
                self._item(tag)
            case "ul" | "ol":
                self._list(tag)
            case "pre":
                self._pre(tag)
            case "tr":
                self._put("" if tag.closes else "\n")
            case "td" | "th":
                self._put("" if tag.closes else "| " if self._at_line_start() else " | ")
            case "a" if self._markdown:
                self._link(tag)
            case "img" if self._markdown:
                self._image(tag)
            case name if name in _HEADINGS:
                marks = "#" * _HEADINGS[name] + " " if self._markdown and not tag.closes else ""
                self._put(f"\n\n{marks}")
            case name if name in _MARKS and self._markdown and not self._is_pre:
                self._put(_MARKS[name])
            case name:
                self._put("\n\n" if name in _BLOCKS else "")

    def _list(self, tag: _Tag) -> None:
        outermost = len(self._lists) <= tag.closes
        if not tag.closes:
            self._lists.append(1 if tag.name == "ol" else 0)
        elif self._lists:
            self._lists.pop()
        self._put("\n\n" if outermost else "")

    def _item(self, tag: _Tag) -> None:
        if tag.closes:
            return
        number = self._lists[-1] if self._lists else 0
        if number:
            self._lists[-1] += 1
        indent = "  " * min(len(self._lists) - 1, 20)
        self._put(f"\n{indent}{f'{number}.' if number else '-'} ")

    def _pre(self, tag: _Tag) -> None:
        self._is_pre = not tag.closes
        fence = "```" if self._markdown else ""
        self._put(f"\n{fence}\n\n" if tag.closes else f"\n\n{fence}\n")

    def _link(self, tag: _Tag) -> None:
        if not tag.closes:
            target = self._target(tag.attribute("href"))
            self._links.append(target)
            self._put("[" if target else "")
        elif self._links:
            target = self._links.pop()
            self._put(f"]({target})" if target else "")

    def _image(self, tag: _Tag) -> None:
        target = self._target(tag.attribute("src"))
        if target:
            self._put(f"![{tag.attribute('alt')}]({target})")

    def _target(self, link: str) -> str:
        """Nothing for what leads nowhere from here."""
        if not link or link.startswith("#"):
            return ""
        try:
            target = urljoin(self._url, link)
        except ValueError:
            return ""
        return target if target.startswith(("http:", "https:", "mailto:")) else ""

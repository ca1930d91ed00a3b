"""Colours for Markdown on a terminal, while it streams.

Only adds colours: no character is removed or moved. So an answer can be copied as the model wrote it, and
text that is not Markdown loses nothing. Knows no terminal, and expects text without control characters.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(?:`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6} ")
_BULLET = re.compile(r" *(?:[-*+]|\d{1,3}[.)]) ")
#: The beginning of a line that may still become one of these.
_UNDECIDED = re.compile(r" {0,3}(?:`{0,2}|~{0,2}|#{0,6})| *(?:[-*+]|\d{1,3}[.)]?)?")
_MARKS = re.compile(r"`|\*+|\n")

_RESET, _BOLD, _DIM, _CYAN, _YELLOW = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[33m"


class MarkdownColours:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._held = ""  # came, and waits for the characters after it
        self._line = ""  # the colour of the whole line
        self._starts = True  # the next character is the first of a line
        self._fenced = False
        self._bold = False
        self._code = False

    def feed(self, text: str) -> str:
        """Returns the coloured text as far as its colours are known."""
        text, self._held = self._held + text, ""
        shown: list[str] = []
        at = 0
        while at < len(text):
            if self._starts:
                if _UNDECIDED.fullmatch(text, at):
                    self._held = text[at:]
                    break
                at = self._start_line(text, at, shown)
                continue
            found = _MARKS.search(text, at)
            if found is None:
                shown.append(text[at:])
                break
            shown.append(text[at : found.start()])
            at = found.end()
            if found[0][0] == "*" and at == len(text):
                self._held = found[0]
                break
            self._mark(found[0], text[at : at + 1], shown)
        return "".join(shown)

    def end(self) -> str:
        """Returns what was held back, and ends all colours. The next text begins a new line."""
        rest = self._held + (_RESET if self._colours() else "")
        self._begin()
        return rest

    def _start_line(self, text: str, at: int, shown: list[str]) -> int:
        """Returns where the line goes on after its marker."""
        self._starts = False
        if fence := _FENCE.match(text, at):
            self._fenced, self._line = not self._fenced, _DIM
            shown.append(_DIM + fence[0])
            return fence.end()
        if self._fenced:
            self._line = _CYAN
        elif _HEADING.match(text, at):
            self._line = _BOLD
        elif bullet := _BULLET.match(text, at):
            self._line = ""
            shown.append(_YELLOW + bullet[0] + _RESET)
            return bullet.end()
        else:
            self._line = ""
        shown.append(self._line)
        return at

    def _mark(self, mark: str, after: str, shown: list[str]) -> None:
        opens_nothing = mark == "**" and not self._bold and after.isspace()
        if mark == "\n":
            shown.append((_RESET if self._colours() else "") + mark)
            self._starts, self._line, self._bold, self._code = True, "", False, False
        elif self._line in (_DIM, _CYAN) or opens_nothing or (mark != "`" and (self._code or mark != "**")):
            shown.append(mark)
        else:
            before = self._bold or self._code
            if mark == "`":
                self._code = not self._code
            else:
                self._bold = not self._bold
            colours = _RESET + self._colours()
            shown.append(mark + colours if before else colours + mark)

    def _colours(self) -> str:
        return self._line + (_BOLD if self._bold else "") + (_CYAN if self._code else "")

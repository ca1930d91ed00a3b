"""Answers as people read them: the part of Markdown that models write most. Everything is escaped first.

No links, no images and no HTML: a model that was talked into it must not lead anybody anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

#: Longer answers are shown as they are: pages are rendered on the event loop.
_LONGEST = 50_000
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"^(#{1,6}) +(.+)$")
_LINE = re.compile(r"^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$")
_QUOTE = re.compile(r"^ {0,3}> ?")
#: The line below the head of a table, and what parts its cells: a bar that is not in code and not escaped.
_RULE = re.compile(r"^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$")
_BAR = re.compile(r"(`+)[^`]*\1|\\.|(\|)")
_BULLET = re.compile(r"^\s{0,6}(?:[-*+]|(\d{1,9})[.)]) +(.*)$")
#: Runs of one length, as Markdown has it. A run of any length would be tried in all its parts, each to the
#: end of the text.
_CODE = re.compile(r"(?<!`)(`{1,3})(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_OPENS_BOLD = re.compile(r"\*\*(?=\S)")
_CLOSES_BOLD = re.compile(r"(?<=\S)\*\*")


def markdown(text: str) -> Markup:
    from markupsafe import Markup

    if len(text) > _LONGEST:
        return Markup(f'<pre tabindex="0" aria-label="Answer">{_escaped(text)}</pre>')
    return Markup("".join(_blocks(text.split("\n"))))


def _blocks(lines: list[str]) -> Iterator[str]:
    place = 0
    while place < len(lines):
        line = lines[place]
        fence = _FENCE.match(line)
        if fence:
            end = next(
                (at for at in range(place + 1, len(lines)) if lines[at].strip() == fence[1]), len(lines)
            )
            code = _escaped("\n".join(lines[place + 1 : end]))
            yield f'<pre tabindex="0" aria-label="Code">{code}</pre>'
            place = end + 1
        elif heading := _HEADING.match(line):
            yield f'<p class="heading">{_inline(heading[2])}</p>'
            place += 1
        elif _LINE.match(line):
            yield "<hr>"
            place += 1
        elif _QUOTE.match(line):
            end = place
            while end < len(lines) and _QUOTE.match(lines[end]):
                end += 1
            quoted = "\n".join(_QUOTE.sub("", one) for one in lines[place:end])
            yield f"<blockquote><p>{_inline(quoted)}</p></blockquote>"
            place = end
        elif _begins_table(lines, place):
            end = place + 2
            while end < len(lines) and "|" in lines[end]:
                end += 1
            yield _table(lines[place], lines[place + 1], lines[place + 2 : end])
            place = end
        elif _BULLET.match(line):
            end = place
            while end < len(lines) and (_BULLET.match(lines[end]) or lines[end].startswith("  ")):
                end += 1
            yield _list(lines[place:end])
            place = end
        elif not line.strip():
            place += 1
        else:
            end = place + 1
            while end < len(lines) and lines[end].strip() and not _begins_block(lines, end):
                end += 1
            yield f"<p>{_inline(chr(10).join(lines[place:end]))}</p>"
            place = end


def _begins_block(lines: list[str], place: int) -> bool:
    patterns = (_FENCE, _HEADING, _LINE, _QUOTE, _BULLET)
    return any(one.match(lines[place]) for one in patterns) or _begins_table(lines, place)


def _begins_table(lines: list[str], place: int) -> bool:
    if "|" not in lines[place] or place + 1 >= len(lines):
        return False
    rule = lines[place + 1]
    return "|" in rule and _RULE.match(rule) is not None


def _cells(line: str) -> list[str]:
    bars = [found.start() for found in _BAR.finditer(line) if found[2]]
    edges = [-1, *bars, len(line)]
    cells = [line[left + 1 : right].strip() for left, right in pairwise(edges)]
    first, last = int(not cells[0]), len(cells) - int(len(cells) > 1 and not cells[-1])
    return [one.replace("\\|", "|") for one in cells[first:last]]


def _table(head: str, rule: str, rows: list[str]) -> str:
    """Of a row, as many cells as the head has. What is missing is not made up: a head of a thousand cells
    and a thousand short rows would be a page of a million."""
    names = _cells(head)
    numbers = [one.endswith(":") and not one.startswith(":") for one in _cells(rule)[: len(names)]]
    kinds = [' class="num"' if one else "" for one in numbers] + [""] * (len(names) - len(numbers))

    def row(line: str) -> str:
        shown = (f"<td{kind}>{_inline(text)}</td>" for kind, text in zip(kinds, _cells(line), strict=False))
        return f"<tr>{''.join(shown)}</tr>"

    titles = (f'<th scope="col"{kind}>{_inline(name)}</th>' for kind, name in zip(kinds, names, strict=True))
    return (
        '<div class="table" tabindex="0" role="region" aria-label="Table"><table>'
        f"<thead><tr>{''.join(titles)}</tr></thead><tbody>{''.join(map(row, rows))}</tbody></table></div>"
    )


def _list(lines: list[str]) -> str:
    items: list[str] = []
    first = _BULLET.match(lines[0])
    is_numbered = first is not None and first[1] is not None
    for line in lines:
        found = _BULLET.match(line)
        if found:
            items.append(found[2])
        elif items:
            items[-1] += "\n" + line.strip()
    tag = "ol" if is_numbered else "ul"
    start = f' start="{int(first[1])}"' if is_numbered and first is not None and first[1] != "1" else ""
    return f"<{tag}{start}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{tag}>"


def _inline(text: str) -> str:
    """Code first: nothing in it is anything else."""
    made, last = [], 0
    for code in _CODE.finditer(text):
        made.append(_emphasised(text[last : code.start()]))
        made.append(f"<code>{_escaped(code[2].strip() or code[2])}</code>")
        last = code.end()
    made.append(_emphasised(text[last:]))
    return "".join(made)


def _emphasised(text: str) -> str:
    return "\n".join(map(_bold, _escaped(text).split("\n")))


def _bold(line: str) -> str:
    """In one pass: a line in which nothing closes is not searched again for each mark that opens."""
    made, last = [], 0
    while (opens := _OPENS_BOLD.search(line, last)) is not None:
        closes = _CLOSES_BOLD.search(line, opens.end() + 1)
        if closes is None:
            break
        made += [line[last : opens.start()], "<b>", line[opens.end() : closes.start()], "</b>"]
        last = closes.end()
    return "".join((*made, line[last:]))


def _escaped(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))

"""How the console words things: times, sizes, statuses, and stored decisions as sentences."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lastgood.core.visible_text import visible
from lastgood.surfaces.console.markdown import markdown
from lastgood.surfaces.http.resource import timestamp

if TYPE_CHECKING:
    from markupsafe import Markup

#: Our ids, those of agent CLIs (32 hexadecimal digits, with or without dashes), and times.
_MARK = re.compile(
    r"\b(?:(?:task|turn|ses|att|rt)_[0-9a-f]{32}|wrk_[0-9a-f]{24}|[0-9a-f]{32}"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)\b"
)
_THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """`340 ms`, `12 s`, `3 min 5 s`, `2 h 10 min`: the two largest units."""
    if seconds < 1:
        return f"{max(round(seconds * 1000), 0)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts: list[str] = []
    for size, name in _UNITS:
        if whole >= size or (parts and size == 1 and len(parts) < 2 and whole):
            parts.append(f"{whole // size} {name}")
            whole %= size
        if len(parts) == 2:
            break
    return " ".join(parts)


def ago(seconds: float) -> str:
    """Of a moment: how long before now, in one unit, or how far ahead."""
    passed = time.time() - seconds
    if passed < -5:
        return f"in {span(-passed)}"
    if passed < 5:
        return "now"
    size, name = next(unit for unit in _UNITS if passed >= unit[0])
    return f"{int(passed // size)} {name} ago"


def moment(seconds: float | None) -> dict[str, Any] | None:
    return None if seconds is None else {"at": timestamp(seconds), "ago": ago(seconds)}


def count(number: int) -> str:
    return f"{number:,}"


def compact(number: int) -> str:
    """`9,999`, `12.3k`, `8.1M`: three digits or so, where exact ones do not fit."""
    if number < 10_000:
        return count(number)
    size, unit = next(one for one in _THOUSANDS if number >= one[0] * 0.9995)
    return f"{number / size:.1f}{unit}"


def file_name(where: str) -> str:
    """The last part of a path or URL."""
    return where.rstrip("/").rpartition("/")[2] or where


def short(id: str) -> str:
    """`ses_3f2a9c81`: enough for people to tell ids apart. Ids of agent CLIs have no prefix."""
    kind, _, rest = id.partition("_")
    return f"{kind}_{rest[:8]}" if rest else id[:8] if _MARK.fullmatch(id) else id[:12]


def pretty(value: Any) -> str:
    """JSON in lines, if it is JSON; otherwise as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
        if not isinstance(value, dict | list):
            return str(value)
    return json.dumps(value, indent=2, ensure_ascii=False)


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text[:2000].split("\n") if line.strip()), "")


def command_of(arguments: Any) -> str:
    """The whole command of a shell call, or all arguments, so that nothing stays hidden."""
    return visible(_command(arguments))


def _command(arguments: Any) -> str:
    plain = arguments
    if isinstance(plain, str):
        try:
            plain = json.loads(plain)
        except ValueError:
            return str(arguments)
    if isinstance(plain, dict) and len(plain) == 1:
        (only,) = plain.values()
        if isinstance(only, str):
            return only
    return pretty(plain)


def path(text: str) -> Markup:
    """A path breaks after its slashes, and not within a name unless the name alone is too long."""
    from markupsafe import Markup, escape

    return Markup("/<wbr>").join(escape(part) for part in text.split("/"))


def linked(text: str, runtimes: Mapping[str, str] | None = None) -> Markup:
    """A sentence in which ids and times are short, ids of tasks are links, and runtimes have their names."""
    from markupsafe import Markup, escape

    made, last = Markup(""), 0
    for found in _MARK.finditer(text):
        id = found[0]
        if id.endswith("Z"):
            shown = Markup('<time datetime="{}" title="{}">{} UTC</time>').format(
                id, id, id[:16].replace("T", " ")
            )
        elif id.startswith("task_"):
            shown = Markup('<a href="/work/tasks/{}">{}</a>').format(id, short(id))
        else:
            shown = Markup('<span title="{}">{}</span>').format(id, (runtimes or {}).get(id) or short(id))
        made, last = made + escape(text[last : found.start()]) + shown, found.end()
    return made + escape(text[last:])


def decisions(decision: Mapping[str, Any]) -> list[str]:
    """A stored decision in plain words, one sentence each; what is not known here is shown as it is."""
    said = [sentence for name, word in _SENTENCES.items() if (sentence := word(decision.get(name)))]
    known = {*_SENTENCES, *_SHOWN_ELSEWHERE}
    return said + [f"{name}: {pretty(value)}" for name, value in decision.items() if name not in known]


_SHOWN_ELSEWHERE = {
    "agent",
    "name",
    "recorded",
    "candidates",
    "runtime",
    "context_tokens",
    "context_size",
}


def _sentence(form: str) -> Callable[[Any], str]:
    return lambda value: form.format(value) if value not in (None, "", False, 0) else ""


_SENTENCES: dict[str, Callable[[Any], str]] = {
    "reason": _sentence("Agent: {}."),
    "key": lambda _: "",
    "stale": _sentence("An older definition answered: {}."),
    "recovery": _sentence("Tried again: {}."),
    "runtime_reason": _sentence("Runtime: {}."),
    "left_out": _sentence("The model did not see the {} oldest messages: the prompt was too long."),
    "cut_short": _sentence("The answer was cut at the limit of output tokens."),
    "resume": lambda value: resume_words(value) if isinstance(value, Mapping) else "",
}


_RESUMED = {
    "native": "Resumed native session {}",
    "replay": "Started a new native session with the transcript",
    "fresh": "Started a new native session without history",
}
_WOULD_RESUME = {
    "native": "Would resume native session {}",
    "replay": "Would start a new native session with the transcript",
    "fresh": "Would start a new native session without history",
}


def resume_words(decision: Mapping[str, Any], *, is_done: bool = True) -> str:
    """`Resumed native session 3f2a: same runtime; last turn committed.`, or what the next turn would do."""
    kind = str(decision.get("decision"))
    words = (_RESUMED if is_done else _WOULD_RESUME).get(kind, kind)
    return f"{words.format(decision.get('native_session'))}: {decision.get('reason', '')}."


def percent(text: str) -> str:
    """As one segment of a path."""
    return quote(text, safe="")


def money(amount: float) -> str:
    """`$1,204.50`, `$0.0312`: small amounts keep what counts of them."""
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:,.4f}"


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "first_line": first_line,
    "span": span,
    "short": short,
    "pretty": pretty,
    "command": command_of,
    "path": path,
    "linked": linked,
    "visible": visible,
    "segment": percent,
    "markdown": markdown,
    "money": money,
}

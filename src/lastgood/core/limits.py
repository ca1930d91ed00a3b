"""How much one request, one rule or one tool call may hold.

Every limit is a count that can be checked before the expensive work starts. The byte
limits of requests are settings; these are not, because raising one would let a single
request hold the event loop foreverybody. docs/guarantees.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.errors import InvalidRequest, TooLarge

#: Values of a JSON body: elements of lists and fields of objects. They are counted before any is built.
JSON_VALUES = 200_000
#: Fields of the body itself, known and unknown.
FIELDS = 1_000
#: Of a chat request. The session API takes fewer messages (1,000).
MESSAGES = 10_000
PARTS_PER_MESSAGE = 1_000
PARTS = 10_000
TOOL_CALLS_PER_MESSAGE = 256
TOOLS = 128

#: Of an import. It is one transaction, and SQLite has one writer.
IMPORT_VALUES = 2_000_000
IMPORT_TURNS = 20_000
IMPORT_MESSAGES = 100_000

#: Rules of one session or one agent file: allow, ask and deny together.
RULES = 200
RULE_CHARACTERS = 400
#: Of one argument of a tool call that a rule looks at. A longer one is not matched against the rule:
#: a deny rule denies it, an ask rule asks, an allow rule does not allow it.
JUDGED_CHARACTERS = 32_768
JUDGED_ITEMS = 1_000


def check_rules(rules: Mapping[str, Sequence[Any] | None]) -> None:
    """Of one session: lists of rules by what they do."""
    count = sum(len(listed or ()) for listed in rules.values())
    if count > RULES:
        raise InvalidRequest(
            f"permissions hold {count:,} rules; the limit is {RULES:,}. Use globs to need fewer",
            param="permissions",
        )
    for kind, listed in rules.items():
        for number, rule in enumerate(listed or ()):
            if isinstance(rule, str) and len(rule) > RULE_CHARACTERS:
                raise InvalidRequest(
                    f"permissions.{kind}[{number}] has {len(rule):,} characters; "
                    f"the limit is {RULE_CHARACTERS:,}. Use a shorter rule",
                    param=f"permissions.{kind}[{number}]",
                )


def check_body(body: Mapping[str, Any]) -> None:
    """What a body holds of the things that are costly to validate."""
    _check("the body", "fields", len(body), FIELDS)
    messages = body.get("messages")
    if isinstance(messages, list):
        _check("messages", "messages", len(messages), MESSAGES, "messages")
        _check_messages(messages)
    elif isinstance(body.get("message"), dict):
        _check_messages([body["message"]])
    if isinstance(body.get("tools"), list):
        _check("tools", "tools", len(body["tools"]), TOOLS, "tools")


_LISTS = (
    ("content", "parts", PARTS_PER_MESSAGE),
    ("multi_content", "parts", PARTS_PER_MESSAGE),
    ("tool_calls", "tool calls", TOOL_CALLS_PER_MESSAGE),
)


def _check_messages(messages: Sequence[Any]) -> None:
    """Nearly every message holds a text and no list, and there may be thousands in every request."""
    parts = 0
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or (len(message) <= 2 and isinstance(message.get("content"), str)):
            continue
        for name, what, limit in _LISTS:
            listed = message.get(name)
            if isinstance(listed, list):
                place = f"messages[{number}].{name}"
                _check(place, what, len(listed), limit, place)
                parts += len(listed) if what == "parts" else 0
    _check("messages", "parts in all", parts, PARTS, "messages")


def check_import(turns: Any) -> None:
    """Checks the size of an exported session before any turn of it is parsed."""
    _check("turns", "turns", _length(turns), IMPORT_TURNS, "turns")
    messages = 0
    for number, turn in enumerate(turns if isinstance(turns, list) else ()):
        count = _length(turn.get("messages")) if isinstance(turn, dict) else 0
        _check(f"turns[{number}].messages", "messages", count, MESSAGES, f"turns[{number}].messages")
        messages += count
    _check("turns", "messages in all", messages, IMPORT_MESSAGES, "turns")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _check(where: str, what: str, count: int, limit: int, param: str | None = None) -> None:
    if count > limit:
        raise TooLarge(f"{where} has {count:,} {what}; the limit is {limit:,}. Send fewer", param=param)

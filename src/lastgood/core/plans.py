"""Decides what a plan is: its name, its fields, and what a change keeps of the one before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST_PLANS = 200
PLAN_CHARACTERS = 200_000
FIELD_CHARACTERS = 200

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}\Z")
#: Beside its content; what a change does not name stays.
FIELDS = ("title", "author", "status")


def why_not_a_name(name: str) -> str | None:
    if _NAME.match(name):
        return None
    return f"{name!r} is not a name of a plan; use lowercase letters, digits, '-' and '_'"


def changed_plan(before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, str] | str:
    """The plan after the change. A text: why it cannot be so."""
    plan = {key: str(before[key]) for key in ("content", *FIELDS) if before.get(key)}
    for key in ("content", *FIELDS):
        if change.get(key) is not None:
            plan[key] = str(change[key])
    for key, value in plan.items():
        most = PLAN_CHARACTERS if key == "content" else FIELD_CHARACTERS
        if len(value) > most:
            return f"`{key}` has {len(value):,} characters; the limit is {most:,}"
        if "\x00" in value:
            return f"`{key}` cannot contain a NUL character"
    return plan

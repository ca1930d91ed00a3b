"""Finds expressions in an agent file that docker-agent evaluates and Lastgood leaves as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lastgood.agents.findings import Findings
from lastgood.agents.schema_reader import Fields, Value

_VARIABLE = re.compile(r"\$\{(?:env\.)?[A-Za-z_]\w*\}")
#: From a `${` to the next `}`, or to the end. Possessive: a file of nothing but `${` is read once.
_EXPRESSION = re.compile(r"\$\{[^}]*+\}?")
_EVALUATED = re.compile(r"\b(?:env|headers)\.")
_FILLED = ("env", "headers")


def check_filled(fields: Fields, findings: Findings) -> None:
    """In variables and headers, plain names are replaced and nothing else is."""
    for key in _FILLED:
        for value in fields.named(key).values():
            _report(value, evaluated_in(_VARIABLE.sub("", value.raw)), findings)


def check_text(fields: Fields, keys: tuple[str, ...], findings: Findings) -> None:
    """In texts, nothing is replaced."""
    for key in keys:
        for value in _texts(fields.values.get(key)):
            _report(value, evaluated_in(value.raw), findings)


def evaluated_in(text: str) -> list[str]:
    found = _EXPRESSION.findall(text)
    return [one for one in found if one.endswith("}") and _EVALUATED.search(one)]


def _report(value: Value, found: list[str], findings: Findings) -> None:
    for expression in found:
        what = f"`{expression}` is not supported here yet: it is left as it is written"
        findings.warning(value.place, what)


def _texts(value: Any) -> Iterator[Value]:
    if isinstance(value, Value):
        yield from value.raw if isinstance(value.raw, list) else (value,)

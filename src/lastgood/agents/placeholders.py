"""Finds expressions in an agent file that docker-agent evaluates and Lastgood leaves as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lastgood.agents.findings import Findings
from lastgood.agents.schema_reader import Fields, Value

_VARIABLE = re.compile(r"\$\{(?:env\.)?[A-Za-z_]\w*\}")
_EVALUATED = re.compile(r"\$\{[^}]*\b(?:env|headers)\.[^}]*\}")
_FILLED = ("env", "headers")


def check_filled(fields: Fields, findings: Findings) -> None:
    """In variables and headers, plain names are replaced and nothing else is."""
    for key in _FILLED:
        for value in fields.named(key).values():
            _report(value, _EVALUATED.findall(_VARIABLE.sub("", value.raw)), findings)


def check_text(fields: Fields, keys: tuple[str, ...], findings: Findings) -> None:
    """In texts, nothing is replaced."""
    for key in keys:
        for value in _texts(fields.values.get(key)):
            _report(value, _EVALUATED.findall(value.raw), findings)


def _report(value: Value, found: list[str], findings: Findings) -> None:
    for expression in found:
        what = f"`{expression}` is not supported here yet: it is left as it is written"
        findings.warning(value.place, what)


def _texts(value: Any) -> Iterator[Value]:
    if isinstance(value, Value):
        yield from value.raw if isinstance(value.raw, list) else (value,)

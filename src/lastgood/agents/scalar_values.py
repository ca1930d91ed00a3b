"""The value of a scalar where a flag, a number or a duration is expected; None if it is not one.

YAML 1.2's core rules, with two courtesies: `yes`, `no`, `on` and `off` are flags where
a flag is expected, and a number in quotes is a number where a number is expected.
"""

from __future__ import annotations

import math
import re
from typing import Any

from lastgood.agents.yaml_tree import Scalar

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPAN = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|μs|ms|s|m|h))+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Longer ones are mistakes, and their numbers no longer whole.
_MOST_DIGITS = 18


def flag_of(scalar: Scalar) -> bool | None:
    return None if scalar.quoted else _FLAGS.get(scalar.text.lower())


def whole_of(scalar: Scalar) -> int | None:
    text = scalar.text.strip()
    if len(text) > _MOST_DIGITS:
        return None
    if _WHOLE.fullmatch(text):
        bare = text.replace("_", "")
        return int(bare, 0) if bare.startswith(("0x", "0o")) else int(bare)
    number = number_of(scalar)
    return int(number) if number is not None and number.is_integer() else None


def number_of(scalar: Scalar) -> float | None:
    text = scalar.text.strip()
    if not _DECIMAL.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def seconds_of(scalar: Scalar) -> float | None:
    text = scalar.text.strip()
    if _SPAN.fullmatch(text):
        parts = re.findall(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)", text)
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    number = number_of(scalar)
    return number if number is not None and number >= 0 else None


def core_value(scalar: Scalar) -> Any:
    """The value where any type is allowed."""
    text = scalar.text
    if scalar.quoted:
        return text
    if scalar.is_null:
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _WHOLE.fullmatch(text) and "_" not in text and len(text) <= _MOST_DIGITS:
        return whole_of(scalar)
    number = number_of(scalar)
    return text if number is None else number

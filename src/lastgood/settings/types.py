"""The types of settings: how the text of a flag, a variable or a key becomes a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class SettingsInvalid(ValueError):
    """A setting is invalid; the text names it and says what it must be."""


@dataclass(frozen=True, slots=True)
class SettingText:
    """A setting as it was written. `source` is the flag, variable or key; `folder` is where its paths start.

    Errors name the source and never the text: a secret may have been pasted into the wrong place.
    """

    text: str
    source: str
    folder: Path

    def invalid(self, expected: str) -> SettingsInvalid:
        return SettingsInvalid(f"{self.source} must be {expected}")


@dataclass(frozen=True, slots=True)
class SettingType:
    """`is_list`: its flag can be repeated. `is_switch`: its flag takes no value and means `yes`."""

    metavar: str
    read: Callable[[SettingText], Any]
    is_list: bool = False
    is_switch: bool = False


def _path(given: SettingText) -> Path:
    return (given.folder / Path(given.text).expanduser()).absolute()


def _address(given: SettingText) -> str:
    path = given.text.removeprefix("unix://")
    return given.text if path in ("", given.text) else f"unix://{_path(replace(given, text=path))}"


def _number(given: SettingText) -> int:
    if not re.fullmatch(r"\d{1,9}", given.text):
        raise given.invalid("a whole number")
    return int(given.text)


def _size(given: SettingText) -> int:
    found = re.fullmatch(r"(\d{1,9})([KMG]?)", given.text)
    if found is None:
        raise given.invalid("a size in bytes (500K, 32M, 1G)")
    return int(found[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]]


def _duration(given: SettingText) -> float:
    found = _DURATION.fullmatch(given.text)
    if given.text != "0" and found is None:
        raise given.invalid("a duration with a unit (60s, 5m, 1h) or 0")
    return float(found[1]) * _SECONDS[found[2]] if found else 0.0


def choice(metavar: str, choices: Sequence[str]) -> SettingType:
    def read(given: SettingText) -> str:
        if given.text not in choices:
            raise given.invalid(f"one of {', '.join(choices)}")
        return given.text

    return SettingType(metavar, read)


def list_of(metavar: str, choices: Sequence[str] = ()) -> SettingType:
    def read(given: SettingText) -> tuple[str, ...]:
        items = tuple(item.strip() for item in given.text.split(",") if item.strip())
        if choices and not set(items) <= set(choices):
            raise given.invalid(f"a list of {', '.join(choices)}")
        return items

    return SettingType(metavar, read, is_list=True)


def _yes_or_no(given: SettingText) -> bool:
    if given.text not in ("yes", "no"):
        raise given.invalid("one of yes, no")
    return given.text == "yes"


FILE = SettingType("FILE", _path)
DIRECTORY = SettingType("DIR", _path)
URL = SettingType("URL", lambda given: given.text)
NAME = SettingType("NAME", lambda given: given.text)
ADDRESS = SettingType("ADDRESS", _address)
NUMBER = SettingType("N", _number)
SIZE = SettingType("SIZE", _size)
DURATION = SettingType("TIME", _duration)
SWITCH = SettingType("", _yes_or_no, is_switch=True)

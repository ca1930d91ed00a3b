"""A setting is one row: its type, its default and its help. Everything else is made from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lastgood.settings.types import SettingText, SettingType


@dataclass(frozen=True, slots=True)
class Row:
    """`default` is written as users write it, or described. `has_flag`: a command accepts it as an option."""

    name: str
    type: SettingType
    default: str
    help: str
    has_flag: bool
    table: str = ""  # of `lastgood.toml`, and the first part of its variable

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        prefix = f"{self.table.upper()}_" if self.table else ""
        return f"LASTGOOD_{prefix}{self.name.upper()}"

    @property
    def key(self) -> str:
        """As it is written in `lastgood.toml`."""
        return f"{self.table}.{self.name}" if self.table else self.name


def setting(
    type: SettingType,
    help: str,
    default: str = "",
    *,
    shown: str = "",
    required: bool = False,
    has_flag: bool = True,
) -> Any:
    """`shown` describes a default that is computed, or whose text says too little."""
    about = {"type": type, "default": shown or default, "help": help, "has_flag": has_flag}
    if required:
        return field(metadata=about)
    empty = () if type.is_list else None
    return field(
        default=type.read(SettingText(default, "the default", Path())) if default else empty, metadata=about
    )


def rows_of(settings: type[Any], table: str = "") -> Mapping[str, Row]:
    return {one.name: Row(one.name, **one.metadata, table=table) for one in fields(settings)}

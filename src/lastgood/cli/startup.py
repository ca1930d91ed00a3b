"""Settings from the arguments of a command."""

from __future__ import annotations

import argparse
from typing import Any

from lastgood.errors import WrongUsage
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.settings import ROWS, Settings, read_settings, read_worker_settings
from lastgood.settings.types import SettingsInvalid
from lastgood.settings.worker_settings import WORKER_ROWS, WorkerSettings

TENANT = DEFAULT_TENANT


def settings_of(args: argparse.Namespace) -> Settings:
    flags: dict[str, Any] = {name: _as_text(getattr(args, name, None)) for name in ROWS}
    try:
        return read_settings(**flags)
    except SettingsInvalid as error:
        raise WrongUsage(str(error)) from None


def worker_settings_of(args: argparse.Namespace) -> WorkerSettings:
    names = ("data_dir", "config", *WORKER_ROWS)
    flags: dict[str, Any] = {name: _as_text(getattr(args, name, None)) for name in names}
    try:
        return read_worker_settings(**flags)
    except SettingsInvalid as error:
        raise WrongUsage(str(error)) from None


def _as_text(flag: str | list[str] | None) -> str | None:
    """Joins the values of a repeated flag with commas, as variables have them."""
    return ",".join(flag) if isinstance(flag, list) else flag

"""From arguments to an open Lastgood, and to the session that is meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lastgood.core.input_checks import check_text
from lastgood.errors import WrongUsage
from lastgood.flows.session_reader import SessionReader
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.sessions import Session
from lastgood.settings import ROWS, Settings, read_settings
from lastgood.settings.types import SettingsInvalid
from lastgood.wiring import open_store

TENANT = DEFAULT_TENANT


def settings_of(args: argparse.Namespace) -> Settings:
    flags: dict[str, Any] = {name: _as_text(getattr(args, name, None)) for name in ROWS}
    try:
        return read_settings(**flags)
    except SettingsInvalid as error:
        raise WrongUsage(str(error)) from None


def _as_text(flag: str | list[str] | None) -> str | None:
    """Joins the values of a repeated flag with commas, as variables have them."""
    return ",".join(flag) if isinstance(flag, list) else flag


@asynccontextmanager
async def open_to_read(settings: Settings) -> AsyncIterator[SessionReader]:
    """Beside whoever runs: takes no lock, recovers nothing and starts nothing."""
    store = await open_store(settings.database, read_only=True)
    try:
        yield SessionReader(store)
    finally:
        await store.close()


async def session_of(sessions: SessionReader, text: str) -> Session:
    """The session with this id, or the N-th newest for -N."""
    if re.fullmatch(r"-[1-9][0-9]{0,8}", text):
        return await sessions.newest(TENANT, int(text[1:]))
    check_text(text, "the session id")
    return await sessions.get(TENANT, SessionId(text))

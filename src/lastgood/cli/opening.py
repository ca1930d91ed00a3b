"""From arguments to an open Lastgood, and to the session that is meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lastgood.agents.builtin import scripted_agent
from lastgood.core.intake import check_text
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.sessions import Session
from lastgood.settings import Settings, read_settings
from lastgood.wiring import Lastgood, assemble, open_store, scripted_engine

TENANT = DEFAULT_TENANT


def settings_of(args: argparse.Namespace) -> Settings:
    return read_settings(data_dir=getattr(args, "data_dir", None), database=getattr(args, "database", None))


@asynccontextmanager
async def open_to_read(settings: Settings) -> AsyncIterator[Lastgood]:
    """Beside whoever runs: takes no lock, recovers nothing and starts nothing."""
    store = await open_store(settings.database, read_only=True)
    try:
        yield assemble(store, scripted_engine(), [scripted_agent()])
    finally:
        await store.close()


async def session_of(app: Lastgood, text: str) -> Session:
    """The session with this id, or the N-th newest for -N."""
    if re.fullmatch(r"-[1-9][0-9]{0,8}", text):
        return await app.sessions.newest(TENANT, int(text[1:]))
    check_text(text, "the session id")
    return await app.sessions.get(TENANT, SessionId(text))

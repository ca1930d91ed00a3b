"""Generates session titles beside the turn: written after the commit, never over a person's title."""

from __future__ import annotations

import asyncio

from lastgood.core.input_checks import first_words
from lastgood.errors import LastgoodError
from lastgood.flows.attempt_run import Run
from lastgood.flows.dependencies import Dependencies
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import Event, TitleSet
from lastgood.model.sessions import TitleBy


async def name_session(deps: Dependencies, run: Run, agent: AgentSpec) -> None:
    """Fails silently: a session without a title is better than a turn without an end."""
    messages = run.begin.ask.messages
    asked = asyncio.create_task(deps.engine.title(agent, messages)) if agent.title_model else None
    try:
        outcome = await asyncio.shield(run.done)
        if outcome.status is not AttemptStatus.COMMITTED:
            return
        title = await _within(asked, deps.limits.title_seconds) or first_words(messages)
        event = Event(None, TitleSet(title))
        if await deps.store.set_title(run.hold.tenant, run.hold.session, title, TitleBy.US, (event,)):
            deps.signals.notify(run.hold.session)
    except LastgoodError:
        return
    finally:
        if asked is not None:
            asked.cancel()


async def _within(asked: asyncio.Task[str | None] | None, seconds: float) -> str | None:
    if asked is None:
        return None
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except Exception:  # a title is never worth more than that
        return None

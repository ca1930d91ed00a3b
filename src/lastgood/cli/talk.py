"""Talking to a session from the terminal: say something, watch the turn, cancel it.

The turn belongs to its session; the terminal only watches. Ctrl-C is a request to
cancel it, and is heard out: the attempt ends as cancelled before we do.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from lastgood.cli.opening import TENANT
from lastgood.cli.output import complain, drop_stdout
from lastgood.cli.screens import Screen
from lastgood.core import identity
from lastgood.core.intake import check_text
from lastgood.errors import InvalidRequest, LastgoodError, NotFound, NothingPending
from lastgood.flows.beginning import Submitted
from lastgood.flows.run import Outcome
from lastgood.model.attempts import Ask, AttemptStatus, OnLeave
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import SessionId
from lastgood.model.messages import Message, as_json
from lastgood.model.sessions import Session
from lastgood.wiring import Lastgood

#: Once the outcome is known, how long its last events may take to arrive.
_LAST_EVENTS_SECONDS = 1.0


class Interrupts:
    """Ctrl-C and a polite kill, as something to wait for. `final`: it was the kill."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.final = False

    def __enter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.asked.set)
        loop.add_signal_handler(signal.SIGTERM, self._end)
        return self

    def _end(self) -> None:
        self.final = True
        self.asked.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


@dataclass(slots=True)
class Talk:
    """One session, made when the first message is accepted."""

    app: Lastgood
    agent: str  # the key of the agent that was named
    model: str | None
    working_dir: str | None
    session: SessionId | None
    screen: Screen
    interrupts: Interrupts
    last: tuple[Message, Outcome] | None = None

    async def say(self, message: Message, key: str | None = None) -> Outcome:
        submitted = await self._submit(message, key)
        canceller = asyncio.create_task(self._cancel_when_asked(submitted))
        try:
            outcome = await self._watch(submitted)
            await self.screen.ended(submitted, outcome)
        except OSError as error:
            # Nobody reads any more. What that means for the turn was settled when it began.
            drop_stdout()
            await self.app.turns.leave(submitted)
            outcome = await self.app.turns.wait(submitted)
            if not isinstance(error, BrokenPipeError):
                complain(f"cannot write the answer ({error.strerror}); the turn is {outcome.status.value}")
        finally:
            canceller.cancel()
        self.last = (message, outcome)
        return outcome

    async def retry(self) -> Outcome:
        """The last message once more. If it was answered, on a fork from before that answer."""
        if self.last is None or self.session is None:
            raise NothingPending("nothing was said here yet; say something first")
        message, outcome = self.last
        if outcome.turn is None:
            return await self.say(message)
        before, last = self.session, self.last
        self.session = (await self.app.sessions.fork(TENANT, before, before=outcome.turn.id)).id
        again = await self.say(message)
        if not is_good(again):
            # The answer that was there is still the last good one.
            await self.app.sessions.delete(TENANT, self.session)
            self.session, self.last = before, last
        return again

    async def fork(self) -> Session:
        if self.session is None:
            raise NothingPending("there is no session to fork yet; say something first")
        forked = await self.app.sessions.fork(TENANT, self.session)
        self.session = forked.id
        return forked

    def begin_anew(self) -> None:
        self.session, self.last = None, None

    # -- one turn ------------------------------------------------------------------

    async def _submit(self, message: Message, key: str | None) -> Submitted:
        check_text(key or "", "the key")
        session = self.session
        if session is None:
            new = await self.app.sessions.create(TENANT, self.agent, working_dir=self.working_dir)
            session = new.id
        try:
            submitted = await self.app.turns.submit(await self._ask(session, message, key))
        except (InvalidRequest, NotFound):
            # Refused for certain, so the session that was made for it goes, too.
            if self.session is None:
                await self.app.sessions.delete(TENANT, session)
            raise
        self.session = session
        return submitted

    async def _ask(self, session: SessionId, message: Message, key: str | None) -> Ask:
        plain = [as_json(message)]
        return Ask(
            TENANT,
            session,
            (message,),
            model=self.model,
            agent_key=await self._agent_for(session),
            key=key,
            fingerprint=_fingerprint(self.agent, session, plain, self.model) if key is not None else "",
            on_leave=OnLeave.CANCEL if key is None else OnLeave.CONTINUE,
            accepted=key is not None,
        )

    async def _agent_for(self, session: SessionId) -> str | None:
        """None: the session's own, if that is the one that was named here, maybe under another query."""
        recorded = (await self.app.sessions.get(TENANT, session)).agent_key
        match identity.resolve(recorded, [self.agent]):
            case identity.Exact() | identity.Stable():
                return None
            case _:
                return self.agent

    async def _cancel_when_asked(self, submitted: Submitted) -> None:
        await self.interrupts.asked.wait()
        with suppress(LastgoodError):  # too late: how it did end is told anyway
            await self.app.turns.cancel(TENANT, submitted.session)

    async def _watch(self, submitted: Submitted) -> Outcome:
        ended = asyncio.create_task(self.app.turns.wait(submitted))
        if not submitted.replayed:
            async for event in _until(ended, self.app.turns.watch(submitted)):
                await self.screen.event(event)
        return await ended


async def _until(
    ended: asyncio.Task[Outcome], events: AsyncIterator[StoredEvent]
) -> AsyncIterator[StoredEvent]:
    """The events to the last. If the end itself could not be stored, it is enough that it is known."""
    while True:
        coming = asyncio.ensure_future(anext(events, None))
        await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            await asyncio.wait({coming}, timeout=_LAST_EVENTS_SECONDS)
        if not coming.done():
            coming.cancel()
            return
        event = coming.result()
        if event is None:
            return
        yield event
        if event.kind in TERMINAL or event.kind is EventKind.ATTEMPT_WAITS:
            return


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_good(outcome: Outcome) -> bool:
    return outcome.status is AttemptStatus.COMMITTED

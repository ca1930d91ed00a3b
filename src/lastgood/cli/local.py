"""Sessions in the local database. Turns run in this process and end with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastgood.cli.approval_prompt import PromptAnswer
from lastgood.cli.backend import BackendTurn, TurnEnd, other_than
from lastgood.cli.local_reader import LocalReader, attempt_info, session_info, turn_info
from lastgood.cli.startup import TENANT
from lastgood.client.models import AttemptInfo, SessionInfo, TurnInfo
from lastgood.core.approval import Confirmation
from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.core.input_checks import check_text
from lastgood.errors import LastgoodError, StoreLocked
from lastgood.flows.approvals import Approver
from lastgood.flows.audit import AuditReader
from lastgood.flows.session_export import SessionImport
from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import After, Ask
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message, as_json
from lastgood.model.rules import LOCAL
from lastgood.model.sessions import TurnKind
from lastgood.settings import Settings
from lastgood.wiring import Lastgood, open_lastgood

if TYPE_CHECKING:
    from lastgood.agents.sources import Source

#: Once the outcome is known, how long its last events may take to arrive.
_LAST_EVENTS_SECONDS = 1.0


@asynccontextmanager
async def open_here(settings: Settings, sources: Iterable[Source] = ()) -> AsyncIterator[Lastgood]:
    # The terminal shows how turns end and what recovery did; log lines would say it twice.
    for name in ("attempt_log", "running_attempts", "recovery"):
        logging.getLogger(f"lastgood.flows.{name}").setLevel(logging.ERROR)
    try:
        async with open_lastgood(settings, sources) as app:
            yield app
    except StoreLocked as error:
        address = error.detail.get("address")
        how = f"--server {address}" if address else "--server URL with the address that it printed at startup"
        raise StoreLocked(f"{error.message}. To run the command on your server, add {how}") from None


class LocalBackend(LocalReader):
    def __init__(self, app: Lastgood, working_dir: str | None = None) -> None:
        super().__init__(app.sessions, AuditReader(app.deps.store))
        self._app = app
        self._working_dir = working_dir

    async def create(self, agent: str) -> SessionInfo:
        return session_info(await self._app.sessions.create(TENANT, agent, working_dir=self._working_dir))

    async def check_model(self, agent: str, model: str) -> None:
        self._app.deps.engine.check_model(model, (await self._app.turns.resolve(agent))[0])

    async def fork(self, session: str, turn: str | None = None) -> SessionInfo:
        check_text(turn or "", "the turn id")
        at = TurnId(turn) if turn else None
        return session_info(await self._app.sessions.fork(TENANT, SessionId(session), at))

    async def rename(self, session: str, title: str) -> SessionInfo:
        id = SessionId(session)
        await self._app.sessions.rename(TENANT, id, title)
        return session_info(await self._app.sessions.get(TENANT, id))

    async def reset(self, session: str) -> TurnInfo:
        ask = Ask(TENANT, SessionId(session), (), kind=TurnKind.RESET)
        outcome = await (await self._app.submitter.submit(Submission(ask))).outcome()
        if outcome.turn is None:
            raise outcome.error or LastgoodError(f"the reset ended {outcome.status.value}")
        return turn_info(outcome.turn)

    async def delete(self, session: str) -> None:
        await self._app.sessions.delete(TENANT, SessionId(session))

    async def take_in(self, document: Mapping[str, Any]) -> SessionInfo:
        importing = SessionImport(self._app.deps, self._app.sessions)
        return session_info(await importing.take(TENANT, document, LOCAL))

    async def attempt(self, session: str, attempt: str) -> AttemptInfo:
        found = await self._app.sessions.attempt(TENANT, SessionId(session), AttemptId(attempt))
        return attempt_info(found.attempt)

    def follow(self, attempt: AttemptInfo, since: int) -> BackendTurn:
        session, turn, id = SessionId(attempt.session), TurnId(attempt.turn), AttemptId(attempt.id)
        return LocalTurn(self._app, self._app.turns.handle(TENANT, session, turn, id, since))

    async def ask(
        self,
        session: str,
        message: Message,
        agent: str,
        model: str | None,
        key: str | None,
        after: After | None = None,
        expected_head: str | None = None,
    ) -> BackendTurn:
        check_text(key or "", "the key")
        recorded = (await self._app.sessions.get(TENANT, SessionId(session))).agent_key
        place = () if after is None else (after.turn,)
        ask = Ask(
            TENANT,
            SessionId(session),
            (message,),
            model=model,
            agent_key=other_than(recorded, agent),
            key=key,
            expected_head=TurnId(expected_head) if expected_head else None,
            fingerprint=_fingerprint(agent, session, [as_json(message)], model, *place) if key else "",
            on_leave=on_disconnect(RequestOrigin.TERMINAL, key),
            durable=key is not None,
        )
        return LocalTurn(self._app, await self._app.submitter.submit(Submission(ask, after)))


@dataclass(slots=True)
class LocalTurn:
    app: Lastgood
    submitted: TurnHandle

    async def events(self) -> AsyncGenerator[StoredEvent, None]:
        """Continues after a question that was answered before the next event is requested."""
        watched: TurnHandle | None = None
        while not self.submitted.replayed and watched is not self.submitted:
            watched = self.submitted
            async for event in self._events_of(watched):
                yield event

    async def _events_of(self, submitted: TurnHandle) -> AsyncGenerator[StoredEvent, None]:
        ended = asyncio.create_task(submitted.outcome())
        try:
            async for event in _until(ended, submitted.events()):
                yield event
        finally:
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                ended.exception()  # marks it as retrieved: `ended` reports it

    async def answer(self, said: PromptAnswer, question: str | None) -> None:
        by = Approver(TENANT, LOCAL.token, LOCAL.user, LOCAL)
        answered = await self.app.approvals.answer(
            self.submitted.session,
            Confirmation(said.confirmation),
            by,
            reason=said.reason,
            content=said.content,
            question=question,
        )
        self.submitted = answered or self.submitted

    async def ended(self) -> TurnEnd:
        outcome = await self.submitted.outcome()
        return TurnEnd(
            self.submitted.session,
            self.submitted.turn,
            outcome.attempt,
            outcome.status.value,
            None if outcome.turn is None else turn_info(outcome.turn),
            outcome.error,
            self.submitted.replayed,
        )

    async def cancel(self) -> None:
        with suppress(LastgoodError):  # too late: its outcome is shown anyway
            await self.app.turns.cancel(TENANT, self.submitted.session, LOCAL)

    async def leave(self) -> None:
        """What that means for the turn was settled when it began."""
        await self.submitted.leave()

    async def close(self) -> None:
        return


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

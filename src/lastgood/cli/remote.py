"""Sessions on a server. Turns run there; this process shows them, and cancels them on Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from lastgood.cli.approval_prompt import PromptAnswer
from lastgood.cli.backend import BackendTurn, TurnEnd, other_than
from lastgood.client.calls import AsyncClient
from lastgood.client.events import (
    AgentChoiceEvent,
    AgentChoiceReasoningEvent,
    AgentSwitchingEvent,
    ElicitationRequestEvent,
    ErrorEvent,
    Event,
    ModelFallbackEvent,
    SessionTitleEvent,
    StreamStartedEvent,
    TokenUsageEvent,
    ToolCallConfirmationEvent,
    ToolCallEvent,
    ToolCallOutputEvent,
    ToolCallResponseEvent,
    TurnCommittedEvent,
    TurnFailedEvent,
    UserMessageEvent,
    WarningEvent,
)
from lastgood.client.models import (
    AgentInfo,
    AttemptInfo,
    BranchInfo,
    SessionInfo,
    SessionList,
    ToolCallInfo,
    TurnInfo,
)
from lastgood.client.stream import Accepted
from lastgood.core.input_checks import check_message, check_text, check_title
from lastgood.errors import (
    AgentNotFound,
    InvalidRequest,
    LastgoodError,
    NothingPending,
    ResponseUnreadable,
    ServerUnreachable,
    Unauthorized,
    WrongUsage,
    error_of,
)
from lastgood.flows.session_reader import fewer_sessions
from lastgood.model import events
from lastgood.model.attempts import After
from lastgood.model.events import EventKind, StoredEvent
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import Message, from_json

TOKEN_VARIABLE = "LASTGOOD_TOKEN"
#: Timeout of a cancel request.
_CANCEL_SECONDS = 10.0


@asynccontextmanager
async def open_there(args: argparse.Namespace) -> AsyncIterator[RemoteBackend]:
    async with connect(args) as client:
        yield RemoteBackend(client, getattr(args, "working_dir", None), getattr(args, "safety", None))


@asynccontextmanager
async def connect(args: argparse.Namespace) -> AsyncIterator[AsyncClient]:
    token = _token(args)
    try:
        client = AsyncClient(args.server, token)
    except InvalidRequest as error:
        raise WrongUsage(error.message) from None
    try:
        async with client:
            yield client
    except Unauthorized:
        what = "requires a token" if token is None else "rejected the token"
        raise Unauthorized(f"{args.server} {what}; set {TOKEN_VARIABLE}, or use --token-file FILE") from None
    except ResponseUnreadable as error:
        if error.message != ResponseUnreadable().message:  # it says what of the response is wrong
            raise
        raise ResponseUnreadable(
            f"{args.server} is not a Lastgood server, or runs a newer version; check the URL, or upgrade "
            "Lastgood"
        ) from None


def _token(args: argparse.Namespace) -> str | None:
    if args.server_token is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(args.server_token).read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidRequest(f"cannot read --token-file {args.server_token}: {why}") from None


#: Agents that an error names.
_MOST_NAMED = 5


class RemoteBackend:
    """`working_dir` and `safety` apply to new sessions."""

    def __init__(self, client: AsyncClient, working_dir: str | None, safety: str | None) -> None:
        self._client = client
        self._working_dir = working_dir
        self._safety = safety

    async def find(self, text: str) -> SessionInfo:
        if not re.fullmatch(r"-[1-9][0-9]{0,8}", text):
            check_text(text, "the session id")
            return await self._client.get(text)
        back, passed = int(text[1:]), 0
        async for session in self._client.list():
            passed += 1
            if passed == back:
                return session
        raise fewer_sessions(passed)

    async def page(self, *, limit: int, cursor: int | None, query: str) -> SessionList:
        check_text(query, "the query")
        return await self._client.page(limit=limit, cursor=cursor, query=query)

    async def turns(self, session: str) -> tuple[TurnInfo, ...]:
        return await self._client.turns(session)

    async def attempts(self, session: str) -> tuple[AttemptInfo, ...]:
        return await self._client.attempts(session)

    async def tool_calls(self, session: str) -> tuple[ToolCallInfo, ...]:
        return await self._client.tool_calls(session)

    def export(self, session: str) -> AsyncGenerator[bytes, None]:
        return self._client.export_pieces(session)

    async def agent(self, key: str) -> AgentInfo:
        check_text(key, "the agent")
        try:
            return await self._client.agent(key)
        except AgentNotFound:
            served = [one.key for one in await self._client.agents()]
        raise AgentNotFound(
            f"this server has no agent {key!r}; it serves {', '.join(served[:_MOST_NAMED]) or 'none'}"
            + (f" and {len(served) - _MOST_NAMED} more" if len(served) > _MOST_NAMED else "")
        )

    async def create(self, agent: str) -> SessionInfo:
        return await self._client.create(agent, working_dir=self._working_dir, safety=self._safety)

    async def check_model(self, agent: str, model: str) -> None:
        """The server checks it with the next message."""

    async def fork(self, session: str, turn: str | None = None) -> SessionInfo:
        check_text(turn or "", "the turn id")
        return await self._client.fork(session, turn=turn)

    async def rename(self, session: str, title: str) -> SessionInfo:
        return await self._client.rename(session, check_title(title))

    async def reset(self, session: str) -> TurnInfo:
        now = await self._client.reset(session)
        return await self._client.turn_at(session, now.turns)

    async def delete(self, session: str) -> None:
        await self._client.delete(session)

    async def take_in(self, document: Mapping[str, Any]) -> SessionInfo:
        return await self._client.import_(document)

    async def branches(self, session: str) -> tuple[BranchInfo, ...]:
        return await self._client.branches(session)

    async def attempt(self, session: str, attempt: str) -> AttemptInfo:
        return await self._client.attempt(session, attempt)

    def follow(self, attempt: AttemptInfo, since: int) -> BackendTurn:
        accepted = Accepted(attempt.session, attempt.turn, attempt, replayed=False, since=since, call=None)
        return RemoteTurn(self._client, accepted, is_kept=True)

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
        check_message(message, "message 1")
        check_text(model or "", "the model")
        recorded = (await self._client.get(session)).agent_key
        place: dict[str, str | None] = {} if after is None else {"after": after.turn}
        accepted = await self._client.submit(
            session,
            message,
            agent=other_than(recorded, agent),
            model=model,
            key=key,
            expected_head=expected_head,
            **place,
        )
        return RemoteTurn(self._client, accepted, is_kept=key is not None)


class RemoteTurn:
    """`is_kept`: the turn keeps running when its output is no longer read."""

    def __init__(self, client: AsyncClient, accepted: Accepted, *, is_kept: bool) -> None:
        self._client = client
        self._accepted = accepted
        self._is_kept = is_kept
        self._events = client.follow(accepted)
        self._end: TurnCommittedEvent | TurnFailedEvent | None = None
        self._committed: TurnInfo | None = None

    async def events(self) -> AsyncGenerator[StoredEvent, None]:
        if self._accepted.replayed:
            return
        async for event in self._events:
            stored = await self._see(event)
            if stored is not None:
                yield stored

    async def _see(self, event: Event) -> StoredEvent | None:
        if isinstance(event, TurnCommittedEvent | TurnFailedEvent):
            self._end = event
        if isinstance(event, TurnCommittedEvent):
            self._committed = await self._client.turn(self._accepted.session, event.turn)
        return as_stored(event, self._committed)

    async def ended(self) -> TurnEnd:
        async for event in self._events:
            await self._see(event)
        end, about = self._end, self._accepted
        error: LastgoodError | None = None
        if isinstance(end, TurnFailedEvent):
            error = error_of(end.code, end.message)
        attempt = (end.attempt if end else None) or (about.attempt.id if about.attempt else None)
        status = end.status if isinstance(end, TurnFailedEvent) else "committed"
        return TurnEnd(about.session, about.turn, attempt, status, self._committed, error, about.replayed)

    async def answer(self, said: PromptAnswer, question: str | None) -> None:
        session = self._accepted.session
        if said.is_elicitation:
            await self._client.elicitation(session, said.confirmation, said.content, question=question)
        else:
            await self._client.resume(session, said.confirmation, reason=said.reason, question=question)

    async def cancel(self) -> None:
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._client.cancel(self._accepted.session)
        except NothingPending:
            return  # the turn has ended already; its result is shown anyway
        except (TimeoutError, ServerUnreachable):
            raise ServerUnreachable(
                "could not cancel the turn: the server does not respond, and the turn may still be running; "
                f"check it later with `lastgood sessions show {self._accepted.session}`"
            ) from None

    async def leave(self) -> None:
        if not self._is_kept:
            with suppress(LastgoodError):
                await self.cancel()

    async def close(self) -> None:
        await self._events.aclose()


# -- events as they are stored -----------------------------------------------------------


def as_stored(event: Event, committed: TurnInfo | None) -> StoredEvent | None:
    """Returns the event in its stored form, or None if it is not shown."""
    data = _data_of(event, committed)
    if data is None:
        return None
    attempt = None if event.attempt is None else AttemptId(event.attempt)
    return StoredEvent(event.seq or 0, attempt, data, event.at.timestamp() if event.at else 0.0)


def _data_of(event: Event, committed: TurnInfo | None) -> events.EventData | None:
    raw, agent = event.raw, event.agent
    match event:
        case UserMessageEvent(message=text, is_steer=is_steer):
            said = {"role": "user", "content": raw.get("multi_content", text)}
            return events.UserSaid(from_json(said), is_steer)
        case AgentChoiceEvent(content=content):
            return events.TextStreamed(content, agent)
        case AgentChoiceReasoningEvent(content=content):
            return events.ReasoningStreamed(content, agent)
        case TokenUsageEvent(model=model, input_tokens=read, output_tokens=written, cost=cost):
            cut_short = bool(raw.get("cut_short"))
            sub_agent = agent if raw.get("sub_agent") else None
            return events.ModelAnswered(model, read, written, cost, cut_short, sub_agent, agent)
        case ToolCallEvent(id=id, name=name, arguments=arguments):
            return events.ToolCalled(id, name, arguments, agent)
        case ToolCallOutputEvent(id=id, output=output):
            return events.ToolStreamed(id, output, agent)
        case ToolCallResponseEvent(id=id, name=name, response=response):
            return events.ToolAnswered(id, name, response, agent)
        case AgentSwitchingEvent(to_agent=to_agent):
            return events.AgentSwitched(to_agent)
        case ModelFallbackEvent():
            return events.data_of(EventKind.MODEL_FELL_BACK, raw)
        case WarningEvent(topic=topic) if topic in tuple(EventKind):
            # Here `attempt` is the attempt of the turn, not the number of a model request.
            return events.data_of(EventKind(topic), {name: raw[name] for name in raw if name != "attempt"})
        case SessionTitleEvent(title=title):
            return events.TitleSet(title)
        case _:
            return _attempt_data(event, committed)


def _attempt_data(event: Event, committed: TurnInfo | None) -> events.EventData | None:
    attempt = AttemptId(event.attempt or "")
    match event:
        case StreamStartedEvent(turn=turn, continues=continues, decision=decision):
            before = None if continues is None else AttemptId(continues)
            return events.AttemptStarted(
                TurnId(turn), attempt, event.agent or "", continues=before, decision=decision
            )
        case ToolCallConfirmationEvent(question=question) | ElicitationRequestEvent(question=question):
            return events.AttemptWaits(attempt, dict(question))
        case ErrorEvent(code=code, message=message):
            return events.AttemptErred(code, message)
        case TurnFailedEvent(turn=turn, status=status, code=code, message=message):
            return events.AttemptFailed(TurnId(turn), status, code, message, attempt or None)
        case TurnCommittedEvent(turn=turn, turn_seq=seq) if committed is not None:
            used = committed.usage
            return events.AttemptCommitted(
                TurnId(turn), seq, attempt, committed.model, used.input_tokens, used.output_tokens
            )
        case _:
            return None

"""The OpenAI-compatible API: agents as models, conversations that the server holds.

    without X-Conversation-Id   the request carries the history, nothing is stored
    with it                     a stored session; only what is new in the body is appended

What a disconnect means for a turn is decided by the table in `core/disconnect.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastgood.core.client_presets import Preset, Understood, understand
from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.errors import (
    AgentNotFound,
    InvalidRequest,
    LastgoodError,
    NeedsAnswer,
    ShuttingDown,
    StoreUnavailable,
    TurnFailed,
)
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.stateless_run import EphemeralTurns, StatelessRun, StatelessRuns
from lastgood.flows.submission import NOT_LOCATED, Conversation, Submission
from lastgood.flows.submit import Submitter
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.turns import Turns
from lastgood.flows.work.enqueue import RuntimePlan
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Ask, AttemptStatus, Step
from lastgood.model.events import Event, EventKind
from lastgood.model.messages import Message
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.rate_limit import RateLimiter
from lastgood.surfaces.http.turn_headers import fingerprint, key_of, user_of, visible
from lastgood.surfaces.openai.chat_stream import Frames, StreamFailed, streamed
from lastgood.surfaces.openai.completions import Chunks, Finished, whole
from lastgood.surfaces.openai.schemas import ChatRequest, messages_of, options_of, parse_chat
from lastgood.surfaces.openai.turn_frames import (
    TriedAgainText,
    answer_differs,
    committed_unread,
    finished_steps,
    finished_turn,
    frame_of,
    said_before,
)

#: Events that precede the loading of adopted steps.
_AT_BEGIN = (EventKind.ATTEMPT_STARTED, EventKind.USER_SAID)

Items = AsyncGenerator[Event | Step, None]


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed request."""

    request: Request
    chat: ChatRequest

    @property
    def user(self) -> str:
        return user_of(self.request, self.chat.user)

    @property
    def streams(self) -> bool:
        return bool(self.chat.stream)

    @property
    def with_usage(self) -> bool:
        options = self.chat.stream_options
        return options is not None and bool(options.include_usage)


class ChatHandlers:
    def __init__(
        self,
        agents: AgentDirectory,
        stateless: StatelessRuns,
        ephemeral: EphemeralTurns,
        submitter: Submitter,
        turns: Turns,
        is_draining: Callable[[], bool],
        limiter: RateLimiter,
        presets: Collection[Preset] = (),
    ) -> None:
        self._agents = agents
        self._stateless = stateless
        self._ephemeral = ephemeral
        self._turns = turns
        self._submitter = submitter
        self._is_draining = is_draining
        self._limiter = limiter
        self._presets = presets

    async def models(self, request: Request) -> Response:
        """Those that can answer the caller: an agent on a runtime must be published."""
        created, found = 0, await self._reached(request)
        data = [{"id": id, "object": "model", "created": created, "owned_by": "lastgood"} for id in found]
        return json_reply({"object": "list", "data": data})

    async def _reached(self, request: Request) -> list[str]:
        found: list[str] = []
        for key in self._agents.list_keys():
            try:
                agent = await self._agents.load(key)
            except LastgoodError:
                continue
            members = [f"{key}/{name}" for name in agent.members]
            for id, member in zip([key, *members], [agent, *agent.members.values()], strict=True):
                with suppress(AgentNotFound):
                    if not self._agents.can_answer(member):
                        continue
                    await self._submitter.tasks.reach_by_chat(request.caller.tenant, member)
                    found.append(id)
        return found

    async def model(self, request: Request) -> Response:
        id = "/".join(request.path.values())
        await self._agent(request, id)
        return json_reply({"id": id, "object": "model", "created": 0, "owned_by": "lastgood"})

    async def complete(self, request: Request) -> Response:
        plain = await request.json()
        chat = await parse_chat(plain)
        key = key_of(request)
        body = messages_of(chat)
        if request.headers.get("x-conversation-mode", "append") not in ("append", "reconcile"):
            raise InvalidRequest(
                "`X-Conversation-Mode` must be append or reconcile", param="x-conversation-mode"
            )
        meant = understand(self._presets, request.headers, body)
        if self._is_draining():
            if meant.conversation is not None:
                await self._submitter.remember_refusal(_submission(request, chat, plain, body, key, meant))
            raise ShuttingDown()
        call = ChatCall(request, chat)
        if meant.conversation is None:
            agent, runtime = await self._agent(request, chat.model)
            if meant.is_background:
                agent = replace(agent, toolsets=(), sub_agents=(), handoffs=())
            if key is not None:
                raise InvalidRequest(
                    "`Idempotency-Key` requires `X-Conversation-Id`; requests without one are not stored",
                    param="idempotency-key",
                )
            if runtime is not None:
                return await self._once_on_runtime(call, body)
            return await self._once(call, agent, body)
        visible("x-conversation-id", meant.conversation)
        return await self._in_conversation(call, _submission(request, chat, plain, body, key, meant))

    async def _agent(self, request: Request, model: str) -> tuple[AgentSpec, RuntimePlan | None]:
        """Returns the agent, and the runtime it is on. An agent that the caller cannot reach is not found."""
        try:
            agent, _ = await self._agents.resolve(model)
            return agent, await self._submitter.tasks.reach_by_chat(request.caller.tenant, agent)
        except AgentNotFound as error:
            raise await self._model_not_found(request, model, error) from None

    async def _model_not_found(self, request: Request, model: str, error: AgentNotFound) -> AgentNotFound:
        there = ", ".join(await self._reached(request))
        why = f": {error.detail['reason']}" if error.detail.get("agent") == "ambiguous" else ""
        return AgentNotFound(f"Model {model!r} not found{why}; available: {there}", param="model")

    # -- without a conversation --------------------------------------------------------

    async def _once(self, call: ChatCall, agent: AgentSpec, body: tuple[Message, ...]) -> Response:
        tenant, options = call.request.caller.tenant, options_of(call.chat)
        taken = self._limiter.take(call.request.caller, call.user)
        on_leave = on_disconnect(RequestOrigin.OPENAI_API, None)
        user = call.user or call.request.caller.name
        run = self._stateless.start(tenant, agent, body, options, on_leave, user, call.request.caller.name)
        items = _or_failed(taken.during(run.items), run)
        if call.streams:
            chunks = self._chunks(call, run.id)
            return streamed(_stateless_frames(chunks, items, run), chunks, {})
        try:
            done = await call.request.unless_gone(_until_done(items, run))
        except StreamFailed as failed:
            return failed.reply({}, call.request)
        return json_reply(whole(run.id, call.chat.model, _now(), done))

    async def _once_on_runtime(self, call: ChatCall, body: tuple[Message, ...]) -> Response:
        """As a session that lives as long as this request."""
        request = call.request
        ask = Ask(
            request.caller.tenant,
            NOT_LOCATED,
            body,
            agent_key=call.chat.model,
            options=options_of(call.chat),
            caller=request.caller.name,
            request_id=request.id,
            user=call.user,
            on_leave=on_disconnect(RequestOrigin.OPENAI_API, None),
            owner=request.caller.user,
            over_chat=True,
        )
        reserve = partial(self._limiter.take, request.caller, call.user)
        submitted = await self._ephemeral.start(ask, request.caller.setter, reserve)
        if call.streams:
            chunks = self._chunks(call, submitted.turn)
            return streamed(_then_left(self._frames(chunks, submitted), submitted), chunks, {})
        try:
            done = await request.unless_gone(self._attended(submitted))
        except StreamFailed as failed:
            return failed.reply({}, request)
        finally:
            await submitted.leave()
        return json_reply(whole(submitted.turn, call.chat.model, _now(), done))

    # -- with one -----------------------------------------------------------------------

    async def _in_conversation(self, call: ChatCall, submission: Submission) -> Response:
        assert submission.conversation is not None
        reserve = partial(self._limiter.take, call.request.caller, call.user)
        try:
            submitted = await self._submitter.submit(submission, reserve)
        except AgentNotFound as error:
            raise await self._model_not_found(call.request, call.chat.model, error) from None
        headers = {
            "x-conversation-id": submission.conversation.name,
            "x-session-id": submitted.session,
            "x-turn-id": submitted.turn,
        }
        if submitted.task_id is not None:
            headers["x-task-id"] = submitted.task_id
        if submitted.replayed:
            headers["idempotent-replayed"] = "true"
        if call.streams:
            chunks = self._chunks(call, submitted.turn)
            return streamed(self._frames(chunks, submitted), chunks, headers)
        try:
            done = await call.request.unless_gone(self._attended(submitted))
        except StreamFailed as failed:
            return failed.reply(headers, call.request)
        return json_reply(whole(submitted.turn, call.chat.model, _now(), done), 200, headers)

    async def _frames(self, chunks: Chunks, submitted: TurnHandle) -> Frames:
        ended = False
        try:
            unread, tried = None, TriedAgainText() if submitted.task_id is not None else None
            try:
                async with aclosing(self._streamed(chunks, submitted, tried)) as frames:
                    async for frame in frames:
                        yield frame
            except StoreUnavailable as error:
                unread = error  # the turn may still commit, so its outcome is read first
            done = await self._done(submitted)
            ended = True
            if unread is not None:
                raise StreamFailed(committed_unread(submitted), has_effects=True) from unread
            if tried is not None and not tried.is_whole:
                raise StreamFailed(answer_differs(submitted), has_effects=True)
            if submitted.replayed and done.text:
                yield chunks.text(done.text)
            yield chunks.end(done)
        except StreamFailed:
            ended = True
            raise
        finally:
            if not ended:
                await submitted.leave()

    async def _streamed(self, chunks: Chunks, submitted: TurnHandle, tried: TriedAgainText | None) -> Frames:
        has_output = False
        if submitted.replayed:
            return
        async with aclosing(submitted.events(from_begin=False)) as events:
            async for event in events:
                if not has_output and event.kind not in _AT_BEGIN:
                    has_output = True
                    for earlier in said_before(chunks, submitted):
                        yield earlier
                shown = event if tried is None else tried.left_of(event)
                if shown is not None and (frame := frame_of(chunks, shown)):
                    yield frame

    async def _attended(self, submitted: TurnHandle) -> Finished:
        try:
            return await self._done(submitted)
        except asyncio.CancelledError:
            await submitted.leave()
            raise

    async def _done(self, submitted: TurnHandle) -> Finished:
        """Waits for the end. StreamFailed: nothing was committed."""
        try:
            outcome = await submitted.outcome()
            if outcome.turn is None:
                raise await self._failed(submitted, outcome)
        except LastgoodError as error:
            raise StreamFailed(error, has_effects=submitted.has_effects) from error
        return finished_turn(outcome.turn)

    async def _failed(self, submitted: TurnHandle, outcome: Outcome) -> StreamFailed:
        error = outcome.error or TurnFailed(f"The turn ended with status {outcome.status.value}")
        if outcome.status is AttemptStatus.WAITING and isinstance(error, NeedsAnswer):
            # Approvals cannot be answered on this API, so the waiting turn is cancelled.
            await self._turns.cancel(submitted.tenant, submitted.session)
            error = TurnFailed("This tool call needs human approval, which is not available on this API")
        return StreamFailed(error, has_effects=outcome.has_effects)

    def _chunks(self, call: ChatCall, id: str) -> Chunks:
        return Chunks(id, call.chat.model, _now(), call.with_usage)


def _submission(
    request: Request,
    chat: ChatRequest,
    plain: Any,
    body: tuple[Message, ...],
    key: str | None,
    meant: Understood,
) -> Submission:
    assert meant.conversation is not None
    ask = Ask(
        request.caller.tenant,
        NOT_LOCATED,
        (),
        agent_key=chat.model,
        options=options_of(chat),
        key=key,
        fingerprint=fingerprint(request, plain, meant.conversation),
        caller=request.caller.name,
        request_id=request.id,
        user=user_of(request, chat.user),
        is_retry=key is None and _is_retry(request),
        on_leave=on_disconnect(RequestOrigin.OPENAI_API, key, conversation=meant.conversation),
        durable=key is not None,
        owner=request.caller.user,
        over_chat=True,
    )
    named = Conversation(meant.conversation, body, meant.reconciles, request.caller.setter)
    return Submission(ask, conversation=named)


def _is_retry(request: Request) -> bool:
    """The official SDKs count their own retries."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count[:9]) > 0


# -- small things ------------------------------------------------------------------------


async def _then_left(frames: Frames, submitted: TurnHandle) -> Frames:
    try:
        async with aclosing(frames):
            async for frame in frames:
                yield frame
    finally:
        await submitted.leave()


async def _until_done(items: Items, run: StatelessRun) -> Finished:
    """Reads to the end, and closes in any case."""
    async with aclosing(items):
        async for _ in items:
            pass
    return finished_steps(run.steps)


async def _stateless_frames(chunks: Chunks, items: Items, run: StatelessRun) -> Frames:
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Event) and (frame := frame_of(chunks, item)):
                yield frame
    yield chunks.end(finished_steps(run.steps))


async def _or_failed(items: Items, run: StatelessRun) -> Items:
    async with aclosing(items):
        try:
            async for item in items:
                yield item
        except LastgoodError as error:
            raise StreamFailed(error, has_effects=run.has_effects) from error


def _now() -> int:
    return int(time.time())

"""Operations on a session: create, update, fork, delete."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf, nextafter
from typing import Any

from lastgood.core.approval import ApprovalDecision
from lastgood.core.derivation import derive
from lastgood.core.input_checks import (
    check_metadata,
    check_remote_dir,
    check_text,
    check_title,
    fork_title,
)
from lastgood.core.lifecycle import Move
from lastgood.core.limits import check_rules
from lastgood.core.quotas import QuotaUsage
from lastgood.core.session_rules import (
    NO_RULES,
    Layers,
    RulesRefused,
    WantedRules,
    first_layer,
    layers_as_json,
    permissions_of,
    with_allowed,
    with_permissions,
    with_safety,
)
from lastgood.core.tool_permissions import is_above
from lastgood.errors import (
    AgentNotFound,
    Conflict,
    Forbidden,
    InvalidRequest,
    SessionNotFound,
    TurnCancelled,
    TurnFailed,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.busy import busy, check_no_tasks
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.event_feed import follow
from lastgood.flows.retries import retry_lost_races
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.session_reader import SessionReader
from lastgood.flows.verified_history import read_chain
from lastgood.model.agents import AgentSpec, Permissions, Safety
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.events import StoredEvent
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import Role
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.sessions import NewSession, Session, TitleBy

MOST_IN_CONVERSATION = 255


RuleChange = Callable[[Layers], Layers | RulesRefused]


class Sessions(SessionReader):
    """`ceiling` is the safety mode of the server: no session may exceed it."""

    def __init__(
        self, deps: Dependencies, live: RunningAttempts, ceiling: Safety = Safety.RESTRICTED
    ) -> None:
        super().__init__(deps.store)
        self._deps = deps
        self._live = live
        self.ceiling = ceiling

    async def create(
        self,
        tenant: TenantId,
        agent_key: str,
        *,
        title: str = "",
        model: str | None = None,
        working_dir: str | None = None,
        rules: WantedRules = NO_RULES,
        safety: Safety | None = None,
        setter: Setter = LOCAL,
        metadata: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        runtime: str | None = None,
        pinned: bool = False,
        id: SessionId | None = None,
    ) -> Session:
        """`setter` is recorded with the rules and the safety mode: a weaker scope cannot remove them.
        `runtime`: where it will run, which the caller may use; its worker judges the working directory.
        """
        for what, text in (("agent", agent_key), ("model", model), ("working directory", working_dir)):
            check_text(text or "", f"the {what}")
        self._check_safety(safety)
        _check_rules(rules)
        if conversation is not None:
            _check_conversation(conversation)
        if model is not None:
            self._deps.engine.check_model(model, await self._find_agent(agent_key))
        if working_dir is not None:
            check = self._deps.engine.check_working_dir if runtime is None else check_remote_dir
            working_dir = check(working_dir)
        new = NewSession(
            id=id or self._deps.ids.session(),
            tenant=tenant,
            agent_key=agent_key,
            title=check_title(title) if title else "",
            title_by=TitleBy.PERSON if title else TitleBy.NOBODY,
            model=model,
            working_dir=working_dir,
            rules=_accepted(first_layer(setter, rules, safety)),
            metadata=check_metadata(metadata or {}),
            conversation=conversation,
            created_by=setter.token,
            owner=setter.user,
            runtime_id=runtime,
            runtime_pinned=pinned,
        )
        await self._deps.quotas.check(tenant, setter.token, QuotaUsage(sessions=1))
        session = await self._deps.store.create_session(new)
        if session is None:
            what = f"conversation {conversation!r}" if id is None else f"session {id}"
            raise Conflict(f"The {what} already exists")
        self._deps.quotas.add(tenant, setter.token, QuotaUsage(sessions=1))
        return session

    async def of_conversation(
        self, tenant: TenantId, conversation: str, agent_key: str, setter: Setter = LOCAL
    ) -> Session:
        """Returns the session of a conversation; created if new, by one of two concurrent requests."""
        _check_conversation(conversation)
        found = await self._deps.store.find_conversation(tenant, conversation)
        if found is None:
            with suppress(Conflict):
                return await self.create(tenant, agent_key, conversation=conversation, setter=setter)
            found = await self._deps.store.find_conversation(tenant, conversation)
        if found is None:
            raise Conflict("The conversation was deleted during this request; send it again")
        return found

    async def create_once(
        self, tenant: TenantId, id: SessionId, agent_key: str, setter: Setter = LOCAL
    ) -> Session:
        """Returns the session with this id; created if new, by one of two concurrent requests."""
        with suppress(Conflict):
            return await self.create(tenant, agent_key, setter=setter, id=id)
        found = await self.find(tenant, id)
        if found is None:
            raise Conflict("The session was deleted during this request; send it again")
        return found

    async def delete_if_empty(self, tenant: TenantId, session: SessionId) -> bool:
        """Returns False if a turn was committed or tried in it, or begins meanwhile."""
        found = await self.find(tenant, session)
        if (
            found is None
            or found.head is not None
            or await self._store.list_attempts(tenant, session, limit=1)
        ):
            return False
        # Whatever has changed the session since it was read has also changed this time.
        if not await self.delete_unused(tenant, session, nextafter(found.updated_at, inf)):
            return False
        self._deps.quotas.forget(tenant)
        return True

    def follow(self, session: Session, after: int) -> AsyncGenerator[StoredEvent, None]:
        """Yields the events after that id, past and live, until the session is deleted."""
        return follow(self._deps, session.tenant, session.id, after=after)

    async def rename(self, tenant: TenantId, session: SessionId, title: str) -> None:
        if not await self._deps.store.set_title(tenant, session, check_title(title), TitleBy.PERSON):
            raise SessionNotFound()

    async def star(self, tenant: TenantId, session: SessionId, starred: bool) -> None:
        await self._set(tenant, session, "starred", starred)

    async def set_metadata(self, tenant: TenantId, session: SessionId, metadata: Mapping[str, Any]) -> None:
        await self._set(tenant, session, "metadata", check_metadata(metadata))

    async def set_model(self, tenant: TenantId, session: SessionId, model: str | None) -> None:
        """The override of every later turn; None: the agent's own model."""
        if model is not None:
            check_text(model, "the model")
            agent = await self._find_agent((await self.get(tenant, session)).agent_key)
            self._deps.engine.check_model(model, agent)
        await check_no_tasks(self._store, await self.get(tenant, session))
        await self._set(tenant, session, "model", model)

    async def _find_agent(self, key: str) -> AgentSpec | None:
        """Its file may name models of its own; without it, a full reference is understood anyway."""
        try:
            agent, _ = await resolve(self._deps.agents, key)
        except (AgentNotFound, TurnFailed):
            return None
        return agent

    async def set_permissions(
        self, tenant: TenantId, session: SessionId, rules: WantedRules, setter: Setter
    ) -> None:
        """For the running turn's next tool call, too. Forbidden: it would remove a stronger scope's rule."""
        _check_rules(rules)
        await self.change_rules(
            tenant, session, setter, lambda layers: with_permissions(layers, setter, rules)
        )

    async def set_safety(
        self, tenant: TenantId, session: SessionId, safety: Safety | None, setter: Setter
    ) -> None:
        self._check_safety(safety)
        await self.change_rules(tenant, session, setter, lambda layers: with_safety(layers, setter, safety))

    def change_by(self, decided: ApprovalDecision, setter: Setter) -> RuleChange | None:
        """What an answer changes in the rules of its session. A wider mode than the server's own becomes
        that. None: nothing."""
        if decided.safety is not None:
            mode = self.ceiling if is_above(decided.safety, self.ceiling) else decided.safety
            return lambda layers: with_safety(layers, setter, mode)
        if decided.allows is not None:
            rule = decided.allows
            return lambda layers: with_allowed(layers, setter, rule)
        return None

    async def check_change(self, tenant: TenantId, session: SessionId, change: RuleChange) -> None:
        """Raises what `change_rules` would raise now."""
        _accepted(change((await self.get(tenant, session)).rules))

    async def change_rules(
        self,
        tenant: TenantId,
        session: SessionId,
        setter: Setter,
        change: RuleChange,
    ) -> None:
        async def once() -> bool | None:
            before = (await self.get(tenant, session)).rules
            after = _accepted(change(before))
            about = {"before": layers_as_json(before), "after": layers_as_json(after)}
            audit = AuditEntry(
                tenant, AuditKind.RULES_CHANGED, setter.token, setter.user, session, about, setter.machine
            )
            store = self._deps.store
            return await store.set_rules_if_unchanged(tenant, session, before, after, audit) or None

        await retry_lost_races("set the rules", once)

    def _check_safety(self, safety: Safety | None) -> None:
        if safety is not None and is_above(safety, self.ceiling):
            raise Forbidden(
                f"Safety mode {safety} exceeds the limit of this server, {self.ceiling}; "
                "the operator can raise it with --safety"
            )

    async def rebind(self, tenant: TenantId, session: SessionId, agent_key: str, by: Setter = LOCAL) -> None:
        """Binds a session to another agent."""
        check_text(agent_key, "the agent")
        found = await self.get(tenant, session)
        if found.scope is not None and agent_key != found.agent_key:
            raise Conflict(
                f"This session belongs to {found.scope.kind.value} {found.scope.id} and agent "
                f"{found.agent_key}; queue a task for the other agent instead"
            )
        await check_no_tasks(self._store, found)
        about = {"from": found.agent_key, "to": agent_key}
        audit = AuditEntry(tenant, AuditKind.AGENT_REBOUND, by.token, by.user, session, about, by.machine)
        await self._set(tenant, session, "agent_key", agent_key, audit)

    async def _set(
        self,
        tenant: TenantId,
        session: SessionId,
        field: str,
        value: object,
        audit: AuditEntry | None = None,
    ) -> None:
        async def once() -> bool | None:
            if await self._deps.store.set_field(tenant, session, field, value, audit):
                return True
            found = await self.get(tenant, session)
            attempt = await self._deps.store.get_attempt(tenant, found.attempt) if found.attempt else None
            if attempt is not None:
                raise busy(attempt)
            return None  # its turn has ended since the write was refused

        await retry_lost_races(f"set {field}", once)

    async def fork(
        self,
        tenant: TenantId,
        session: SessionId,
        turn: TurnId | None = None,
        *,
        before: TurnId | None = None,
        user_message: int | None = None,
        setter: Setter = LOCAL,
    ) -> Session:
        """Returns a new session that continues from `turn`, from the turn `before` another, or from before
        the turn that began with that user message (counted from 0); default: the head. Copies no message.
        """
        source = await self.get(tenant, session)
        if user_message is not None:
            before = await self._begun_by(source, user_message)
        wanted = before or turn or (source.head.turn if source.head else None)
        at = await self.turn_of(source, wanted) if wanted is not None else None
        if at is not None and before is not None:
            at = await self._deps.store.find_turn(tenant, at.parent) if at.parent else None
        # Read whole now, and kept for its first turn: a fork of damage would only fail later.
        await self._deps.histories.at(tenant, at.head if at else None)
        title = fork_title(source.title, await self._deps.store.count_forks(tenant, session))

        async def once() -> Session | None:
            nonlocal source
            new = derive(source, self._deps.ids.session(), title, setter.token, setter.user)
            if at is None:
                new = replace(new, stored_bytes=0)
            adds = QuotaUsage(1, new.stored_bytes)
            await self._deps.quotas.check(tenant, setter.token, adds)
            forked = await self._deps.store.fork_session(source, at, new)
            if forked is not None:
                self._deps.quotas.add(tenant, setter.token, adds)
                return forked
            # The rules of the source have changed since it was read, or it is gone.
            source = await self.get(tenant, session)
            return None

        return await retry_lost_races("fork the session", once)

    async def _begun_by(self, source: Session, index: int) -> TurnId:
        """Turns are never split, so only the first message of one can be left out with what follows it."""
        chain = await read_chain(self._store, source.tenant, source.head)
        passed = 0
        for turn in chain.good:
            said = [message for message in turn.messages if message.role is Role.USER]
            if index == passed and said:
                return turn.id
            if passed < index < passed + len(said):
                raise InvalidRequest(
                    f"User message {index} is not the first of its turn; fork at {passed}, which is"
                )
            passed += len(said)
        chain.checked()
        raise InvalidRequest(
            f"User message {index} not found; the session has {passed} user messages, counted from 0"
        )

    async def delete(self, tenant: TenantId, session: SessionId) -> None:
        """Cancels what runs, then erases. Nothing of the session appears again."""
        found = await self.get(tenant, session)
        run = self._live.get(found.attempt) if found.attempt else None
        if run is not None:
            await self._live.stop(run, AttemptStop(Move.CANCEL, TurnCancelled("The session was deleted")))
        if not await self._deps.store.delete_session(tenant, session):
            raise SessionNotFound()
        self._deps.quotas.forget(tenant)
        await self._gone(session)

    async def delete_unused(self, tenant: TenantId, session: SessionId, since: float) -> bool:
        """Returns False if it was used since then, is in use, or is starred."""
        if not await self._deps.store.delete_session(tenant, session, unused_since=since):
            return False
        await self._gone(session)
        return True

    async def _gone(self, session: SessionId) -> None:
        self._deps.signals.notify(session)
        await self._deps.engine.forget(session)


def _check_rules(rules: WantedRules) -> None:
    for rule in (*(rules.allow or ()), *(rules.ask or ()), *(rules.deny or ())):
        check_text(rule, "a rule")


def _accepted(change: Layers | RulesRefused) -> Layers:
    if isinstance(change, RulesRefused):
        raise Forbidden(change.reason)
    # Of all layers together: every tool call is matched against all of them.
    held = permissions_of(change) or Permissions()
    check_rules({"allow": held.allow, "ask": held.ask, "deny": held.deny})
    return change


def _check_conversation(name: str) -> None:
    check_text(name, "the conversation's name")
    # Also because an index of PostgreSQL takes no more than some 2,700 bytes.
    if not 1 <= len(name) <= MOST_IN_CONVERSATION:
        raise InvalidRequest(f"Conversation name must be 1 to {MOST_IN_CONVERSATION} characters")

"""The audit record: written in the transaction of what it records, and of one tenant."""

from __future__ import annotations

import pytest

from lastgood.model.agents import Permissions
from lastgood.model.attempts import AttemptStatus, Step, StepKind, ToolOutcome
from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TenantId
from lastgood.model.messages import tool_result
from lastgood.model.rules import RuleLayer
from lastgood.model.runtimes import AgentBinding, OnQueued
from lastgood.model.tasks import Claimed
from lastgood.model.tokens import Scope, Token
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT, session
from tests.contract.conftest import Backend

pytestmark = pytest.mark.anyio

RULES = (RuleLayer(Scope.ADMIN, "tok", Permissions(deny=("shell",))),)


def entry(kind: AuditKind = AuditKind.RULES_CHANGED, subject: str = "ses_1", **more: str) -> AuditEntry:
    return AuditEntry(
        DEFAULT_TENANT, kind, "tok_1", more.get("user", "ada"), subject, {"why": "é"}, "10.0.0.1"
    )


async def records(store: Store, tenant: TenantId = DEFAULT_TENANT, **wanted: object) -> list[AuditEntry]:
    found = await store.list_audit(tenant, AuditFilter(**wanted), limit=100)  # type: ignore[arg-type]
    return [record.entry for record in found]


async def test_records_are_listed_in_order_and_by_filter(store: Store) -> None:
    one, two = entry(), entry(AuditKind.TOKEN_CREATED, "tok_9", user="bob")
    await store.record(one)
    await store.record(two)
    assert await records(store) == [one, two]
    assert await records(store, kind=AuditKind.TOKEN_CREATED) == [two]
    assert await records(store, subject="ses_1") == [one]
    assert await records(store, user="bob") == [two]
    first = (await store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=1))[0]
    rest = await store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=9, after=first.number)
    assert [record.entry for record in rest] == [two]


async def test_I35_records_are_of_one_tenant(store: Store) -> None:
    await store.record(entry())
    assert await records(store, TenantId("other")) == []


async def test_I42_a_change_of_rules_is_recorded_with_it_or_not_at_all(store: Store) -> None:
    made = await session(store)
    other = (RuleLayer(Scope.ADMIN, "tok", Permissions(deny=("fetch",))),)
    assert not await store.set_rules_if_unchanged(made.tenant, made.id, other, (), entry())
    assert await records(store) == []
    assert await store.set_rules_if_unchanged(made.tenant, made.id, made.rules, RULES, entry())
    assert await records(store) == [entry()]
    assert not await store.set_field(DEFAULT_TENANT, SessionId("ses_gone"), "agent_key", "x", entry())
    assert await store.set_field(made.tenant, made.id, "agent_key", "x", entry(AuditKind.AGENT_REBOUND))
    assert len(await records(store)) == 2


async def test_I42_tokens_are_recorded_with_their_change(store: Store) -> None:
    token = Token("tok_2", DEFAULT_TENANT, "ci", frozenset({Scope.CHAT}), 0.0)
    await store.create_token(token, b"h" * 32, entry(AuditKind.TOKEN_CREATED, "tok_2"))
    assert await store.revoke_token("tok_unknown", entry(AuditKind.TOKEN_REVOKED)) is None
    assert await store.revoke_token("tok_2", entry(AuditKind.TOKEN_REVOKED, "tok_2")) is not None
    assert [one.kind for one in await records(store)] == [AuditKind.TOKEN_CREATED, AuditKind.TOKEN_REVOKED]


async def test_I42_only_another_instance_of_a_worker_is_recorded(store: Store) -> None:
    replaced = entry(AuditKind.WORKER_REPLACED, "laptop")
    for instance, recorded in (("one", []), ("one", []), ("two", [replaced]), ("two", [replaced])):
        await store.register(work_builders.registration(instance=instance), replaced)
        assert await records(store) == recorded


async def test_I42_runtimes_are_bound_and_recorded_at_once(store: Store) -> None:
    made = await session(store)
    bound = entry(AuditKind.RUNTIME_BOUND, "agent")
    assert not await store.unbind_agent(TENANT, "agent", "ann", bound)
    assert await store.pin_runtime(TENANT, SessionId("ses_gone"), "rt", OnQueued.KEEP, "ann", bound) is None
    assert await records(store) == []
    await store.bind_agent(AgentBinding(TENANT, "agent", "rt"), OnQueued.MOVE, bound)
    assert await store.pin_runtime(TENANT, made.id, "rt", OnQueued.MOVE, "ann", bound) == 0
    assert await store.unbind_agent(TENANT, "agent", "ann", bound)
    assert await records(store) == [bound] * 3


async def test_I42_a_resume_decision_is_recorded_with_the_claim_that_it_is_made_for(store: Store) -> None:
    await work_builders.register(store)
    await work_builders.task(store, await session(store))
    lost = await work_builders.claim(store, prepare_seconds=-1.0)
    claim = await work_builders.claim(store)
    decided = entry(AuditKind.RESUME_DECIDED)
    assert not await store.confirm_claim(lost.hold, lost.token, {}, 90.0, [], audit=decided)
    assert not await store.confirm_claim(claim.hold, lost.token, {}, 90.0, [], audit=decided)
    assert await records(store) == []
    assert await store.confirm_claim(claim.hold, claim.token, {}, 90.0, [], audit=decided)
    assert await records(store) == [decided]


async def test_I42_the_answer_that_counts_is_recorded_and_no_other(store: Store) -> None:
    await work_builders.register(store)
    await work_builders.task(store, await session(store))
    claim = await work_builders.claim(store)
    await store.ask_question(await claim.state(store), claim.token, work_builders.question(claim), [])
    allowed, denied = entry(AuditKind.APPROVAL, user="ada"), entry(AuditKind.APPROVAL, user="bob")
    assert await store.answer_question(TENANT, claim.task, "other", {}, "ada", allowed) is None
    assert await store.answer_question(TENANT, claim.task, "q", {"allowed": True}, "ada", allowed)
    assert await store.answer_question(TENANT, claim.task, "q", {"allowed": False}, "bob", denied) is None
    assert await records(store) == [allowed]


async def test_I42_a_claim_that_takes_a_task_over_is_recorded_with_it(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await work_builders.task(store, await session(store))
    taken: list[tuple[str, str]] = []

    def takeover(claimed: Claimed, before: AttemptId) -> AuditEntry:
        taken.append((claimed.attempt.id, before))
        return entry(AuditKind.CLAIM_TAKEN_OVER, claimed.session.id)

    async def claim() -> Claimed:
        request = work_builders.claim_request(prepare_seconds=-1.0)
        (claimed,) = await store.claim_tasks(request, work_builders.lease_ended, takeover)
        return claimed

    first = await claim()
    assert await records(store) == []
    second = await claim()
    assert taken == [(second.attempt.id, first.attempt.id)]
    assert await records(store) == [entry(AuditKind.CLAIM_TAKEN_OVER, second.session.id)]


async def test_I42_a_question_that_expires_is_recorded_once(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await work_builders.task(store, await session(store))
    claim = await work_builders.claim(store)
    await store.ask_question(await claim.state(store), claim.token, work_builders.question(claim), [])
    expired = entry(AuditKind.APPROVAL)
    assert await store.expire_questions(9, lambda question: expired) == ()
    assert await records(store) == []
    await backend.execute("UPDATE questions SET deadline_at = 1")
    assert len(await store.expire_questions(9, lambda question: expired)) == 1
    assert await store.expire_questions(9, lambda question: expired) == ()
    assert await records(store) == [expired]


async def test_I42_the_end_of_an_attempt_is_recorded_with_it_or_not_at_all(store: Store) -> None:
    begun = await builders.start(store, builders.ask(await session(store)))
    await store.wait_if_held(begun.hold, {"kind": "approval", "place": "1:a"}, 60.0, [])
    failed, expired = AttemptStatus.FAILED, entry(AuditKind.APPROVAL)
    early = await store.finish_if_held(begun.hold, failed, None, [], only_if_expired=True, audit=expired)
    assert not early
    assert await records(store) == []
    assert await store.finish_if_held(begun.hold, failed, None, [], audit=expired)
    assert not await store.finish_if_held(begun.hold, failed, None, [], audit=expired)
    assert await records(store) == [expired]
    ended = await store.get_attempt(begun.hold.tenant, begun.hold.attempt)
    assert ended is not None
    assert (ended.question, ended.unanswered) == (None, {"kind": "approval", "place": "1:a"})


async def test_I42_a_denial_is_recorded_with_its_step_or_not_at_all(store: Store) -> None:
    begun = await builders.start(store, builders.ask(await session(store)))
    result = Step(StepKind.TOOL, tool_result("a", "error: no"), outcome=ToolOutcome.DENIED)
    denied = entry(AuditKind.CALL_DENIED)
    assert await store.journal_if_held(begun.hold, [result], [], batch=1, audit=denied)
    assert not await store.journal_if_held(begun.hold, [result], [], batch=1, audit=denied)
    assert await records(store) == [denied]
    await store.finish_if_held(begun.hold, AttemptStatus.FAILED, None, [])
    assert not await store.journal_if_held(begun.hold, [result], [], batch=2, audit=denied)
    assert await records(store) == [denied]

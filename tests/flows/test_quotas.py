"""Quotas are checked before anything is stored and before any model is asked, on both stores."""

from __future__ import annotations

import json

import pytest

from lastgood.core.quotas import NO_QUOTA, Quota, QuotaUsage
from lastgood.errors import QuotaExceeded
from lastgood.flows import quotas
from lastgood.flows.quotas import Quotas
from lastgood.flows.session_export import SessionImport, document_pieces
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask, AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT, TenantId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.sessions import TurnKind
from lastgood.model.tokens import Scope
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster

pytestmark = pytest.mark.anyio

OTHER = Setter(Scope.SESSION, "tok_other")


def limit(node: Lastgood, *, tenant: Quota = NO_QUOTA, token: Quota = NO_QUOTA) -> None:
    """Gives a node other quotas; what it knew is forgotten."""
    own = node.deps.quotas
    own.__init__(own._read, tenant, token)  # type: ignore[misc]


async def test_sessions_of_a_tenant_and_of_a_token_are_limited(cluster: Cluster, node: Lastgood) -> None:
    limit(node, tenant=Quota(sessions=3), token=Quota(sessions=2))
    first = await node.sessions.create(DEFAULT_TENANT, "agent")
    await node.sessions.create(DEFAULT_TENANT, "agent")
    with pytest.raises(
        QuotaExceeded, match=r"token local has 2 sessions; the limit is 2; .*--token-sessions"
    ):
        await node.sessions.create(DEFAULT_TENANT, "agent")
    with pytest.raises(QuotaExceeded, match="token local"):
        await node.sessions.fork(DEFAULT_TENANT, first.id)
    await node.sessions.create(DEFAULT_TENANT, "agent", setter=OTHER)
    with pytest.raises(QuotaExceeded, match=r"tenant default has 3 sessions; .*--tenant-sessions"):
        await node.sessions.create(DEFAULT_TENANT, "agent", setter=OTHER)
    with pytest.raises(QuotaExceeded):
        await node.sessions.of_conversation(DEFAULT_TENANT, "a name", "agent", OTHER)
    await node.sessions.create(TenantId("another"), "agent")  # nobody else's quota

    await node.sessions.delete(DEFAULT_TENANT, first.id)
    await node.sessions.create(DEFAULT_TENANT, "agent")


async def test_I13_a_turn_over_the_quota_changes_nothing_and_asks_no_model(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node)
    await cluster.good(node, session, "x" * 1000)
    await cluster.quiet(node)
    before = await node.sessions.get(DEFAULT_TENANT, session)
    prompts = len(cluster.world.prompts)
    limit(node, tenant=Quota(bytes=500))
    for kind in (TurnKind.RUN, TurnKind.APPEND):
        with pytest.raises(
            QuotaExceeded, match="delete sessions, or ask the operator to raise --tenant-bytes"
        ):
            await node.submitter.submit(Submission(Ask(DEFAULT_TENANT, session, (user("more"),), kind=kind)))
    queued = NewQueued(DEFAULT_TENANT, session, node.deps.ids.turn(), QueueKind.FOLLOWUP, (user("later"),))
    with pytest.raises(QuotaExceeded):
        await node.queue.put(queued)
    assert await node.sessions.get(DEFAULT_TENANT, session) == before
    assert len(cluster.world.prompts) == prompts
    assert len(await node.sessions.attempts(DEFAULT_TENANT, session)) == 1

    # It can still be read, reset and deleted.
    reset = await node.submitter.submit(Submission(Ask(DEFAULT_TENANT, session, (), kind=TurnKind.RESET)))
    assert (await reset.outcome()).status is AttemptStatus.COMMITTED
    await node.sessions.delete(DEFAULT_TENANT, session)
    await cluster.good(node, await cluster.session(node), "again")


async def test_I20_a_replay_is_answered_over_the_quota_too(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    ask = Ask(DEFAULT_TENANT, session, (user("x" * 1000),), key="key", fingerprint="same")
    first = await (await node.submitter.submit(Submission(ask))).outcome()
    limit(node, token=Quota(bytes=1))
    again = await (await node.submitter.submit(Submission(ask))).outcome()
    assert again.turn == first.turn


async def test_an_invalid_import_is_rejected_whole(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    await cluster.good(node, session, "x" * 1000)
    known = await node.sessions.get(DEFAULT_TENANT, session)
    document = json.loads(b"".join([piece async for piece in document_pieces(node.sessions, known)]))
    importing = SessionImport(node.deps, node.sessions)
    limit(node, tenant=Quota(bytes=known.stored_bytes * 2))
    imported = await importing.take(DEFAULT_TENANT, document, OTHER)
    assert (imported.created_by, imported.stored_bytes) == ("tok_other", known.stored_bytes)
    with pytest.raises(QuotaExceeded, match="would add"):
        await importing.take(DEFAULT_TENANT, document, OTHER)
    assert len((await node.sessions.list(DEFAULT_TENANT)).sessions) == 2


async def test_deleting_the_source_of_a_fork_hides_no_bytes(cluster: Cluster, node: Lastgood) -> None:
    """Else a quota could be passed by forking and deleting."""
    session = await cluster.session(node)
    await cluster.good(node, session, "x" * 1000)
    known = await node.sessions.get(DEFAULT_TENANT, session)
    fork = await node.sessions.fork(DEFAULT_TENANT, session)
    await node.sessions.delete(DEFAULT_TENANT, session)
    assert fork.stored_bytes == known.stored_bytes
    limit(node, tenant=Quota(bytes=known.stored_bytes))
    with pytest.raises(QuotaExceeded):
        await node.submitter.submit(Submission(Ask(DEFAULT_TENANT, fork.id, (user("more"),))))


async def test_usage_is_read_once_in_a_while_and_not_at_all_without_quotas() -> None:
    reads = 0
    now = 1000.0

    async def read(tenant: TenantId) -> dict[str, QuotaUsage]:
        nonlocal reads
        reads += 1
        return {"a": QuotaUsage(1, 10)}

    free = Quotas(read, NO_QUOTA, NO_QUOTA, lambda: now)
    await free.check(DEFAULT_TENANT, "a", QuotaUsage(1, 1))
    assert reads == 0
    limited = Quotas(read, Quota(sessions=3), NO_QUOTA, lambda: now)
    for _ in range(100):
        await limited.check(DEFAULT_TENANT, "a", QuotaUsage(sessions=1))
    assert reads == 1
    for _ in range(2):  # what this process adds counts at once
        limited.add(DEFAULT_TENANT, "b", QuotaUsage(sessions=1))
    with pytest.raises(QuotaExceeded):
        await limited.check(DEFAULT_TENANT, "b", QuotaUsage(sessions=1))
    now += quotas.FRESH_SECONDS
    await limited.check(DEFAULT_TENANT, "b", QuotaUsage(sessions=1))
    assert reads == 2


async def test_local_sessions_belong_to_the_local_token(cluster: Cluster, node: Lastgood) -> None:
    session = await node.sessions.get(DEFAULT_TENANT, await cluster.session(node))
    assert session.created_by == LOCAL.token

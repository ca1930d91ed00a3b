"""What sessions store, by tenant and token, on both stores."""

from __future__ import annotations

import pytest

from lastgood.model.messages import user
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.conftest import Backend

pytestmark = pytest.mark.anyio


async def test_a_commit_raises_the_stored_bytes_by_its_body(store: Store) -> None:
    session = await builders.session(store, created_by="tok_a")
    assert (session.created_by, session.stored_bytes) == ("tok_a", 0)
    turns = [await builders.commit(store, session, user("x" * size)) for size in (10, 1000, 100_000)]
    stored = sum(len(turn.body) for turn in turns)
    assert (await builders.again(store, session)).stored_bytes == stored
    assert await store.usage_of_tenant(builders.TENANT) == {"tok_a": (1, stored)}


async def test_I2_a_failed_attempt_stores_nothing(store: Store) -> None:
    session = await builders.session(store)
    await builders.start(store, builders.ask(session, user("x" * 1000)))
    assert (await builders.again(store, session)).stored_bytes == 0


async def test_usage_is_counted_by_token_and_never_across_tenants(store: Store) -> None:
    for tenant, token in (
        (builders.TENANT, "a"),
        (builders.TENANT, "a"),
        (builders.TENANT, "b"),
        (builders.STRANGER, "a"),
    ):
        await builders.session(store, tenant, created_by=token)
    assert await store.usage_of_tenant(builders.TENANT) == {"a": (2, 0), "b": (1, 0)}
    assert await store.usage_of_tenant(builders.STRANGER) == {"a": (1, 0)}


async def test_deleting_frees_what_was_used(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store, created_by="a")
    await builders.talk(store, session, 3)
    assert await store.delete_session(session.tenant, session.id)
    assert await store.usage_of_tenant(builders.TENANT) == {}

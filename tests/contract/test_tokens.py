"""Tokens: found by their hash, kept as they were made, revoked once (I37)."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import StoreError
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope, Token
from lastgood.ports import Store
from lastgood.store.database_url import open_store
from tests.contract import builders
from tests.contract.builders import NOW, STRANGER, TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


def new_token(**fields: Any) -> Token:
    plain = Token(f"tok_{builders.new_id()}", TENANT, "a laptop", frozenset({Scope.CHAT}), created_at=0.0)
    return replace(plain, **fields)


def hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


async def made(store: Store, text: str, **fields: Any) -> Token:
    return await store.create_token(new_token(**fields), hash_of(text))


# --- made and found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expires_at", [None, NOW + 0.25])
async def test_a_token_is_found_by_its_hash_as_it_was_made(store: Store, expires_at: float | None) -> None:
    new = new_token(
        tenant=TenantId("a tenant"),
        name="süß 🧭\nlaptop",
        scopes=frozenset({Scope.READ, Scope.WORKER}),
        expires_at=expires_at,
    )
    created = await store.create_token(new, hash_of("plain"))
    assert replace(created, created_at=0.0) == new
    assert created.created_at > 1_600_000_000  # the database's time, whatever the caller thinks it is
    assert await store.find_token(hash_of("plain")) == created
    assert await store.list_tokens() == (created,)


async def test_a_token_is_read_by_its_id_in_its_own_tenant_even_if_it_was_revoked(store: Store) -> None:
    token = await made(store, "plain", tenant=TenantId("a"))
    assert await store.get_token(TenantId("a"), token.id) == token
    assert await store.get_token(TenantId("b"), token.id) is None
    assert await store.get_token(TenantId("a"), "tok_unknown") is None
    revoked = await store.revoke_token(token.id)
    assert await store.get_token(TenantId("a"), token.id) == revoked


async def test_the_first_worker_keeps_an_unbound_token(store: Store) -> None:
    token = await made(store, "plain", scopes=frozenset({Scope.WORKER}))
    bound = await asyncio.gather(*(store.bind_token(token.id, worker) for worker in ("a", "b", "c")))
    assert len({one and one.worker for one in bound}) == 1
    assert await store.find_token(hash_of("plain")) == bound[0]
    assert await store.bind_token("tok_unknown", "a") is None


@pytest.mark.parametrize("scopes", [frozenset(), *({scope} for scope in Scope), frozenset(Scope)])
async def test_scopes_are_kept(store: Store, scopes: frozenset[Scope]) -> None:
    await made(store, "plain", scopes=frozenset(scopes))
    found = await store.find_token(hash_of("plain"))
    assert found is not None
    assert found.scopes == scopes
    assert all(isinstance(scope, Scope) for scope in found.scopes)


async def test_an_unknown_hash_finds_no_token(store: Store) -> None:
    await made(store, "plain")
    for hash in (hash_of("other"), hash_of("plain")[:-1], b"", b"\x00" * 32, b"\xff" * 5000):
        assert await store.find_token(hash) is None


async def test_I35_a_token_hash_finds_its_own_tenant_only(store: Store) -> None:
    ours, theirs = await made(store, "ours"), await made(store, "theirs", tenant=STRANGER)
    assert await store.find_token(hash_of("ours")) == ours
    assert await store.find_token(hash_of("theirs")) == theirs
    assert (ours.tenant, theirs.tenant) == (TENANT, STRANGER)


async def test_tokens_are_listed_in_the_order_they_were_made(store: Store) -> None:
    assert await store.list_tokens() == ()
    tokens = [await made(store, str(number)) for number in range(5)]
    assert await store.list_tokens() == tuple(tokens)


async def test_I37_the_database_holds_the_hash_and_never_the_token(backend: Backend) -> None:
    await made(backend.store, "plain")
    stored = (await dump(backend))["tokens"]
    assert hash_of("plain") in stored[0]
    assert "plain" not in repr(stored)


@pytest.mark.parametrize("same", ["id", "hash"])
async def test_an_id_and_a_hash_are_given_once(backend: Backend, same: str) -> None:
    store = backend.store
    first = await made(store, "plain")
    before = await dump(backend)
    id, text = (first.id, "other") if same == "id" else ("tok_other", "plain")
    with pytest.raises(StoreError):
        await made(store, text, id=id, tenant=STRANGER)
    assert await dump(backend) == before
    await made(store, "other")


# --- revoked -----------------------------------------------------------------------------------------------


async def test_a_revoked_token_says_since_when_and_others_stay_as_they_are(store: Store) -> None:
    token, other = await made(store, "plain", expires_at=NOW), await made(store, "other")
    revoked = await store.revoke_token(token.id)
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert revoked.revoked_at >= token.created_at
    assert replace(revoked, revoked_at=None) == token
    assert await store.find_token(hash_of("plain")) == revoked
    assert await store.find_token(hash_of("other")) == other
    assert await store.list_tokens() == (revoked, other)


async def test_revoking_again_keeps_the_first_time(backend: Backend) -> None:
    store = backend.store
    token = await made(store, "plain")
    await backend.execute(f"UPDATE tokens SET revoked_at = {NOW} WHERE id = '{token.id}'")
    before = await dump(backend)
    revoked = await store.revoke_token(token.id)
    assert revoked == replace(token, revoked_at=NOW)
    assert await dump(backend) == before


async def test_concurrent_revokes_return_the_same_time(store: Store) -> None:
    token = await made(store, "plain")
    answers = await asyncio.gather(*(store.revoke_token(token.id) for _ in range(8)))
    found = await store.find_token(hash_of("plain"))
    assert found is not None
    assert found.revoked_at is not None
    assert answers == [found] * 8


async def test_revoking_an_unknown_token_changes_nothing(backend: Backend) -> None:
    await made(backend.store, "plain")
    before = await dump(backend)
    assert await backend.store.revoke_token("unknown") is None
    assert await dump(backend) == before


# --- beside others -----------------------------------------------------------------------------------------


async def test_readers_see_token_ids_beside_their_creator(where: Path | str, store: Store) -> None:
    token = await made(store, "plain")
    database = f"sqlite:///{where}" if isinstance(where, Path) else where
    reader = await open_store(database, read_only=True)
    try:
        assert await reader.list_tokens() == (token,)
        revoked = await store.revoke_token(token.id)
        assert await reader.find_token(hash_of("plain")) == revoked
    finally:
        await reader.close()

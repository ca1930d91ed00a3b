"""Chains read page by page: the same turns as in one read, on both stores."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import fields

import pytest

from lastgood.errors import SessionNotFound
from lastgood.flows.session_reader import SessionReader
from lastgood.model.ids import TurnId
from lastgood.model.messages import user
from lastgood.model.sessions import EncodedTurn, Session, Turn
from lastgood.ports import Store
from lastgood.store import chain_reader
from lastgood.store.rows import Row, to_encoded_turn
from tests.contract import builders
from tests.contract.conftest import Backend

pytestmark = pytest.mark.anyio


async def streamed(store: Store, session: Session, after: int = 0) -> list[EncodedTurn]:
    assert session.head is not None
    stream = store.stream_turns(session.tenant, session.head.turn, after_seq=after)
    async with aclosing(stream) as turns:
        return [turn async for turn in turns]


async def read(store: Store, session: Session, after: int = 0) -> list[Turn]:
    assert session.head is not None
    return list(await store.read_turns(session.tenant, session.head.turn, after_seq=after))


def encoded(turn: Turn) -> EncodedTurn:
    return EncodedTurn(**{field.name: getattr(turn, field.name) for field in fields(EncodedTurn)})


@pytest.mark.parametrize(
    ("page_bytes", "page_turns"), [(1, 200), (300, 200), (256 * 1024, 2), (256 * 1024, 200)]
)
async def test_pages_of_any_size_give_the_whole_chain_in_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, page_bytes: int, page_turns: int
) -> None:
    """Also through forks of forks, from any turn on."""
    monkeypatch.setattr(chain_reader, "PAGE_BYTES", page_bytes)
    monkeypatch.setattr(chain_reader, "PAGE_TURNS", page_turns)
    root = await builders.session(store)
    turns = await builders.talk(store, root, 5)
    fork = await builders.fork(store, await builders.again(store, root), turns[2])
    more = await builders.talk(store, fork, 3)
    leaf = await builders.fork(store, await builders.again(store, fork), more[1])
    await builders.talk(store, leaf, 2)
    for session in (
        root,
        fork,
        leaf,
        await builders.fork(store, await builders.again(store, leaf), turns[0]),
    ):
        known = await builders.again(store, session)
        for after in range(known.turns + 1):
            whole = await read(store, known, after)
            assert [encoded(turn) for turn in whole] == await streamed(store, known, after)


async def test_a_page_holds_no_more_than_its_bytes_and_one_turn(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_reader, "PAGE_BYTES", 10_000)
    session = await builders.session(backend.store)
    for _ in range(20):
        await builders.commit(backend.store, session, user("x" * 4000))
    known = await builders.again(backend.store, session)
    pages: list[int] = []
    assert known.head is not None

    async def counted(name: str, parameters: object) -> list[Row]:
        found = backend.store.db.rows(name, parameters)  # type: ignore[attr-defined]
        page = list(found) if hasattr(found, "__iter__") else await found
        if name == "read_segment_page":
            pages.append(sum(len(to_encoded_turn(row).body) for row in page))
        return page

    stream = chain_reader.stream_chain(counted, known.tenant, known.head.turn, 0)
    assert len([turn async for turn in stream]) == 20
    assert len(pages) > 5
    assert max(pages) < 10_000 + 2 * 4000


async def test_a_session_deleted_while_it_is_read_is_an_error_and_not_a_shorter_history(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I18."""
    monkeypatch.setattr(chain_reader, "PAGE_TURNS", 2)
    session = await builders.session(store)
    await builders.talk(store, session, 6)
    known = await builders.again(store, session)
    assert known.head is not None
    stream = SessionReader(store).stream(known)
    await anext(stream)
    assert await store.delete_session(known.tenant, known.id)
    with pytest.raises(SessionNotFound, match="deleted while"):
        async for _ in stream:
            pass


async def test_I35_a_foreign_or_unknown_head_has_no_turns(store: Store) -> None:
    session = await builders.session(store)
    (turn,) = await builders.talk(store, session, 1)
    for tenant, head in ((builders.STRANGER, turn.id), (builders.TENANT, TurnId("nothing"))):
        assert [one async for one in store.stream_turns(tenant, head)] == []

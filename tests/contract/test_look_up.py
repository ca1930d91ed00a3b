"""Looking an ask up: what a begin would meet, told without writing anything."""

from dataclasses import replace

import pytest

from lastgood.core.admission import Admitted, Attach, Busy, Replay, admit
from lastgood.model.attempts import AttemptStatus, BeginConflict, Committed, OnLeave
from lastgood.model.ids import SessionId
from lastgood.ports import Store
from tests.contract import given
from tests.contract.conftest import Backend, dump
from tests.contract.given import STRANGER, TENANT

pytestmark = pytest.mark.anyio


async def test_a_look_at_a_free_session_writes_nothing_and_takes_nothing(backend: Backend) -> None:
    store = backend.store
    session = await given.session(store)
    await given.talk(store, session, 2)
    asked = given.ask(session, key="key", fingerprint="print")
    before = await dump(backend)
    assert await store.look_up(asked) == BeginConflict(await given.again(store, session))
    assert await dump(backend) == before
    await given.start(store, asked)


async def test_I35_a_look_does_not_see_the_sessions_or_keys_of_another_tenant(store: Store) -> None:
    session = await given.session(store)
    await given.commit(store, session, key="key")
    asked = given.ask(session, key="key")
    assert await store.look_up(replace(asked, session=SessionId("unknown"))) == BeginConflict(None)
    assert await store.look_up(replace(asked, tenant=STRANGER)) == BeginConflict(None)
    theirs = given.ask(await given.session(store, STRANGER), key="key")
    assert (await store.look_up(theirs)).prior is None


async def test_I20_a_look_finds_what_became_of_a_key(store: Store) -> None:
    session = await given.session(store)
    asked = given.ask(session, key="key", fingerprint="print")
    first = await given.start(store, asked)
    attempt = await store.get_attempt(TENANT, first.hold.attempt)
    assert attempt is not None
    assert admit(asked, await store.look_up(asked)) == Attach(attempt)
    assert admit(given.ask(session), await store.look_up(given.ask(session))) == Busy(attempt)

    await store.finish_if_held(first.hold, AttemptStatus.FAILED, None, [])
    assert admit(asked, await store.look_up(asked)) == Admitted(first.begin.turn)

    second = await given.start(store, asked, turn=first.begin.turn, again=True)
    assert await store.commit_if_head(second.hold, second.plan(), []) is Committed.YES
    standing = await store.look_up(asked)
    assert standing.prior == await store.read_request(TENANT, first.begin.turn)
    assert isinstance(admit(asked, standing), Replay)


@pytest.mark.parametrize("how", [{}, {"key": "key"}, {"is_retry": True}], ids=str)
async def test_a_look_tells_what_a_begin_that_loses_is_told(store: Store, how: dict[str, object]) -> None:
    body = {"fingerprint": "print", "caller": "caller", "on_leave": OnLeave.ORPHAN}
    session = await given.session(store)
    key = how.get("key")
    await given.start(store, given.ask(session, **body, key=key))
    asked = given.ask(session, **body, **how)
    standing = await store.look_up(asked)
    assert standing == await given.refused(store, asked)
    assert standing.holder is not None
    assert (standing.prior is not None) == bool(how)

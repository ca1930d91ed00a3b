"""Tokens: shown once, checked by their hash, and refused soon after they were revoked (I37)."""

import asyncio
import hashlib
import re
from typing import Any

import pytest

from lastgood.errors import InvalidRequest, NotFound, OutcomeUnknown, StoreUnavailable
from lastgood.flows import tokens as flow
from lastgood.flows.tokens import MOST_DAYS, MOST_IN_NAME, SECONDS_KEPT, Tokens
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope, Token
from tests.contract.conftest import Backend, dump
from tests.faults.faults import Faults, FaultyStore, Mode
from tests.flows.cluster import Gate

pytestmark = pytest.mark.anyio

TENANT = TenantId("a tenant")


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


class Server:
    """The tokens of one server, with its own memory, its own faults and a count of its store calls."""

    def __init__(self, backend: Backend, clock: HandClock) -> None:
        self.faults = Faults()
        store: Any = FaultyStore(backend.store, self.faults)
        self.tokens = Tokens(store, clock)

    async def made(self, name: str = "a laptop", **fields: Any) -> tuple[Token, str]:
        return await self.tokens.create(name, TENANT, fields.pop("scopes", ["chat"]), **fields)

    @property
    def lookups(self) -> int:
        return self.faults.hits["store.find_token"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def server(backend: Backend, clock: HandClock) -> Server:
    return Server(backend, clock)


@pytest.fixture
def elsewhere(backend: Backend, clock: HandClock) -> Server:
    """A command, or another node."""
    return Server(backend, clock)


# -- made ------------------------------------------------------------------------


async def test_a_token_is_what_its_maker_said(server: Server, clock: HandClock) -> None:
    token, plain = await server.made("a laptop", scopes=["chat", Scope.READ], expires_in_seconds=60)
    assert (token.name, token.tenant, token.revoked_at) == ("a laptop", TENANT, None)
    assert token.scopes == {Scope.CHAT, Scope.READ}
    assert token.expires_at == clock.now() + 60
    assert await server.tokens.check(plain) == token
    assert await server.tokens.list() == (token,)


async def test_I36_tokens_and_ids_are_random_and_long(server: Server) -> None:
    made = [await server.made() for _ in range(20)]
    assert all(re.fullmatch(r"lg_[A-Za-z0-9_-]{43}", plain) for _, plain in made)
    assert all(re.fullmatch(r"tok_[0-9a-f]{32}", token.id) for token, _ in made)
    assert len({plain for _, plain in made} | {token.id for token, _ in made}) == 40
    assert all(token.id[4:] not in plain for token, plain in made)


async def test_I37_only_the_hash_of_a_token_is_stored(backend: Backend, server: Server) -> None:
    token, plain = await server.made()
    [row] = (await dump(backend))["tokens"]
    assert hashlib.sha256(plain.encode()).digest() in row
    for kept in (repr(row), repr(token), repr(vars(server.tokens)), repr(await server.tokens.list())):
        assert plain not in kept
        assert plain[3:] not in kept


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": ""}, "the name must have 1 to 200"),
        ({"name": " \n"}, "the name"),
        ({"name": "x" * (MOST_IN_NAME + 1)}, "200"),
        ({"name": "a\x00b"}, "the name contains a NUL"),
        ({"name": "a\ud800b"}, "the name contains an unpaired"),
        ({"tenant": ""}, "the tenant"),
        ({"tenant": "a\x00b"}, "the tenant"),
        (
            {"scopes": []},
            "needs at least one scope; use one or more of chat, read, session, approve, worker, admin",
        ),
        ({"scopes": ["chat", "root"]}, "'root'; use one or more of chat, read, session, approve, worker"),
        ({"scopes": ["Chat"]}, "'Chat'"),
        ({"scopes": ["read worker"]}, "'read worker'"),
        ({"expires_in_seconds": 0}, "more than 0 seconds"),
        ({"expires_in_seconds": -1}, "more than 0 seconds"),
        ({"expires_in_seconds": float("nan")}, "more than 0 seconds"),
        ({"expires_in_seconds": float("inf")}, f"at most {MOST_DAYS} days"),
    ],
)
async def test_what_cannot_be_a_token_is_refused_and_leaves_nothing(
    backend: Backend, server: Server, wrong: dict[str, Any], says: str
) -> None:
    right: dict[str, Any] = {"name": "x" * MOST_IN_NAME, "tenant": TENANT, "scopes": ["chat"]}
    await server.tokens.create(**right)
    before = await dump(backend)
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        await server.tokens.create(**right | wrong)
    assert await dump(backend) == before


async def test_I18_a_lost_response_names_the_token_to_look_for(server: Server) -> None:
    server.faults.point, server.faults.mode = "store.create_token", Mode.LOST
    with pytest.raises(OutcomeUnknown, match="revoke it") as lost:
        await server.made()
    [token] = await server.tokens.list()
    assert token.id in lost.value.message


# -- checked -----------------------------------------------------------------------


async def test_a_token_is_good_to_its_end_and_no_longer(server: Server, clock: HandClock) -> None:
    token, plain = await server.made(expires_in_seconds=2)
    clock.time += 1.75
    assert await server.tokens.check(plain) == token
    clock.time += 0.25  # it is remembered still, and refused all the same
    assert await server.tokens.check(plain) is None
    assert server.lookups == 1
    clock.time += SECONDS_KEPT
    assert await server.tokens.check(plain) is None


async def test_an_unknown_token_is_rejected(server: Server) -> None:
    _, plain = await server.made()
    for other in (
        "lg_" + "A" * 43,
        plain[:-1] + ("A" if plain[-1] != "A" else "B"),
        "lg_" + plain[3:].swapcase(),
    ):
        assert await server.tokens.check(other) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: "",
        lambda plain: "lg_",
        lambda plain: plain[3:],
        lambda plain: plain + "A",
        lambda plain: plain[:-1],
        lambda plain: plain * 100_000,
        lambda plain: plain + "\n",
        lambda plain: " " + plain,
        lambda plain: plain.upper(),
        lambda plain: plain[:-1] + "=",
        lambda plain: plain[:-1] + "é",
        lambda plain: plain[:-1] + "\ud800",
        lambda plain: plain[:-1] + "\x00",
        lambda plain: plain[:-1] + "\N{ARABIC-INDIC DIGIT ONE}",
    ],
)
async def test_what_does_not_look_like_a_token_is_not_even_looked_up(server: Server, change: Any) -> None:
    _, plain = await server.made()
    assert await server.tokens.check(change(plain)) is None
    assert server.lookups == 0


async def test_an_unreachable_store_is_an_error_and_not_a_refusal(server: Server) -> None:
    _, plain = await server.made()
    server.faults.point, server.faults.mode = "store.find_token", Mode.RAISE
    with pytest.raises(StoreUnavailable):
        await server.tokens.check(plain)
    assert await server.tokens.check(plain) is not None


# -- remembered --------------------------------------------------------------------


async def test_a_busy_server_reads_a_token_once_in_a_while(server: Server, clock: HandClock) -> None:
    token, plain = await server.made()
    for _ in range(128):
        assert await server.tokens.check(plain) == token
        clock.time += SECONDS_KEPT / 128
    assert server.lookups == 1
    assert await server.tokens.check(plain) == token
    assert server.lookups == 2


async def test_a_token_is_good_as_soon_as_it_is_made(server: Server, elsewhere: Server) -> None:
    """What is unknown is not remembered as such."""
    guess = "lg_" + "A" * 43
    assert await server.tokens.check(guess) is None
    assert await server.tokens.check(guess) is None
    assert server.lookups == 2
    token, plain = await elsewhere.made()
    assert await server.tokens.check(plain) == token


async def test_unknown_tokens_do_not_evict_a_known_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "MOST_KEPT", 2)
    _, plain = await server.made()
    await server.tokens.check(plain)
    for number in range(5):
        assert await server.tokens.check(f"lg_{number:043}") is None
    read = server.lookups
    assert await server.tokens.check(plain) is not None
    assert server.lookups == read


async def test_only_so_many_tokens_are_remembered(
    server: Server, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "MOST_KEPT", 2)
    first, second, third = [(await server.made())[1] for _ in range(3)]
    for plain in (first, second, third):
        assert await server.tokens.check(plain) is not None
    read = server.lookups
    for plain in (third, second):
        assert await server.tokens.check(plain) is not None
    assert server.lookups == read
    assert await server.tokens.check(first) is not None  # read longest ago, so forgotten
    assert server.lookups == read + 1
    assert len(server.tokens._kept) == 2


# -- revoked -----------------------------------------------------------------------


async def test_I37_a_revoked_token_is_refused_at_once_where_it_was_revoked(server: Server) -> None:
    token, plain = await server.made()
    _, other = await server.made("another")
    assert await server.tokens.check(plain) == token
    revoked = await server.tokens.revoke(token.id)
    assert revoked.revoked_at is not None
    assert await server.tokens.check(plain) is None
    assert await server.tokens.check(other) is not None
    assert revoked in await server.tokens.list()


async def test_I37_a_token_revoked_elsewhere_is_refused_within_the_time_it_is_remembered(
    server: Server, elsewhere: Server, clock: HandClock
) -> None:
    token, plain = await server.made()
    await server.tokens.check(plain)
    clock.time += SECONDS_KEPT - 0.25
    await elsewhere.tokens.revoke(token.id)
    assert await server.tokens.check(plain) == token  # that is what remembering costs
    clock.time += 0.25
    assert await server.tokens.check(plain) is None


async def test_a_clock_that_is_set_back_does_not_keep_a_revoked_token_alive(
    server: Server, elsewhere: Server, clock: HandClock
) -> None:
    token, plain = await server.made()
    await server.tokens.check(plain)
    await elsewhere.tokens.revoke(token.id)
    clock.time -= 3600
    assert await server.tokens.check(plain) is None


class Held(FaultyStore):
    """Has read the token, and says so only when the gate is open."""

    def __init__(self, store: Any, gate: Gate) -> None:
        super().__init__(store, Faults())
        self.gate = gate

    async def find_token(self, hash: bytes) -> Token | None:
        found = await self._store.find_token(hash)
        await self.gate()
        return found


async def test_I37_a_check_that_was_under_way_does_not_bring_a_revoked_token_back(
    backend: Backend, server: Server, clock: HandClock
) -> None:
    token, plain = await server.made()
    gate = Gate()
    store: Any = Held(backend.store, gate)
    tokens = Tokens(store, clock)
    check = asyncio.ensure_future(tokens.check(plain))
    await gate.until_reached()
    await tokens.revoke(token.id)
    gate.open()
    assert await check == token  # it came before the revocation
    assert await tokens.check(plain) is None


async def test_a_slow_read_is_remembered_from_its_start(
    backend: Backend, server: Server, clock: HandClock
) -> None:
    token, plain = await server.made()
    gate = Gate()
    store: Any = Held(backend.store, gate)
    tokens = Tokens(store, clock)
    check = asyncio.ensure_future(tokens.check(plain))
    await gate.until_reached()
    await server.tokens.revoke(token.id)
    clock.time += SECONDS_KEPT
    gate.open()
    assert await check == token
    assert await tokens.check(plain) is None


async def test_revoking_again_changes_nothing(server: Server) -> None:
    token, _ = await server.made()
    assert await server.tokens.revoke(token.id) == await server.tokens.revoke(token.id)


@pytest.mark.parametrize(
    ("id", "error"),
    [("unknown", NotFound), ("", NotFound), ("a\x00", InvalidRequest), ("\ud800", InvalidRequest)],
)
async def test_an_invalid_token_id_cannot_be_revoked(server: Server, id: str, error: type[Exception]) -> None:
    await server.made()
    with pytest.raises(error):
        await server.tokens.revoke(id)


async def test_I18_a_revocation_whose_answer_is_lost_is_said_to_be_unknown_and_counts_here(
    server: Server,
) -> None:
    token, plain = await server.made()
    await server.tokens.check(plain)
    server.faults.point, server.faults.mode = "store.revoke_token", Mode.LOST
    with pytest.raises(OutcomeUnknown, match="revoke it again"):
        await server.tokens.revoke(token.id)
    assert await server.tokens.check(plain) is None

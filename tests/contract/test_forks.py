"""Forks keep what they need, and nothing else is kept, in whatever order sessions are deleted (I6).

The reference model is one line: what must exist is what the chains of the living sessions contain.
"""

import itertools
from dataclasses import dataclass, field

import pytest

from lastgood.model.ids import TenantId, TurnId
from lastgood.model.sessions import Session, Turn
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.conftest import Backend
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio

#: A session: whose fork it is, at which turn of that one's chain, and how many turns it commits itself.
Plan = tuple[int | None, int, int]

SHAPES: dict[str, list[Plan]] = {
    "one session": [(None, 0, 3)],
    "a fork at the end": [(None, 0, 3), (0, 3, 2)],
    "a fork in the middle": [(None, 0, 3), (0, 2, 2)],
    "a fork at the first turn": [(None, 0, 3), (0, 1, 1)],
    "a fork without own turns": [(None, 0, 3), (0, 2, 0)],
    "a fork of nothing": [(None, 0, 2), (0, 0, 2)],
    "two forks at one turn": [(None, 0, 3), (0, 2, 1), (0, 2, 1)],
    "two forks at two turns": [(None, 0, 4), (0, 3, 1), (0, 1, 1)],
    "two forks without own turns": [(None, 0, 3), (0, 2, 0), (0, 1, 0)],
    "a fork of a fork at its own turn": [(None, 0, 3), (0, 2, 2), (1, 3, 1)],
    "a fork of a fork at its last turn": [(None, 0, 3), (0, 3, 1), (1, 4, 0)],
    "a fork of a fork before the fork": [(None, 0, 3), (0, 3, 1), (1, 2, 1)],
    "a fork of a fork where that began": [(None, 0, 3), (0, 2, 1), (1, 2, 1)],
    "a fork of a fork without own turns": [(None, 0, 3), (0, 2, 0), (1, 2, 2)],
    "a chain of three forks": [(None, 0, 2), (0, 2, 1), (1, 3, 1), (2, 4, 1)],
    "a tree": [(None, 0, 3), (0, 2, 2), (1, 3, 1), (0, 3, 0)],
    "a tree with two leaves on a fork": [(None, 0, 2), (0, 1, 2), (1, 2, 1), (1, 3, 1)],
}


@dataclass
class Family:
    """Sessions of one tenant, and the reference model of them."""

    store: Store
    tenant: TenantId
    sessions: list[Session] = field(default_factory=list)
    chains: list[list[Turn]] = field(default_factory=list)
    living: set[int] = field(default_factory=set)

    async def build(self, shape: list[Plan]) -> None:
        for parent, at, own in shape:
            chain: list[Turn] = []
            if parent is None:
                session = await builders.session(self.store, self.tenant)
            else:
                chain = self.chains[parent][:at]
                session = await builders.fork(self.store, self.sessions[parent], chain[-1] if chain else None)
            self.sessions.append(session)
            self.chains.append(chain + await builders.talk(self.store, session, own))
        self.living = set(range(len(shape)))

    def needed(self) -> set[TurnId]:
        return {turn.id for place in self.living for turn in self.chains[place]}

    async def check(self, backend: Backend, what: object) -> None:
        rows = await backend.rows(f"SELECT id FROM turns WHERE tenant = '{self.tenant}'")
        assert {id for (id,) in rows} == self.needed(), what
        for place in self.living:
            chain = self.chains[place]
            head = (await builders.again(self.store, self.sessions[place])).head
            assert (head and head.turn) == (chain[-1].id if chain else None)
            if head is not None:
                found = await self.store.read_turns(self.tenant, head.turn)
                assert list(found) == chain, what
                assert broken_link(found) is None


@pytest.mark.parametrize("shape", SHAPES)
async def test_I6_a_delete_erases_exactly_what_no_living_session_reaches(
    backend: Backend, shape: str
) -> None:
    plans = SHAPES[shape]
    for order in itertools.permutations(range(len(plans))):
        family = Family(backend.store, TenantId("-".join(map(str, order))))
        await family.build(plans)
        for done, place in enumerate(order, 1):
            assert await backend.store.delete_session(family.tenant, family.sessions[place].id)
            family.living.remove(place)
            await family.check(backend, f"{shape}: deleted {order[:done]}")


async def test_a_fork_outlives_its_source_and_continues(backend: Backend) -> None:
    store = backend.store
    family = Family(store, builders.TENANT)
    await family.build([(None, 0, 3), (0, 2, 0)])
    await store.delete_session(builders.TENANT, family.sessions[0].id)
    family.living.remove(0)
    family.chains[1] += await builders.talk(store, family.sessions[1], 2)
    await family.check(backend, "after going on")
    assert [turn.seq for turn in family.chains[1]] == [1, 2, 3, 4]


async def test_forks_are_counted_while_they_live(store: Store) -> None:
    source = await builders.session(store)
    (turn,) = await builders.talk(store, source, 1)
    first, second = await builders.fork(store, source, turn), await builders.fork(store, source, None)
    nested = await builders.fork(store, first, turn)
    counted = [await store.count_forks(source.tenant, each.id) for each in (source, first, second, nested)]
    assert counted == [2, 1, 0, 0]
    await store.delete_session(source.tenant, second.id)
    assert await store.count_forks(source.tenant, source.id) == 1
    await store.delete_session(source.tenant, source.id)
    assert await store.count_forks(source.tenant, first.id) == 1

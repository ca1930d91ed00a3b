"""Decoded histories: kept while there is room, and never needed."""

from __future__ import annotations

import pytest

from lastgood.flows.history_cache import HistoryCache
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.sessions import Head
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster

pytestmark = pytest.mark.anyio


async def heads(cluster: Cluster, node: Lastgood, *texts: str) -> list[Head]:
    """One session for each text, with one turn that says it."""
    return [
        (await cluster.good(node, await cluster.session(node, title="named"), text)).head for text in texts
    ]


async def reads(cluster: Cluster, node: Lastgood, histories: HistoryCache, *wanted: Head) -> int:
    """How often the store had to be read for these."""
    before = cluster.faults(node).hits["store.read_turns"]
    for head in wanted:
        assert (await histories.at(DEFAULT_TENANT, head)).head == head
    return cluster.faults(node).hits["store.read_turns"] - before


async def test_the_most_that_are_kept_are_those_used_last(cluster: Cluster, node: Lastgood) -> None:
    one, two, three = await heads(cluster, node, "one", "two", "three")
    histories = HistoryCache(node.deps.store, most=2)
    assert await reads(cluster, node, histories, one, two, one, three, one) == 3
    assert await reads(cluster, node, histories, two) == 1


async def test_large_ones_are_fewer(cluster: Cluster, node: Lastgood) -> None:
    """What is kept is bounded in bytes, too; one that is larger than that is read each time."""
    one, two, large = await heads(cluster, node, "one", "two", "l" * 400)
    histories = HistoryCache(node.deps.store, most=10, most_bytes=700)
    assert await reads(cluster, node, histories, one, two, one, two) == 2
    assert await reads(cluster, node, histories, large, large) == 2
    assert await reads(cluster, node, histories, one, two) == 2


async def test_a_history_grows_with_its_session_and_counts_once(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node, title="named")
    turns = [await cluster.good(node, session, text) for text in ("one", "two", "three")]
    histories = HistoryCache(node.deps.store)
    history = await histories.at(DEFAULT_TENANT, turns[0].head)
    for turn in turns[1:]:
        histories.grow(history, turn)
        history = await histories.at(DEFAULT_TENANT, turn.head)
    assert history.size == sum(len(turn.body) for turn in turns) == histories._bytes
    assert len(histories._kept) == 1


async def test_a_conversation_that_is_resent_is_compared_with_what_is_kept(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node, title="named")
    first = await cluster.good(node, session, "one")
    histories = node.deps.histories
    hits = cluster.faults(node).hits
    before = hits["store.read_turns"]
    assert await histories.turns(DEFAULT_TENANT, first.head) == (first,)
    assert hits["store.read_turns"] == before + 1
    second = await cluster.good(node, session, "two")
    assert await histories.turns(DEFAULT_TENANT, second.head) == (first, second)
    assert await histories.turns(DEFAULT_TENANT, second.head) == (first, second)
    assert hits["store.read_turns"] == before + 1
    assert histories._chain_bytes == len(first.body) + len(second.body)


async def test_kept_conversations_are_bounded(cluster: Cluster, node: Lastgood) -> None:
    one, two, large = await heads(cluster, node, "one", "two", "l" * 400)
    histories = HistoryCache(node.deps.store, most=10, most_bytes=700)
    hits = cluster.faults(node).hits
    before = hits["store.read_turns"]
    for head in (one, two, one, large, large):
        await histories.turns(DEFAULT_TENANT, head)
    assert hits["store.read_turns"] == before + 4
    assert histories._chain_bytes <= 700

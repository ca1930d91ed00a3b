"""A database that fails in the middle of a claim or a report: nothing twice, nothing lost, nothing stuck."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from lastgood.errors import StoreUnavailable
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.attempts import AttemptStatus
from tests.faults.faults import Mode
from tests.flows.cluster import Cluster, eventually
from tests.flows.work.site import AGENT, Machine, Site

pytestmark = pytest.mark.anyio

MODES = (Mode.RAISE, Mode.LOST, Mode.SILENT)
#: What a claim that nobody got is waited for.
SHORT = WorkLimits(lease_seconds=0.05, prepare_seconds=0.05, poll_seconds=0.02)


async def site_of(cluster: Cluster) -> Site:
    node = await cluster.node(agents=[cluster.agent(AGENT)], alive=False, work_limits=SHORT)
    return Site(cluster, node)


async def claimed_at_last(machine: Machine) -> Any:
    """As a worker does: it asks again."""

    async def claim() -> Any:
        try:
            return await machine.claims()
        except StoreUnavailable:
            return ()

    return (await eventually(claim))[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["claim_tasks", "get_runtime", "list_pointers", "confirm_claim"])
async def test_a_claim_that_fails_is_made_again(cluster: Cluster, point: str, mode: Mode) -> None:
    site = await site_of(cluster)
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    cluster.strike(site.node, f"store.{point}", mode)
    sent = await claimed_at_last(a)
    await a.complete(sent, "fixed", native_session="n")
    assert await site.said(task.session) == ["fix it", "fixed"]
    statuses = [one.status for one in await site.attempts(task.session)]
    assert statuses.count(AttemptStatus.COMMITTED) == 1
    assert (await site.session(task.session)).attempt is None
    await site.check_ends(task.session)


@pytest.mark.parametrize("point", ["get_runtime", "list_pointers", "confirm_claim"])
async def test_I24_a_crash_before_the_confirmation_leaves_no_attempt_without_its_end(
    cluster: Cluster, point: str
) -> None:
    site = await site_of(cluster)
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    await claimed_at_last(a)

    async def taken_over() -> bool:
        cluster.strike(site.node, f"store.{point}", Mode.RAISE)
        with contextlib.suppress(StoreUnavailable):
            assert await a.claims() == ()
        return len(await site.attempts(task.session)) == 2

    await eventually(taken_over)
    await site.check_ends(task.session)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["find_claim", "read_request", "read_steps", "commit_if_head"])
async def test_I16_a_report_whose_answer_is_lost_counts_once(
    cluster: Cluster, point: str, mode: Mode
) -> None:
    site = await site_of(cluster)
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await claimed_at_last(a)
    cluster.strike(site.node, f"store.{point}", mode)
    report = await a.complete(sent, "fixed", native_session="n")
    assert report["status"] == "completed"
    assert await a.complete(sent, "fixed", native_session="n") == report
    assert await site.said(task.session) == ["fix it", "fixed"]
    assert len(await site.pointers(task.session)) == 1
    await site.check_ends(task.session)


@pytest.mark.parametrize("mode", MODES)
async def test_a_failure_whose_answer_is_lost_counts_once(cluster: Cluster, mode: Mode) -> None:
    site = await site_of(cluster)
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await claimed_at_last(a)
    cluster.strike(site.node, "store.finish_if_held", mode)
    report = await a.fail(sent, "model_error")
    assert report["status"] == "deferred"
    assert (await site.task(task.id)).task.failures == 1
    await site.check_ends(task.session)

"""A node on both stores, with nobody around it yet."""

import pytest

from lastgood.flows.work.work_limits import WorkLimits
from tests.flows.cluster import Cluster
from tests.flows.work.site import AGENT, LIMITS, NO_LEASE, Site


async def _site(cluster: Cluster, limits: WorkLimits) -> Site:
    node = await cluster.node(agents=[cluster.agent(AGENT)], alive=False, work_limits=limits)
    return Site(cluster, node)


@pytest.fixture
async def site(cluster: Cluster) -> Site:
    return await _site(cluster, LIMITS)


@pytest.fixture
async def hasty(cluster: Cluster) -> Site:
    """A claim's lease ends at once, so the next claim takes the task."""
    return await _site(cluster, NO_LEASE)

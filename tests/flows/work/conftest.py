"""A node on both stores, with nobody around it yet."""

import pytest

from lastgood.flows.work.limits import WorkLimits
from tests.flows.house import House
from tests.flows.work.site import AGENT, LIMITS, NO_LEASE, Site


async def _site(house: House, limits: WorkLimits) -> Site:
    node = await house.node(agents=[house.agent(AGENT)], alive=False, work_limits=limits)
    return Site(house, node)


@pytest.fixture
async def site(house: House) -> Site:
    return await _site(house, LIMITS)


@pytest.fixture
async def hasty(house: House) -> Site:
    """A claim's lease ends at once, so the next claim takes the task."""
    return await _site(house, NO_LEASE)

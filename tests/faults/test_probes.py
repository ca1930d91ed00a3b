"""Every probe tells its story and the checker finds nothing."""

from __future__ import annotations

import pytest

from tests.faults.probes import Probe
from tests.faults.registry import ALL_PROBES


@pytest.mark.parametrize("probe", ALL_PROBES, ids=lambda probe: probe.name)
def test_probe(probe: Probe) -> None:
    assert probe.run() == []

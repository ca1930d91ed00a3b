"""Every probe tells its story and the checker finds nothing."""

from __future__ import annotations

import pytest

from tests.faults import outage_probes, queue_probes, rule_probes  # noqa: F401 - their probes are in the list, too
from tests.faults.probes import PROBES, Probe


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_probe(probe: Probe) -> None:
    assert probe.run() == []

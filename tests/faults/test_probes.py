"""Every probe tells its story and the checker finds nothing."""

from __future__ import annotations

import pytest

from tests.faults import (  # noqa: F401 - their probes are in the list, too
    damage_probes,
    edit_probes,
    outage_probes,
    queue_probes,
    retry_probes,
    rule_probes,
)
from tests.faults.probes import PROBES, Probe


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_probe(probe: Probe) -> None:
    assert probe.run() == []

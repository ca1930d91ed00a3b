"""A checker that cannot fail proves nothing: each planted defect must be caught."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.approval_defects import OF_APPROVALS
from tests.faults.computed_state_defects import OF_COMPUTED_STATE
from tests.faults.defects import Defect, caught_by_simulation
from tests.faults.hook_defects import OF_HOOKS
from tests.faults.objections import BrokenDefect, objection_of
from tests.faults.registry import ALL_DEFECTS, caught_by_probe
from tests.faults.webhook_defects import OF_WEBHOOKS
from tests.faults.work_defects import OF_WORK
from tests.faults.worker_defects import OF_WORKERS

#: Defects that other nets of the product hide from random runs; their probes look behind these.
HIDDEN_FROM_SIMULATION = {
    "prompts are not repaired",
    "a commit without its compare-and-swap",
    "a commit without its fence",
    "journal and events without a fence",
    "an orphan commits",
    "a fork starts at the head instead of its turn",
    "a plain request is continued although its requester is gone",
    "a promised turn is never tried again",
    "a lookup without its tenant",
    "another body under the same key is let through",
    "our title replaces a person's",
    "a run goes on after its lease has ended",
    # One loop has no thread, and its stalls are the faults' own.
    "a lease is renewed on the loop that it vouches for",
    "a wedged process keeps its sessions",
    "a committed turn is told as failed",
    "a commit that a stop cuts off is told as lost",
    "an outage counts as a try",
    "a store error is a failure of the turn",
    "a batch that is sent again is stored twice",
    "a begin whose answer was lost is told as refused",
    "a begin that a stop cuts off is told as refused",
    # Another turn must be committed between a death and recovery, and the one must name the head before it.
    "recovery forgets which head a turn was asked for",
    # The simulation damages nothing.
    "a history is not verified when it is read",
    "a check looks at one tenant",
    # The simulation streams no megabytes, and checks no database while it runs.
    "a read keeps its cursor open",
    "a check reads on the connection that others read on",
    # The simulation sets no rules.
    "a session derived from another does not inherit its rules",
    "a weaker scope removes a stronger rule",
    "a change of rules does not look whether they have changed since they were read",
    # The simulation neither fails after a tool and retries, nor refuses and retries.
    "a retry runs finished tools again",
    "a retry without a key is matched with the head turn only",
    "a first try that was refused is forgotten",
    # Its clients do not leave while a turn commits.
    "that a client has left is written beside the commit",
    "nobody is told that a tool which is not repeatable has run",
    # The simulation says nothing for later.
    "a commit does not consume the steers that were journaled",
    "a steer is lost with its attempt",
    "a steer that came too late is dropped",
    "a follow-up that fails is tried for ever",
    "a follow-up is forgotten when its process dies",
    "a steer in adopted steps stays in the queue",
    *OF_WORK,
    *OF_WORKERS,
    *OF_APPROVALS,
    *OF_HOOKS,
    *OF_COMPUTED_STATE,
    *OF_WEBHOOKS,
}

#: By the module that registers them. A whole area without defects would not show in their sum.
FEWEST = {
    "approval_defects": 13,
    "defects": 50,
    "edit_defects": 5,
    "hook_defects": 5,
    "outage_defects": 9,
    "reader_probes": 2,
    "webhook_defects": 4,
    "work_defects": 31,
}


@pytest.mark.parametrize("defect", ALL_DEFECTS, ids=lambda defect: defect.name)
def test_planted_defect_is_caught_by_a_probe(defect: Defect) -> None:
    caught = caught_by_probe(defect)
    if caught is None:
        caught = caught_by_simulation(defect, seeds=10)
    assert caught is not None, f"nothing noticed: {defect.name}"
    print(f"{defect.name}\n    caught by {caught}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect",
    [defect for defect in ALL_DEFECTS if defect.name not in HIDDEN_FROM_SIMULATION],
    ids=lambda defect: defect.name,
)
def test_planted_defect_is_caught_by_the_checker_alone(defect: Defect) -> None:
    assert caught_by_simulation(defect, seeds=150) is not None, f"the checker is blind to: {defect.name}"


def test_there_are_enough_defects_and_no_name_is_stale() -> None:
    names = {defect.name for defect in ALL_DEFECTS}
    assert len(names) == len(ALL_DEFECTS)
    assert names >= HIDDEN_FROM_SIMULATION
    areas = Counter(defect.plant.__module__.rpartition(".")[2] for defect in ALL_DEFECTS)
    assert {area: areas[area] for area in FEWEST if areas[area] < FEWEST[area]} == {}


def test_an_error_of_the_defect_itself_is_no_objection() -> None:
    """Such a defect fails whatever it touches: it would be "caught" although it plants nothing."""
    with pytest.raises(AttributeError) as raised:
        exec(compile("None.tenant", str(Path(__file__).with_name("some_defects.py")), "exec"))
    with pytest.raises(BrokenDefect):
        objection_of(raised.value)
    with pytest.raises(BrokenDefect):
        objection_of(TypeError("_.<locals>.<lambda>() takes 1 positional argument but 2 were given"))
    assert "boom" in objection_of(AttributeError("boom").with_traceback(None))

"""All flows of work on runtimes over one store."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.flows.dependencies import Dependencies
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.sessions import Sessions
from lastgood.flows.work.claims import Claims
from lastgood.flows.work.enqueue import Enqueuer
from lastgood.flows.work.explain import Explainer
from lastgood.flows.work.final_reports import FinalReports
from lastgood.flows.work.questions import Questions
from lastgood.flows.work.reports import Reports
from lastgood.flows.work.runtimes import Runtimes
from lastgood.flows.work.task_sweep import TaskSweep
from lastgood.flows.work.tasks import Tasks
from lastgood.flows.work.visibility import WorkAccess
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import Safety


@dataclass(frozen=True, slots=True)
class WorkFlows:
    access: WorkAccess
    runtimes: Runtimes
    tasks: Tasks
    claims: Claims
    reports: Reports
    final_reports: FinalReports
    questions: Questions
    explainer: Explainer
    sweep: TaskSweep


def work_flows(
    deps: Dependencies,
    live: RunningAttempts,
    sessions: Sessions,
    enqueuer: Enqueuer,
    limits: WorkLimits,
    safety: Safety,
) -> WorkFlows:
    """`safety`: the server's own mode, which no run exceeds."""
    access = WorkAccess(deps.store)
    reports = Reports(deps, limits)
    return WorkFlows(
        access=access,
        runtimes=Runtimes(deps, access, limits),
        tasks=Tasks(deps, access, enqueuer),
        claims=Claims(deps, live, limits, safety),
        reports=reports,
        final_reports=FinalReports(deps, reports, limits),
        questions=Questions(deps, access, reports, limits, safety),
        explainer=Explainer(deps, access, enqueuer),
        sweep=TaskSweep(deps, sessions, limits),
    )

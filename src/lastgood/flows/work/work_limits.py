"""The times and sizes of work on runtimes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkLimits:
    lease_seconds: float = 90.0  # of a claim; afterwards the task can be claimed again, and nothing else
    prepare_seconds: float = 15.0  # from the claim until its resume decision is stored
    heartbeat_seconds: float = 15.0
    long_poll_seconds: float = 25.0
    poll_seconds: float = 1.0  # how often a waiting claim polls; signals are only hints
    ageing_seconds: float = 600.0  # a task that has waited this long counts one priority more
    max_wait_seconds: float = 24 * 3600.0
    deadline_seconds: float = 4 * 3600.0
    question_seconds: float = 3600.0
    sweep_seconds: float = 5.0
    ephemeral_seconds: float = 60.0  # after its end, a stateless request's session is deleted by the sweep
    tasks_per_session: int = 20  # unfinished ones
    snapshot_bytes: int = 16 * 1024 * 1024
    message_characters: int = 64 * 1024
    output_characters: int = 1_000_000
    error_characters: int = 4_000

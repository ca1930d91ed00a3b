"""Decides which background jobs a conversation has started.

Jobs live in one process of ours and end with it. The conversation is what knows of earlier ones, so that the
model can be told that they are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from lastgood.core.call_arguments import text_in
from lastgood.model.messages import Message, Role

RUN_JOB = "run_background_job"
STARTED = "Background job started with ID: "


def job_id(key: str, line: str, folder: str) -> str:
    """`key`: the stable key of the call. Made again after its outcome was lost, it is the same job. A later
    attempt at the turn may ask for another command at the same place."""
    digest = hashlib.sha256()
    for part in (key, line, folder):
        digest.update(len(part.encode()).to_bytes(8))
        digest.update(part.encode())
    return f"job_{digest.hexdigest()[:12]}"


def started_jobs(messages: Sequence[Message]) -> dict[str, str]:
    """The command of each job, by its id, the first one first."""
    commands: dict[str, str] = {}
    jobs: dict[str, str] = {}
    for message in messages:
        commands.update(
            (call.id, text_in(call, "cmd") or "") for call in message.tool_calls if call.name == RUN_JOB
        )
        call_id = message.tool_call_id or ""
        is_result = message.role is Role.TOOL and call_id in commands
        if is_result and message.content.startswith(STARTED):
            jobs[message.content[len(STARTED) :].partition("\n")[0].strip()] = commands[call_id]
    return jobs

"""The columns of each noun, in the order in which the code that maps a row takes them."""

from __future__ import annotations


def _columns(table: str, names: str) -> str:
    return ", ".join(f"{table}.{name}" for name in names.split())


#: Of the first unfinished task of a session. Sessions without a runtime have no task, and look for none.
_TASK_STATUS = (
    "CASE WHEN sessions.runtime_id IS NOT NULL THEN (SELECT tasks.status FROM tasks"
    " WHERE tasks.tenant = sessions.tenant AND tasks.session_id = sessions.id AND tasks.ended_at IS NULL"
    " ORDER BY tasks.n LIMIT 1) END"
)
#: Lists filter by it, so it is derived here and nowhere else. It has no comma: columns are counted by those.
STATUS = (
    "CASE WHEN sessions.attempt_id IS NULL"
    f" THEN CASE WHEN {_TASK_STATUS} IS NULL THEN 'idle' ELSE 'queued' END"
    f" WHEN sessions.lease_until IS NULL OR {_TASK_STATUS} = 'waiting' THEN 'waiting' ELSE 'running' END"
)

#: What every new session is given: created, forked or imported.
_NEW_SESSION = (
    "id tenant agent_key title title_by model working_dir rules metadata created_by stored_bytes owner"
    " scope_kind scope_id runtime_id runtime_pinned"
)

COLUMNS = {
    "status": STATUS,
    "new_session": ", ".join(_NEW_SESSION.split()),
    "new_session_values": ", ".join(f":{name}" for name in _NEW_SESSION.split()),
    "session": _columns(
        "sessions",
        "id tenant n agent_key title title_by model working_dir rules starred metadata"
        " conversation forked_session forked_turn head seq head_hash attempt_id fence event_seq"
        " events_dropped input_tokens output_tokens cost created_at updated_at created_by stored_bytes owner"
        " scope_kind scope_id runtime_id runtime_pinned",
    )
    + f", {STATUS} AS status",
    "turn": _columns(
        "turns",
        "id session_id seq parent attempt_id kind hash agent_key agent_digest model input_tokens"
        " output_tokens cost created_at decision end_user inputs body",
    ),
    "attempt": _columns(
        "attempts",
        "id tenant session_id turn_id number status base head fence agent_key agent_digest model decision"
        " orphaned"
        " cancel_asked question deadline error_code error_message continues started_at ended_at task_id"
        " request_id cli_version ran_tools",
    ),
    "request": _columns(
        "requests",
        "turn_id tenant session_id kind key fingerprint caller end_user model agent_key after replaces"
        " expects options on_leave durable input checksum",
    ),
    "step": _columns("steps", "attempt_id n kind body input_tokens output_tokens cost checksum"),
    "queued": _columns(
        "queued",
        "n tenant session_id turn_id kind input model agent_key key fingerprint caller end_user attempt_id"
        " journaled failures parked created_at settled_at checksum",
    ),
    "branch": _columns("branches", "n head seq after replaced_by created_at"),
    "token": _columns("tokens", "id tenant name scopes created_at expires_at revoked_at username worker_id"),
    "runtime": _columns(
        "runtimes",
        "id tenant worker_id provider profile account name owner shared_with format cli_version steerable"
        " enforces created_at removed_at",
    )
    + ", clock() - runtimes.last_seen_at AS seen_seconds_ago"
    + ", (SELECT workers.status FROM workers"
    " WHERE workers.tenant = runtimes.tenant AND workers.id = runtimes.worker_id) AS worker_status",
    "binding": _columns(
        "agent_runtimes",
        "tenant agent_key runtime_id offline max_wait_seconds deadline_seconds max_running published"
        " bound_by on_agent_change on_dirty",
    ),
    "task": _columns(
        "tasks",
        "n id tenant session_id turn_id agent_key scope_kind scope_id runtime_id status priority directive"
        " created_by end_user why held ephemeral due_at expires_at deadline_seconds worker_id attempt_id"
        " claims failures lease_until deadline_at cancel_seen decision late_output error_code error_message"
        " created_at ended_at lost_claims",
    )
    # By the database's clock, like all durations of tasks.
    + ", clock() - tasks.tried_since AS tried_seconds"
    + ", (SELECT attempts.cli_version FROM attempts WHERE attempts.id = tasks.attempt_id) AS cli_version",
    "question": _columns(
        "questions",
        "id tenant task_id attempt_id session_id body status answer answered_by deadline_at created_at",
    ),
    "pointer": _columns(
        "pointers",
        "n attempt_id task_id native_session runtime_id worker_id provider account format work_dir base_turn"
        " through_turn outcome agent_digest dirty retired",
    ),
    "delivery": _columns(
        "webhook_outbox",
        "n id tenant webhook_id kind detail created_at due_at tries last_error delivered_at session_id"
        " turn_id attempt_id task_id",
    ),
    "snapshot": _columns("snapshots", "attempt_id tenant session_id turn_id kind summary body created_at"),
    "snapshot_summary": _columns("snapshots", "attempt_id session_id turn_id kind summary created_at")
    + ", length(snapshots.body)",
}

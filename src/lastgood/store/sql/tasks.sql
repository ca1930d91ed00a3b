-- The queue of tasks, on both databases. The transactions are in store/tasks.py.

-- name: create_for_scope
{insert_session}
ON CONFLICT (tenant, scope_kind, scope_id, agent_key) WHERE scope_kind IS NOT NULL DO NOTHING
RETURNING {session};

-- name: session_of_scope
SELECT {session} FROM sessions
WHERE tenant = :tenant AND scope_kind = :scope_kind AND scope_id = :scope_id AND agent_key = :agent_key;

-- name: insert_task_request
-- No row: the key was used before.
INSERT INTO requests (turn_id, tenant, session_id, kind, key, fingerprint, caller, end_user, model, agent_key,
                      after, replaces, expects, options, on_leave, durable, created_at, input, checksum)
VALUES (:turn, :tenant, :session, :kind, :key, :fingerprint, :caller, :user, :override, :asked_agent_key,
        :after, :replaces, :expects, :options, :on_leave, :durable, clock(), :input, :checksum)
ON CONFLICT DO NOTHING
RETURNING turn_id;

-- name: may_try_again
-- A turn that is not committed, and that no other task is trying.
SELECT 1 FROM requests
WHERE tenant = :tenant AND session_id = :session AND turn_id = :turn AND input IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.turn_id = requests.turn_id AND tasks.ended_at IS NULL);

-- name: insert_task
INSERT INTO tasks (id, tenant, session_id, turn_id, agent_key, scope_kind, scope_id, runtime_id, status, priority,
                   directive, created_by, end_user, ephemeral, max_wait_seconds, expires_at, deadline_seconds,
                   created_at)
VALUES (:id, :tenant, :session, :turn, :agent_key, :scope_kind, :scope_id, :runtime, 'queued', :priority,
        :directive, :created_by, :user, :ephemeral, :max_wait, clock() + CAST(:max_wait AS double precision),
        :deadline, clock())
RETURNING {task};

-- name: count_unfinished
SELECT count(*) FROM tasks WHERE tenant = :tenant AND session_id = :session AND ended_at IS NULL;

-- name: unfinished_tasks
SELECT {task} FROM tasks
WHERE tenant = :tenant AND session_id = :session AND ended_at IS NULL ORDER BY n LIMIT :limit;

-- name: newest_task_by_body
-- The turn of the newest task that an SDK's retry can mean; it may not have been claimed yet.
SELECT requests.turn_id FROM requests
WHERE requests.tenant = :tenant AND requests.session_id = :session AND requests.fingerprint = :fingerprint
  AND requests.caller = :caller AND requests.on_leave = 'orphan' AND NOT requests.closed
  AND EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = requests.tenant AND tasks.turn_id = requests.turn_id)
ORDER BY (SELECT max(tasks.n) FROM tasks
          WHERE tasks.tenant = requests.tenant AND tasks.turn_id = requests.turn_id) DESC
LIMIT 1;

-- name: age_of_task
SELECT coalesce(clock() - ended_at, 0) FROM tasks
WHERE tenant = :tenant AND turn_id = :turn ORDER BY n DESC LIMIT 1;

-- name: age_of_attempt
SELECT coalesce(clock() - ended_at, 0) FROM attempts
WHERE tenant = :tenant AND turn_id = :turn ORDER BY number DESC LIMIT 1;

-- name: get_task
SELECT {task} FROM tasks WHERE tenant = :tenant AND id = :task;

-- name: task_of_turn
SELECT {task} FROM tasks WHERE tenant = :tenant AND turn_id = :turn ORDER BY n DESC LIMIT 1;

-- name: is_listed
-- A piece of lists.
tasks.tenant = :tenant AND tasks.n < :before
  AND (CAST(:agent_key AS text) IS NULL OR tasks.agent_key = :agent_key)
  AND (CAST(:runtimes AS text) IS NULL OR tasks.runtime_id IN ({listed_runtimes}))
  AND (CAST(:statuses AS text) IS NULL OR tasks.status IN ({listed_statuses}));

-- name: list_tasks
SELECT {task} FROM tasks WHERE {is_listed} ORDER BY tasks.n DESC LIMIT :limit;

-- name: list_tasks_of_session
SELECT {task} FROM tasks WHERE {is_listed} AND tasks.session_id = :session ORDER BY tasks.n DESC LIMIT :limit;

-- name: list_unfinished_tasks
SELECT {task} FROM tasks WHERE {is_listed} AND tasks.ended_at IS NULL ORDER BY tasks.n DESC LIMIT :limit;

-- name: session_of_task
SELECT session_id FROM tasks WHERE tenant = :tenant AND id = :task;

-- name: touch_session
UPDATE sessions SET event_seq = event_seq + :events WHERE tenant = :tenant AND id = :session RETURNING event_seq;

-- name: end_queued_task
UPDATE tasks
SET status = :status, why = :why, held = false, due_at = NULL, error_code = :code, error_message = :message,
    ended_at = clock()
WHERE tenant = :tenant AND id = :task AND status IN ('queued', 'deferred')
RETURNING id;

-- name: hold_others
UPDATE tasks SET held = true, why = :why
WHERE tenant = :tenant AND session_id = :session AND id <> :task AND ended_at IS NULL
  AND status IN ('queued', 'deferred') AND NOT held;

-- name: release_tasks
UPDATE tasks SET held = false, why = '', expires_at = clock() + max_wait_seconds, tried_since = NULL
WHERE tenant = :tenant AND session_id = :session AND ended_at IS NULL AND held
RETURNING id;

-- name: release_task
UPDATE tasks SET held = false, why = '', expires_at = clock() + max_wait_seconds, tried_since = NULL
WHERE tenant = :tenant AND id = :task AND ended_at IS NULL AND held
RETURNING id;

-- name: keep_late_output
-- Of a claim that is not current, and has not reported the end of its task before.
UPDATE tasks SET late_output = :output
WHERE tenant = :tenant AND id = :task AND late_output IS NULL
  AND EXISTS (SELECT 1 FROM claims WHERE claims.token = :token AND claims.task_id = tasks.id AND claims.report IS NULL)
  AND NOT (claim_token = :token AND status IN ('claimed', 'running', 'waiting'))
RETURNING id;

-- name: acknowledge_cancel
UPDATE tasks SET cancel_seen = true
WHERE tenant = :tenant AND id = :task AND claim_token = :token AND ended_at IS NOT NULL
RETURNING id;

-- name: expired_tasks
SELECT {task} FROM tasks
WHERE status IN ('queued', 'deferred') AND NOT held AND expires_at < (SELECT clock())
ORDER BY expires_at LIMIT :limit;

-- name: tasks_past_deadline
SELECT {task} FROM tasks
WHERE status IN ('claimed', 'running', 'waiting') AND deadline_at < (SELECT clock())
ORDER BY deadline_at LIMIT :limit;

-- name: check_tasks
-- The newest claim of a task stays with it, and so do its attempts, its runtime and, until it ends, its input.
SELECT sessions.tenant, sessions.attempt_id,
       EXISTS (SELECT 1 FROM runtimes WHERE runtimes.id = tasks.runtime_id AND runtimes.tenant = tasks.tenant),
       EXISTS (SELECT 1 FROM requests
               WHERE requests.turn_id = tasks.turn_id AND requests.tenant = tasks.tenant
                 AND requests.session_id = tasks.session_id),
       EXISTS (SELECT 1 FROM attempts
               WHERE attempts.id = tasks.attempt_id AND attempts.tenant = tasks.tenant
                 AND attempts.session_id = tasks.session_id AND attempts.turn_id = tasks.turn_id
                 AND attempts.task_id = tasks.id),
       EXISTS (SELECT 1 FROM claims
               WHERE claims.token = tasks.claim_token AND claims.tenant = tasks.tenant AND claims.task_id = tasks.id
                 AND claims.attempt_id = tasks.attempt_id),
       tasks.claim_token,
       EXISTS (SELECT 1 FROM tasks AS rival
               WHERE rival.session_id = tasks.session_id AND rival.status IN ('claimed', 'running', 'waiting')
                 AND rival.id <> tasks.id),
       {task}
FROM tasks LEFT JOIN sessions ON sessions.id = tasks.session_id
ORDER BY tasks.n;

-- name: check_claims
SELECT coalesce(tasks.session_id, attempts.session_id), coalesce(tasks.tenant = claims.tenant, false),
       coalesce(attempts.tenant = claims.tenant AND attempts.task_id = claims.task_id, false),
       claims.tenant, claims.task_id, claims.attempt_id, claims.report
FROM claims
LEFT JOIN tasks ON tasks.id = claims.task_id
LEFT JOIN attempts ON attempts.id = claims.attempt_id
ORDER BY claims.token;

-- name: check_pointers
SELECT sessions.tenant,
       EXISTS (SELECT 1 FROM tasks
               WHERE tasks.id = pointers.task_id AND tasks.tenant = pointers.tenant
                 AND tasks.session_id = pointers.session_id),
       EXISTS (SELECT 1 FROM attempts
               WHERE attempts.id = pointers.attempt_id AND attempts.tenant = pointers.tenant
                 AND attempts.task_id = pointers.task_id),
       pointers.base_turn IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM turns WHERE turns.id = pointers.base_turn AND turns.tenant = pointers.tenant)
       OR pointers.through_turn IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM turns WHERE turns.id = pointers.through_turn AND turns.tenant = pointers.tenant),
       pointers.tenant, pointers.session_id, {pointer}
FROM pointers LEFT JOIN sessions ON sessions.id = pointers.session_id
ORDER BY pointers.n;

-- name: check_snapshots
SELECT sessions.tenant,
       EXISTS (SELECT 1 FROM attempts
               WHERE attempts.id = snapshots.attempt_id AND attempts.tenant = snapshots.tenant
                 AND attempts.session_id = snapshots.session_id AND attempts.turn_id = snapshots.turn_id),
       snapshots.tenant, snapshots.session_id, snapshots.attempt_id, snapshots.summary
FROM snapshots LEFT JOIN sessions ON sessions.id = snapshots.session_id
ORDER BY snapshots.attempt_id;

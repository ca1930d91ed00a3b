-- Statements of work on runtimes on PostgreSQL.

-- name: lock_worker
SELECT owner, instance FROM workers WHERE tenant = :tenant AND id = :worker FOR NO KEY UPDATE;

-- name: lock_sessions_of_agent
-- In the order of their ids. In a statement of its own: the next one sees what was done before the locks were free.
SELECT 1 FROM sessions
WHERE tenant = :tenant AND id IN (
    SELECT session_id FROM tasks
    WHERE tenant = :tenant AND agent_key = :agent_key AND ended_at IS NULL AND status IN ('queued', 'deferred'))
ORDER BY id FOR NO KEY UPDATE;

-- name: insert_events
INSERT INTO events (session_id, seq, kind, attempt_id, created_at, body)
SELECT :session, CAST(:last AS bigint) - cardinality(:event_kinds::text[]) + item.n, item.kind, item.attempt_id,
       clock(), item.body
FROM unnest(:event_kinds::text[], :event_attempts::text[], :event_bodies::bytea[])
     WITH ORDINALITY AS item (kind, attempt_id, body, n);

-- name: lock_session_for_claim
SELECT 1 FROM sessions
WHERE tenant = :tenant AND id = :session AND (attempt_id IS NULL OR attempt_id = :expired::text)
FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_task
SELECT 1 FROM tasks WHERE tenant = :tenant AND id = :task FOR NO KEY UPDATE;

-- name: lock_limited_agents
-- In the order of their keys. Only those with something to do on these runtimes: the others need not wait.
SELECT 1 FROM agent_runtimes
WHERE tenant = :tenant AND max_running IS NOT NULL
  AND EXISTS (SELECT 1 FROM tasks
              WHERE tasks.tenant = agent_runtimes.tenant AND tasks.agent_key = agent_runtimes.agent_key
                AND tasks.ended_at IS NULL AND tasks.runtime_id IN ({listed_runtimes}))
ORDER BY agent_key FOR NO KEY UPDATE;

-- name: pick_tasks
-- A task that was claimed after this statement began is looked at again as it is now, and not taken.
{best_tasks}
FOR NO KEY UPDATE OF tasks SKIP LOCKED;

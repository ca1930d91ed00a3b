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

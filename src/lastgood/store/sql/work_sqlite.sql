-- Statements of work on runtimes on SQLite. There is one writer, so the locks of PostgreSQL are plain reads.

-- name: lock_worker
SELECT owner, instance FROM workers WHERE tenant = :tenant AND id = :worker;

-- name: lock_sessions_of_agent
SELECT 1 WHERE false;

-- name: lock_session
SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :session;

-- name: lock_session_for_claim
SELECT 1 FROM sessions
WHERE tenant = :tenant AND id = :session AND (attempt_id IS NULL OR attempt_id = :expired);

-- name: lock_task
SELECT 1 WHERE false;

-- name: lock_limited_agents
SELECT 1 WHERE false;

-- name: pick_tasks
{best_tasks};

-- Statements of work on runtimes on SQLite. There is one writer, so the locks of PostgreSQL are plain reads.

-- name: lock_worker
SELECT owner, instance FROM workers WHERE tenant = :tenant AND id = :worker;

-- name: lock_sessions_of_agent
SELECT 1 WHERE false;

-- name: lock_session
SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :session;

-- What people look at around a session, in bounded pieces.

-- name: attempts_between
SELECT {attempt} FROM attempts
WHERE tenant = :tenant AND session_id = :session AND fence > :after AND fence < :before
ORDER BY fence DESC LIMIT :limit;

-- name: attempts_of_turn
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND turn_id = :turn ORDER BY number LIMIT :limit;

-- name: queued_at
SELECT min(waited.created_at) FROM (
    SELECT queued.created_at FROM queued WHERE queued.tenant = :tenant AND queued.turn_id = :turn
    UNION ALL
    SELECT tasks.created_at FROM tasks WHERE tasks.tenant = :tenant AND tasks.turn_id = :turn
) AS waited;

-- name: forks_of
SELECT {session} FROM sessions WHERE tenant = :tenant AND forked_session = :session ORDER BY n DESC LIMIT :limit;

-- name: sessions_of_request
SELECT DISTINCT session_id FROM attempts WHERE tenant = :tenant AND request_id = :request LIMIT :limit;

-- name: sessions_of_user
-- The index has all of it; no turn is read.
SELECT DISTINCT session_id FROM turns
WHERE tenant = :tenant AND end_user = :user AND end_user <> '' LIMIT :limit;

-- name: newest_audit
SELECT n, at, tenant, kind, actor, username, subject, detail, machine FROM audit
WHERE tenant = :tenant AND subject = :subject AND kind = :kind ORDER BY n DESC LIMIT :limit;

-- name: sessions_of_ids
SELECT {session} FROM sessions WHERE tenant = :tenant AND id IN ({listed_sessions});

-- name: newest_attempts
-- Fences rise, and are unique in a session: the highest is found by its index.
SELECT {attempt} FROM attempts
WHERE tenant = :tenant AND session_id IN ({listed_sessions})
  AND fence = (SELECT max(tries.fence) FROM attempts AS tries WHERE tries.session_id = attempts.session_id);

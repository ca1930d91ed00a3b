-- Statements that both databases understand. {session}, {turn}, {attempt} and {request}
-- stand for the column lists of store/rows.py, next to the code that maps them.

-- name: get_session
SELECT {session} FROM sessions WHERE tenant = :tenant AND id = :session;

-- name: list_sessions
-- The index (tenant, n) gives the page; no message is ever touched.
SELECT {session} FROM sessions
WHERE tenant = :tenant AND n < :before AND (:query = '' OR lower(title) LIKE :query ESCAPE '\')
ORDER BY n DESC LIMIT :limit;

-- name: find_conversation
SELECT {session} FROM sessions WHERE tenant = :tenant AND conversation = :conversation;

-- name: leave_conversation
UPDATE sessions SET conversation = NULL
WHERE tenant = :tenant AND id = :source AND conversation = :conversation
  AND attempt_id IS NULL AND seq = :turns
  AND EXISTS (SELECT 1 FROM sessions AS target WHERE target.tenant = :tenant AND target.id = :target)
RETURNING id;

-- name: take_conversation
UPDATE sessions SET conversation = :conversation WHERE tenant = :tenant AND id = :target
RETURNING id;

-- name: find_token
SELECT {token} FROM tokens WHERE hash = :hash;

-- name: list_tokens
SELECT {token} FROM tokens ORDER BY created_at, id;

-- name: find_turn
SELECT {turn} FROM turns WHERE tenant = :tenant AND id = :turn;

-- name: read_segment
-- The turns that one session committed, up to one of them. A fork's chain is a few such segments.
SELECT {turn} FROM turns
WHERE tenant = :tenant AND session_id = :session AND seq <= :upto AND seq > :after
ORDER BY seq;

-- name: get_attempt
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND id = :attempt;

-- name: list_attempts
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND session_id = :session ORDER BY fence;

-- name: newest_attempt
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND turn_id = :turn ORDER BY number DESC LIMIT 1;

-- name: read_request
SELECT {request} FROM requests WHERE tenant = :tenant AND turn_id = :turn;

-- name: request_by_key
SELECT {request} FROM requests WHERE tenant = :tenant AND key = :key;

-- name: read_steps
SELECT steps.kind, steps.body, steps.input_tokens, steps.output_tokens, steps.cost
FROM steps JOIN attempts ON attempts.id = steps.attempt_id
WHERE attempts.tenant = :tenant AND steps.attempt_id = :attempt ORDER BY steps.n;

-- name: running_attempts
SELECT {attempt} FROM attempts JOIN sessions ON sessions.id = attempts.session_id
WHERE attempts.ended_at IS NULL AND sessions.attempt_id = attempts.id AND attempts.status = 'running'
LIMIT :limit;

-- name: interrupted_asks
-- Promised, not committed, newest try interrupted, nobody on the session.
SELECT {attempt}, sessions.head
FROM requests
JOIN sessions ON sessions.id = requests.session_id AND sessions.attempt_id IS NULL
JOIN attempts ON attempts.turn_id = requests.turn_id
WHERE requests.accepted = 1 AND requests.input IS NOT NULL AND attempts.status = 'interrupted'
  AND attempts.number < :tried_below
  AND attempts.number = (SELECT max(newer.number) FROM attempts AS newer WHERE newer.turn_id = requests.turn_id)
ORDER BY attempts.started_at, attempts.id LIMIT :limit OFFSET :skip;

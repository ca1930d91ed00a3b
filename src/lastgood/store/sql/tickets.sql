-- Tickets for event streams.

-- name: drop_expired_tickets
DELETE FROM stream_tickets WHERE expires_at < (SELECT clock());

-- name: insert_ticket
INSERT INTO stream_tickets (hash, tenant, session_id, token, username, expires_at)
VALUES (:hash, :tenant, :session, :token, :user, clock() + :seconds)
RETURNING expires_at;

-- name: find_ticket
SELECT tenant, session_id, token, username FROM stream_tickets WHERE hash = :hash AND expires_at > (SELECT clock());

-- name: token_ended
-- Callers without a token (the server needs none, or a proxy logs them in) have none that could end.
SELECT 1 FROM tokens
WHERE id = :token AND (revoked_at IS NOT NULL OR expires_at IS NOT NULL AND expires_at <= (SELECT clock()));

-- What a restore does to a database, on both: no number and no claim of the time after the backup may come back with
-- another meaning. The transaction is in store/restores.py.

-- name: restored_numbers
-- The time in microseconds is above every number that the lost time gave, because a session gives far fewer than a
-- million a second. Fences are raised to hundredths of a second: a session begins fewer attempts than that. A clock
-- that is behind must not lower anything.
UPDATE sessions SET
    fence = CASE WHEN fence < :fence_floor THEN CAST(:fence_floor AS bigint) ELSE fence + :fence_leap END,
    event_seq = CASE WHEN event_seq < :floor THEN CAST(:floor AS bigint) ELSE event_seq + :leap END,
    events_dropped = CASE WHEN event_seq < :floor THEN CAST(:floor AS bigint) ELSE event_seq + :leap END;

-- name: restored_held_fences
-- An attempt that ran has the fence of its session, or nobody could end it.
UPDATE attempts SET fence = (SELECT sessions.fence FROM sessions WHERE sessions.attempt_id = attempts.id)
WHERE ended_at IS NULL AND id IN (SELECT attempt_id FROM sessions WHERE attempt_id IS NOT NULL);

-- name: restored_tasks
-- After the tokens of their claims. They can be claimed again at once, and that ends the attempt of the old claim.
UPDATE tasks SET
    claim_token = (SELECT token FROM claims WHERE claims.attempt_id = tasks.attempt_id),
    lease_until = CASE WHEN lease_until IS NULL THEN NULL ELSE 0 END
WHERE EXISTS (SELECT 1 FROM claims WHERE claims.attempt_id = tasks.attempt_id AND claims.task_id = tasks.id);

-- name: restored_pointers
-- A native session may have gone on after the backup, with turns that this database does not have.
UPDATE pointers SET retired = :reason WHERE retired IS NULL;

-- name: restored_enrollments
-- A one-time code may have been used after the backup.
UPDATE enrollments SET used_at = clock() WHERE used_at IS NULL;

-- name: restored_audit
INSERT INTO audit (tenant, at, kind, actor, username, subject, detail, machine)
SELECT tenant, clock(), :kind, '', '', :source, '{{}}', :machine
FROM (SELECT tenant FROM sessions UNION SELECT tenant FROM tokens) AS known;

-- Statistics of the whole database.

-- name: stats_rows
SELECT 'sessions', count(*) FROM sessions UNION ALL
SELECT 'turns', count(*) FROM turns UNION ALL
SELECT 'branches', count(*) FROM branches UNION ALL
SELECT 'requests', count(*) FROM requests UNION ALL
SELECT 'attempts', count(*) FROM attempts UNION ALL
SELECT 'steps', count(*) FROM steps UNION ALL
SELECT 'events', count(*) FROM events UNION ALL
SELECT 'queued', count(*) FROM queued UNION ALL
SELECT 'tokens', count(*) FROM tokens UNION ALL
SELECT 'stream_tickets', count(*) FROM stream_tickets UNION ALL
SELECT 'notes', count(*) FROM notes UNION ALL
SELECT 'workers', count(*) FROM workers UNION ALL
SELECT 'runtimes', count(*) FROM runtimes UNION ALL
SELECT 'agent_runtimes', count(*) FROM agent_runtimes UNION ALL
SELECT 'tasks', count(*) FROM tasks UNION ALL
SELECT 'claims', count(*) FROM claims UNION ALL
SELECT 'task_messages', count(*) FROM task_messages UNION ALL
SELECT 'questions', count(*) FROM questions UNION ALL
SELECT 'pointers', count(*) FROM pointers UNION ALL
SELECT 'snapshots', count(*) FROM snapshots UNION ALL
SELECT 'enrollments', count(*) FROM enrollments UNION ALL
SELECT 'audit', count(*) FROM audit UNION ALL
SELECT 'usage', count(*) FROM usage UNION ALL
SELECT 'uses', count(*) FROM uses UNION ALL
SELECT 'webhooks', count(*) FROM webhooks UNION ALL
SELECT 'webhook_outbox', count(*) FROM webhook_outbox;

-- name: stats_attempts
SELECT status, count(*) FROM attempts GROUP BY status;

-- name: stats_sessions
SELECT count(DISTINCT tenant), min(created_at), max(updated_at) FROM sessions;

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

-- name: ready_tasks
-- A piece of claims.
FROM heads JOIN tasks AS head ON head.n = heads.n
CROSS JOIN LATERAL ({first_of_group}) AS found JOIN tasks AS task ON task.n = found.n;

-- name: any_claimable
WITH RECURSIVE {claimable_groups}
SELECT 1 {ready_tasks} LIMIT 1;

-- name: pick_tasks
-- Urgency is the priority, raised by age. Among equally urgent tasks agents take turns: the first task of an
-- agent counts as one more than it runs already, the second as two more, and so on. A task that was claimed after this
-- statement began is looked at again as it is now, and not taken.
WITH RECURSIVE {claimable_groups}, ready AS MATERIALIZED (
    SELECT task.n, task.agent_key,
           task.priority + floor(((SELECT now FROM moment) - task.created_at) / CAST(:ageing AS double precision)) AS urgency
    {ready_tasks}
), busy AS (
    SELECT agent_key, count(*) AS running FROM tasks
    WHERE tenant = :tenant AND status IN ('claimed', 'running', 'waiting')
      AND lease_until >= (SELECT now FROM moment)
    GROUP BY agent_key
), placed AS (
    SELECT ready.n, ready.agent_key, ready.urgency,
           coalesce(busy.running, 0)
           + row_number() OVER (PARTITION BY ready.agent_key ORDER BY ready.urgency DESC, ready.n) AS place
    FROM ready LEFT JOIN busy ON busy.agent_key = ready.agent_key
), best AS MATERIALIZED (
    SELECT placed.n, placed.urgency, placed.place
    FROM placed LEFT JOIN agent_runtimes
      ON agent_runtimes.tenant = :tenant AND agent_runtimes.agent_key = placed.agent_key
    WHERE agent_runtimes.max_running IS NULL OR placed.place <= agent_runtimes.max_running
    ORDER BY placed.urgency DESC, placed.place, placed.n LIMIT :looked_at
)
SELECT {task} FROM best JOIN tasks ON tasks.n = best.n
WHERE tasks.ended_at IS NULL AND {is_due}
ORDER BY best.urgency DESC, best.place, best.n LIMIT :wanted
FOR NO KEY UPDATE OF tasks SKIP LOCKED;

-- name: pick_deliveries
-- A few of each webhook: one with a long backlog must not keep the others waiting. What another node takes is skipped.
SELECT found.n FROM webhooks CROSS JOIN LATERAL (
    SELECT n, due_at FROM webhook_outbox
    WHERE webhook_id = webhooks.id AND due_at <= (SELECT clock()) ORDER BY due_at LIMIT :per_webhook
    FOR NO KEY UPDATE SKIP LOCKED) AS found
WHERE webhooks.id NOT IN (SELECT json_array_elements_text(CAST(CAST(:skip AS text) AS json)))
ORDER BY found.due_at LIMIT :limit;

-- name: restored_claims
-- Whoever holds one of these may have been replaced after the backup. Answers to final reports stay.
UPDATE claims SET token = sha256(gen_random_uuid()::text::bytea) WHERE report IS NULL;

-- name: restored_counters_known
SELECT 1 WHERE false;

-- name: restored_counters
-- Queue entries, audit records and cursors are named by these.
SELECT setval(name, CASE WHEN last < :floor THEN :floor::bigint ELSE last + :leap END)
FROM (SELECT format('%I.%I', schemaname, sequencename)::regclass AS name, coalesce(last_value, 0) AS last
      FROM pg_sequences WHERE schemaname = current_schema()) AS counters;

-- name: stats_bytes
-- Of each table with its indexes; the first row is the whole database.
SELECT '', pg_database_size(current_database()) UNION ALL
SELECT relname::text, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace;

-- name: other_connections
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';

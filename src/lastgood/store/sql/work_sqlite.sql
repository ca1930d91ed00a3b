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

-- name: ready_tasks
-- A piece of claims.
FROM heads JOIN tasks AS head ON head.n = heads.n
CROSS JOIN tasks AS task ON task.n IN ({first_of_group});

-- name: any_claimable
WITH RECURSIVE {claimable_groups}
SELECT 1 {ready_tasks} LIMIT 1;

-- name: pick_tasks
-- Urgency is the priority, raised by age. Among equally urgent tasks agents take turns: the first task of an
-- agent counts as one more than it runs already, the second as two more, and so on. CROSS JOIN keeps SQLite from
-- beginning with all tasks there are.
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
SELECT {task} FROM best CROSS JOIN tasks ON tasks.n = best.n
WHERE tasks.ended_at IS NULL AND {is_due}
ORDER BY best.urgency DESC, best.place, best.n LIMIT :wanted;

-- name: pick_deliveries
-- A few of each webhook: one with a long backlog must not keep the others waiting.
SELECT outbox.n FROM webhooks CROSS JOIN webhook_outbox AS outbox ON outbox.n IN (
    SELECT n FROM webhook_outbox
    WHERE webhook_id = webhooks.id AND due_at <= (SELECT clock()) ORDER BY due_at LIMIT :per_webhook)
WHERE webhooks.id NOT IN (SELECT value FROM json_each(:skip))
ORDER BY outbox.due_at LIMIT :limit;

-- name: restored_claims
-- Whoever holds one of these may have been replaced after the backup. Answers to final reports stay.
UPDATE claims SET token = randomblob(32) WHERE report IS NULL;

-- name: restored_counters_known
INSERT INTO sqlite_sequence (name, seq)
SELECT name, 0 FROM sqlite_schema
WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%' AND name NOT IN (SELECT name FROM sqlite_sequence);

-- name: restored_counters
-- Queue entries, audit records and cursors are named by these.
UPDATE sqlite_sequence SET seq = CASE WHEN seq < :floor THEN :floor ELSE seq + :leap END;

-- name: stats_bytes
-- Of each table with its indexes; the first row is the whole file. Reads the header of every page.
SELECT '', (SELECT page_count FROM pragma_page_count()) * (SELECT page_size FROM pragma_page_size()) UNION ALL
SELECT known.tbl_name, sum(pages.pgsize) FROM dbstat AS pages JOIN sqlite_schema AS known ON known.name = pages.name
WHERE pages.aggregate = 1 GROUP BY known.tbl_name;

-- name: other_connections
-- The lock file keeps other servers away.
SELECT 0;

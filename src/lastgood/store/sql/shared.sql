-- Statements that both databases understand. {session}, {turn}, {branch}, {attempt}, {request} and {queued}
-- stand for the column lists of store/columns.py, next to the code that maps them.
-- {new_session} and {new_session_values} are the columns that every new session is given, however it is made.

-- name: get_session
SELECT {session} FROM sessions WHERE tenant = :tenant AND id = :session;

-- name: list_sessions
-- The index (tenant, n) gives the page; no message is ever touched.
SELECT {session} FROM sessions
WHERE tenant = :tenant AND n < :before
  AND (:agent IS NULL OR agent_key = :agent)
  AND (:status IS NULL OR {status} = :status)
  AND (:query = '' OR lower(title) LIKE :query ESCAPE '\' OR conversation = :exact OR owner = :exact)
ORDER BY n DESC LIMIT :limit;

-- name: walk_sessions
SELECT {session} FROM sessions WHERE n > :after ORDER BY n LIMIT :limit;

-- name: count_forks
SELECT count(*) FROM sessions WHERE tenant = :tenant AND forked_session = :session;

-- name: import_session
INSERT INTO sessions ({new_session},
                      conversation, head, seq, head_hash, segment, input_tokens, output_tokens, cost,
                      created_at, updated_at)
VALUES ({new_session_values},
        :conversation, :head, :seq, :hash, :id, :input_tokens, :output_tokens, :cost,
        coalesce(:created_at, clock()), coalesce(:updated_at, clock()))
RETURNING {session};

-- name: find_conversation
SELECT {session} FROM sessions WHERE tenant = :tenant AND conversation = :conversation;

-- name: is_bound
-- Whether the agent of the next turn is bound to a runtime: read with its session, because most are not.
EXISTS (
  SELECT 1 FROM agent_runtimes AS bound
  WHERE bound.tenant = :tenant AND bound.agent_key = coalesce(:agent_key, sessions.agent_key)
)

-- name: locate_session
SELECT {session}, {is_bound} FROM sessions WHERE tenant = :tenant AND id = :session;

-- name: locate_conversation
SELECT {session}, {is_bound} FROM sessions WHERE tenant = :tenant AND conversation = :conversation;

-- name: find_token
SELECT {token} FROM tokens WHERE hash = :hash;

-- name: bind_token
-- The first worker keeps it, whichever of two comes second.
UPDATE tokens SET worker_id = coalesce(worker_id, :worker) WHERE id = :id
RETURNING {token};

-- name: get_token
SELECT {token} FROM tokens WHERE tenant = :tenant AND id = :id;

-- name: list_tokens
SELECT {token} FROM tokens ORDER BY created_at, id;

-- name: find_turn
SELECT {turn} FROM turns WHERE tenant = :tenant AND id = :turn;

-- name: insert_turn
INSERT INTO turns (id, tenant, session_id, seq, segment, parent, attempt_id, kind, hash, agent_key, agent_digest,
                   model, decision, input_tokens, output_tokens, cost, created_at, end_user, inputs, body)
VALUES (:turn, :tenant, :session, :seq, :segment, :base, :attempt, :kind, :hash, :agent_key, :agent_digest,
        :model, :decision, :input_tokens, :output_tokens, :cost, :now, :user, :inputs, :body);

-- name: list_branches
SELECT {branch} FROM branches
WHERE tenant = :tenant AND session_id = :session AND n > :after ORDER BY n LIMIT :limit;

-- name: count_branches
SELECT count(*) FROM branches WHERE tenant = :tenant AND session_id = :session;

-- name: delete_branches
DELETE FROM branches WHERE session_id = :session;

-- name: get_attempt
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND id = :attempt;

-- name: list_attempts
SELECT {attempt} FROM attempts
WHERE tenant = :tenant AND session_id = :session AND fence > :after
ORDER BY fence LIMIT :limit;

-- name: newest_attempt
SELECT {attempt} FROM attempts WHERE tenant = :tenant AND turn_id = :turn ORDER BY number DESC LIMIT 1;

-- name: read_request
SELECT {request} FROM requests WHERE tenant = :tenant AND turn_id = :turn;

-- name: request_by_key
SELECT {request} FROM requests WHERE tenant = :tenant AND key = :key;

-- name: newest_by_body
-- A piece of standing: the turn of the newest request that an SDK's retry can mean.
SELECT requests.turn_id FROM requests JOIN attempts ON attempts.turn_id = requests.turn_id
WHERE requests.tenant = :tenant AND requests.session_id = :session AND requests.fingerprint = :fingerprint
  AND requests.caller = :caller AND requests.on_leave = 'orphan' AND NOT requests.closed
ORDER BY attempts.fence DESC LIMIT 1;

-- name: close_requests
-- What still runs stays open: a second copy of a running request may attach to it.
UPDATE requests SET closed = true
WHERE tenant = :tenant AND session_id = :session AND fingerprint = :fingerprint AND caller = :caller
  AND on_leave = 'orphan' AND NOT closed
  AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.turn_id = requests.turn_id AND attempts.ended_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.turn_id = requests.turn_id AND tasks.ended_at IS NULL);

-- name: read_steps
SELECT attempts.session_id, {step}
FROM steps JOIN attempts ON attempts.id = steps.attempt_id
WHERE attempts.tenant = :tenant AND steps.attempt_id = :attempt ORDER BY steps.n;

-- name: this_hour
-- A piece of others.
CAST(floor(clock() / 3600.0) AS BIGINT);

-- name: count_use
-- In the transaction of what was used. Turns without a model are no use of one.
INSERT INTO uses (tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls,
                   input_tokens, output_tokens, cost, seconds, slowest)
SELECT attempts.tenant, {this_hour},
       CASE WHEN requests.end_user <> '' THEN requests.end_user ELSE requests.caller END,
       attempts.agent_key, coalesce(tasks.runtime_id, ''),
       CASE WHEN CAST(:use_model AS TEXT) = '' THEN attempts.model ELSE CAST(:use_model AS TEXT) END,
       CAST(:use_attempts AS BIGINT), CAST(:use_turns AS BIGINT), CAST(:use_failures AS BIGINT),
       CAST(:use_calls AS BIGINT), CAST(:use_inputs AS BIGINT), CAST(:use_outputs AS BIGINT),
       CAST(:use_cost AS DOUBLE PRECISION),
       coalesce(CAST(:use_seconds AS DOUBLE PRECISION), clock() - attempts.started_at),
       coalesce(CAST(:use_seconds AS DOUBLE PRECISION), clock() - attempts.started_at)
FROM attempts
JOIN requests ON requests.turn_id = attempts.turn_id AND requests.kind = 'run'
LEFT JOIN tasks ON tasks.id = attempts.task_id
WHERE attempts.id = :attempt;

-- name: is_stored
-- Whether a batch of an attempt that still holds its session was stored.
SELECT 1 FROM sessions
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence AND batch = :batch;

-- name: running_attempts
SELECT {attempt} FROM attempts JOIN sessions ON sessions.id = attempts.session_id
WHERE attempts.ended_at IS NULL AND sessions.attempt_id = attempts.id AND attempts.status = 'running'
  AND attempts.task_id IS NULL
LIMIT :limit;

-- name: failures
SELECT {attempt} FROM attempts
WHERE tenant = :tenant AND status IN ('failed', 'interrupted') AND ended_at > (SELECT clock() - CAST(:age AS REAL))
ORDER BY ended_at DESC LIMIT :limit;

-- name: waiting_sessions
-- By the index of attempts that have not ended: few of all have not.
SELECT session_id FROM attempts
WHERE ended_at IS NULL AND status = 'waiting' AND tenant = :tenant
ORDER BY started_at DESC LIMIT :limit;

-- name: interrupted_asks
-- Durable, not committed, newest try interrupted, nobody on the session. There are few, so they come
-- first: CROSS JOIN keeps SQLite from beginning with all attempts there ever were.
SELECT {attempt}, sessions.head,
       (SELECT count(*) FROM attempts AS tries WHERE tries.turn_id = requests.turn_id AND tries.died) AS deaths
FROM requests
CROSS JOIN sessions ON sessions.id = requests.session_id AND sessions.attempt_id IS NULL
CROSS JOIN attempts ON attempts.turn_id = requests.turn_id
WHERE requests.durable = 1 AND requests.input IS NOT NULL AND attempts.status = 'interrupted'
  AND attempts.task_id IS NULL AND deaths < :deaths_below
  AND attempts.number = (SELECT max(newer.number) FROM attempts AS newer WHERE newer.turn_id = requests.turn_id)
ORDER BY attempts.started_at, attempts.id LIMIT :limit OFFSET :skip;

-- name: may_enqueue
-- Asked by who has the session's row to itself, so that the answer holds until it is acted upon.
SELECT CASE
         WHEN EXISTS (SELECT 1 FROM queued WHERE tenant = :tenant AND key = :key) THEN 'known'
         WHEN EXISTS (SELECT 1 FROM requests WHERE tenant = :tenant AND key = :key) THEN 'key_used'
         WHEN :kind = 'steer' AND attempt_id IS NULL THEN 'nothing_runs'
         WHEN (SELECT count(*) FROM queued
               WHERE session_id = :session AND settled_at IS NULL AND parked IS NULL AND kind = :kind) >= :most
         THEN 'full'
       END,
       CASE WHEN :kind = 'steer' THEN attempt_id END
FROM sessions WHERE tenant = :tenant AND id = :session;

-- name: queued_by_key
SELECT {queued} FROM queued WHERE tenant = :tenant AND key = :key;

-- name: read_queue
SELECT {queued} FROM queued
WHERE tenant = :tenant AND session_id = :session AND settled_at IS NULL ORDER BY n;

-- name: parked
SELECT {queued} FROM queued
WHERE tenant = :tenant AND settled_at IS NULL AND parked IS NOT NULL ORDER BY n DESC LIMIT :limit;

-- name: steers_of
SELECT {queued} FROM queued
WHERE tenant = :tenant AND session_id = :session AND attempt_id = :attempt AND kind = 'steer' AND NOT journaled
  AND settled_at IS NULL
ORDER BY n;

-- name: waiting_queues
-- What no attempt has is a follow-up: a steer that lost its attempt became one.
SELECT tenant, session_id FROM queued
WHERE settled_at IS NULL AND attempt_id IS NULL AND parked IS NULL
  AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = queued.session_id AND sessions.attempt_id IS NULL)
GROUP BY session_id, tenant ORDER BY min(n) LIMIT :limit;

-- name: drop_queued
UPDATE queued SET settled_at = clock()
WHERE tenant = :tenant AND session_id = :session AND n = :number AND settled_at IS NULL AND attempt_id IS NULL
RETURNING n;

-- name: park_queued
UPDATE queued SET parked = :why
WHERE tenant = :tenant AND session_id = :session AND n = :number AND settled_at IS NULL AND attempt_id IS NULL
  AND parked IS NULL
RETURNING n;

-- name: unpark_queued
UPDATE queued SET parked = NULL, failures = 0
WHERE tenant = :tenant AND session_id = :session AND n = :number AND settled_at IS NULL AND parked IS NOT NULL
RETURNING n;

-- name: settle_queued
-- After a commit. The follow-up that the turn was and its journaled steers are in it; one that came
-- too late to be journaled becomes a turn of its own, in its old place.
UPDATE queued
SET settled_at = CASE WHEN kind = 'followup' OR journaled THEN clock() END,
    attempt_id = CASE WHEN kind = 'followup' OR journaled THEN attempt_id END,
    kind = CASE WHEN journaled THEN kind ELSE 'followup' END
WHERE attempt_id = :attempt AND settled_at IS NULL;

-- name: give_back_queued
-- After every other end. Steers are turns of their own, as nobody has answered them. The follow-up
-- that the turn was is tried again, but not forever: core/parking_policy.py says when it parks, and why.
-- NULL limits never park: an outage or a restart says nothing about the turn.
UPDATE queued
SET kind = 'followup', journaled = false, attempt_id = NULL,
    failures = failures + CASE WHEN kind = 'followup' AND :status = 'failed' THEN 1 ELSE 0 END,
    parked = CASE
        WHEN kind = 'steer' THEN parked
        WHEN failures + CASE WHEN :status = 'failed' THEN 1 ELSE 0 END >= :park_failures THEN :park_reason
        WHEN (SELECT count(*) FROM attempts WHERE attempts.turn_id = queued.turn_id AND died) >= :park_deaths
        THEN :park_reason
        ELSE parked END
WHERE attempt_id = :attempt AND settled_at IS NULL;

-- name: park_others
-- After give_back_queued: what the cancelled turn had is there again, and waits like the rest.
UPDATE queued SET parked = :park_others
WHERE session_id = :session AND settled_at IS NULL AND attempt_id IS NULL AND parked IS NULL;

-- name: write_probe
INSERT INTO write_probe (only_row, filler) VALUES (1, :filler)
ON CONFLICT (only_row) DO UPDATE SET filler = excluded.filler;

-- name: check_turns
-- Every turn there is, with what is stored of the one before it. Each row is read once, however many forks
-- share it, and in an order that an index gives.
SELECT turns.tenant, before.tenant, before.id, before.seq, before.hash,
       EXISTS (SELECT 1 FROM turns AS next WHERE next.parent = turns.id)
       OR EXISTS (SELECT 1 FROM sessions WHERE sessions.forked_turn = turns.id)
       OR EXISTS (SELECT 1 FROM sessions WHERE sessions.id = turns.session_id AND sessions.head = turns.id)
       OR EXISTS (SELECT 1 FROM branches
                  WHERE branches.session_id = turns.session_id AND branches.head = turns.id),
       turns.segment,
       {turn}
FROM turns LEFT JOIN turns AS before ON before.id = turns.parent
ORDER BY turns.segment, turns.seq;

-- name: check_sessions
SELECT turns.tenant, turns.seq, turns.hash, sessions.forked_turn, origin.tenant, holder.id IS NOT NULL,
       {session}
FROM sessions
LEFT JOIN turns ON turns.id = sessions.head
LEFT JOIN turns AS origin ON origin.id = sessions.forked_turn
LEFT JOIN attempts AS holder
       ON holder.id = sessions.attempt_id AND holder.session_id = sessions.id AND holder.ended_at IS NULL
          AND holder.fence = sessions.fence
ORDER BY sessions.n;

-- name: check_branches
SELECT sessions.tenant, old.tenant, old.seq, new.tenant, branches.tenant, branches.session_id, {branch}
FROM branches
LEFT JOIN sessions ON sessions.id = branches.session_id
LEFT JOIN turns AS old ON old.id = branches.head
LEFT JOIN turns AS new ON new.id = branches.replaced_by
ORDER BY branches.n;

-- name: check_attempts
SELECT sessions.tenant, sessions.attempt_id, EXISTS (SELECT 1 FROM turns WHERE turns.id = attempts.turn_id),
       EXISTS (SELECT 1 FROM tasks WHERE tasks.id = attempts.task_id AND tasks.tenant = attempts.tenant),
       EXISTS (SELECT 1 FROM tasks
               WHERE tasks.id = attempts.task_id AND tasks.attempt_id = attempts.id
                 AND tasks.status IN ('claimed', 'running', 'waiting')),
       {attempt}
FROM attempts LEFT JOIN sessions ON sessions.id = attempts.session_id
ORDER BY attempts.id;

-- name: check_steps
SELECT attempts.tenant, attempts.session_id, {step}
FROM steps LEFT JOIN attempts ON attempts.id = steps.attempt_id
ORDER BY steps.attempt_id, steps.n;

-- name: check_requests
SELECT sessions.tenant, EXISTS (SELECT 1 FROM turns WHERE turns.id = requests.turn_id), {request}
FROM requests LEFT JOIN sessions ON sessions.id = requests.session_id
ORDER BY requests.turn_id;

-- name: check_queued
SELECT sessions.tenant, {queued}
FROM queued LEFT JOIN sessions ON sessions.id = queued.session_id
ORDER BY queued.n;

-- name: segments_of_chain
-- The segments of a chain, and up to which turn of each, oldest first. The turn before a segment's
-- first one is where a fork or an edit started it.
WITH RECURSIVE part (segment, session_id, upto) AS (
    SELECT segment, session_id, seq FROM turns WHERE tenant = :tenant AND id = :head
    UNION ALL
    SELECT before.segment, before.session_id, before.seq
    FROM part JOIN turns AS before ON before.id = (
        SELECT parent FROM turns WHERE turns.segment = part.segment ORDER BY seq LIMIT 1)
)
SELECT segment, session_id, upto FROM part ORDER BY upto;

-- name: read_segment_page
-- Bodies are measured before they are read: a page ends with the turn that fills it.
SELECT {turn} FROM turns JOIN (
    SELECT id, sum(size) OVER (ORDER BY seq) - size AS bytes_before
    FROM (
        SELECT id, seq, length(body) AS size FROM turns
        WHERE tenant = :tenant AND segment = :segment AND session_id = :session
          AND seq > :after AND seq <= :upto
        ORDER BY seq LIMIT :turns
    ) AS next
) AS page ON page.id = turns.id
WHERE page.bytes_before < :bytes ORDER BY turns.seq;

-- name: usage_of_tenant
SELECT created_by, count(*), coalesce(sum(stored_bytes), 0) FROM sessions WHERE tenant = :tenant GROUP BY created_by;

-- name: into_outbox
-- A piece of what announces something to webhooks.
INSERT INTO webhook_outbox (id, tenant, webhook_id, kind, detail, created_at, due_at,
                            session_id, turn_id, attempt_id, task_id)
SELECT CAST(:announcement AS TEXT), webhooks.tenant, webhooks.id, CAST(:announces AS TEXT), CAST(:about AS TEXT),
       clock(), clock();

-- name: webhooks_for
-- A piece of the same. Without a kind there are none.
webhooks.tenant = :tenant AND webhooks.disabled_at IS NULL
AND webhooks.kinds LIKE '%"' || CAST(:announces AS TEXT) || '"%';

-- name: announce_attempt
{into_outbox}, attempts.session_id, attempts.turn_id, attempts.id, attempts.task_id
FROM webhooks JOIN attempts ON attempts.id = :attempt
WHERE {webhooks_for};

-- Statements on PostgreSQL. A write is one statement, so it is its own
-- transaction: it happens as a whole or not at all.
--
-- Two rules of READ COMMITTED shape them. An UPDATE that waited for a row's lock
-- looks at its WHERE clause again on the row as it is now; but sub-selects, and
-- everything else the statement reads, still show the time it began. So whatever a
-- write depends on is either in a row that it locks, or cannot change while it holds
-- the session's row. And the parts of a WITH do not see one another's changes: what
-- one needs from another goes through RETURNING.
--
-- Locks are taken in one order: the session's row, then its attempt's, then its request's, then
-- those of its queue and of its tasks from the oldest on. A claim goes the other way, so it waits for
-- nobody: it skips rows that somebody else has locked.
--
-- Batches, leases and our own titles leave the flush to the server (`relaxed`):
-- what a crash of the server could take of them belongs to an attempt that failed anyway.
-- set_config(…, true) ends with its transaction, so it is safe behind a pooler.

-- name: relaxed
set_config('synchronous_commit', 'off', true);

-- name: store_events
-- A piece of others. `held` has moved the session's counter past these numbers just before.
INSERT INTO events (session_id, seq, kind, attempt_id, created_at, body)
SELECT :session, held.event_seq - cardinality(:event_kinds::text[]) + item.n, item.kind, item.attempt_id,
       coalesce(:events_at::double precision, clock()), item.body
FROM held, unnest(:event_kinds::text[], :event_attempts::text[], :event_bodies::bytea[])
     WITH ORDINALITY AS item (kind, attempt_id, body, n);

-- name: count_held
-- A piece of others: count_use for several.
INSERT INTO uses (tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls,
                   input_tokens, output_tokens, cost, seconds, slowest)
SELECT attempts.tenant, {this_hour},
       CASE WHEN requests.end_user <> '' THEN requests.end_user ELSE requests.caller END,
       attempts.agent_key, coalesce(tasks.runtime_id, ''),
       CASE WHEN item.model = '' THEN attempts.model ELSE item.model END,
       item.attempts, item.turns, item.failures, item.calls, item.inputs, item.outputs, item.cost,
       coalesce(item.seconds, clock() - attempts.started_at), coalesce(item.seconds, clock() - attempts.started_at)
FROM held
JOIN attempts ON attempts.id = :attempt
JOIN requests ON requests.turn_id = attempts.turn_id AND requests.kind = 'run'
LEFT JOIN tasks ON tasks.id = attempts.task_id
CROSS JOIN unnest(:use_models::text[], :use_attempts::bigint[], :use_turns::bigint[], :use_failures::bigint[],
                  :use_calls::bigint[], :use_inputs::bigint[], :use_outputs::bigint[],
                  :use_costs::double precision[], :use_seconds::double precision[])
     AS item (model, attempts, turns, failures, calls, inputs, outputs, cost, seconds);

-- name: listed_numbers
-- A piece of others.
SELECT CAST(json_array_elements_text(CAST(CAST(:numbers AS text) AS json)) AS bigint);

-- name: lock_usage
-- One node merges at a time; no row: another one does.
SELECT 1 WHERE pg_try_advisory_xact_lock(hashtextextended('lastgood usage', 0));

-- name: announce_held
-- A piece of others. If they changed nothing, there is nothing to announce.
{into_outbox}, attempts.session_id, attempts.turn_id, attempts.id, attempts.task_id
FROM held, webhooks JOIN attempts ON attempts.id = :attempt
WHERE {webhooks_for};

-- name: insert_session
-- A piece of others.
INSERT INTO sessions ({new_session},
                      conversation, segment, created_at, updated_at)
SELECT {new_session_values},
       :conversation, :id, now, now
FROM (SELECT clock() AS now) AS moment;

-- name: create_session
{insert_session}
ON CONFLICT DO NOTHING
RETURNING {session};

-- name: read_events
-- A page ends after so many events, or with the one that makes it larger than so many bytes.
SELECT seq, kind, attempt_id, body, created_at FROM (
    SELECT page.*, sum(length(body)) OVER (ORDER BY seq) - length(body) AS before
    FROM (
        SELECT events.seq, events.kind, events.attempt_id, events.body, events.created_at
        FROM events JOIN sessions ON sessions.id = events.session_id
        WHERE sessions.tenant = :tenant AND events.session_id = :session AND events.seq > :after
        ORDER BY events.seq LIMIT :limit
    ) AS page
) AS sized
WHERE before < :bytes ORDER BY seq;

-- name: list_sessions
-- The index (tenant, n) gives the page; no message is ever touched. Letters are lowered by
-- a collation that knows every script, whatever the database was made with.
SELECT {session} FROM sessions
WHERE tenant = :tenant AND n < :before
  AND (:agent::text IS NULL OR agent_key = :agent)
  AND (:status::text IS NULL OR {status} = :status)
  AND (:query = '' OR lower(title COLLATE "every script") LIKE :query ESCAPE '\' OR conversation = :exact OR owner = :exact)
ORDER BY n DESC LIMIT :limit;

-- name: lock_for_fork
-- A fork and a delete of the same tenant exclude one another, forks do not: else a
-- delete could erase the turn that a fork not yet visible to it starts from. Taken in
-- a statement of its own, so that the next one sees what was done before the lock was free.
SELECT pg_advisory_xact_lock_shared(hashtextextended('lastgood erase ' || :tenant::text, 0));

-- name: lock_for_delete
-- Two deletes exclude one another as well: each would leave the turns they share to the other.
SELECT pg_advisory_xact_lock(hashtextextended('lastgood erase ' || :tenant::text, 0));

-- name: fork_session
-- A pointer to a turn: no message is copied. A rule that was set since the source was read would be missing
-- in the fork, so then there is no fork.
INSERT INTO sessions ({new_session},
                      forked_session, forked_turn, head, seq, head_hash, segment, created_at, updated_at)
SELECT {new_session_values},
       :source, :head, :head, :seq, :hash, :id, now, now
FROM (SELECT clock() AS now) AS moment
WHERE EXISTS (SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :source AND rules = :rules)
RETURNING {session};

-- name: set_title
WITH held AS (
    UPDATE sessions SET title = :title, title_by = :by, event_seq = event_seq + :events
    WHERE tenant = :tenant AND id = :session AND (:by = 'person' OR title_by = 'nobody')
    RETURNING event_seq
), stored AS (
    {store_events}
)
SELECT event_seq, CASE WHEN :by <> 'person' THEN {relaxed} END FROM held;

-- name: set_model
UPDATE sessions SET model = :value WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL RETURNING 1;

-- name: set_agent_key
UPDATE sessions SET agent_key = :value
WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL RETURNING 1;

-- name: set_starred
UPDATE sessions SET starred = :value WHERE tenant = :tenant AND id = :session RETURNING 1;

-- name: set_metadata
UPDATE sessions SET metadata = :value WHERE tenant = :tenant AND id = :session RETURNING 1;

-- name: set_rules_if_unchanged
-- Who may change what was decided on :expected; another change in between may have added a stronger rule.
UPDATE sessions SET rules = :rules WHERE tenant = :tenant AND id = :session AND rules = :expected RETURNING 1;

-- name: insert_attempt
-- A piece of every begin. Another try that ended while this one waited for the session
-- is not in the number; then UNIQUE (turn_id, number) undoes the whole begin.
-- So does a newer try than the one whose steps this one adopts: `follows` is its number.
INSERT INTO attempts (id, tenant, session_id, turn_id, number, status, base, head, fence, agent_key,
                      agent_digest, model, decision, continues, started_at, request_id)
SELECT :attempt, :tenant, :session, :turn,
       1 + coalesce(:follows::integer, (SELECT coalesce(max(number), 0) FROM attempts WHERE turn_id = :turn)),
       'running', CASE WHEN :edits THEN :after ELSE held.head END, held.head, held.fence, :agent_key, :agent_digest,
       coalesce(nullif(:override, ''), nullif(held.model, ''), :agent_model), :decision, :continues, clock(),
       :request_id
FROM held
RETURNING number, model;

-- name: adopt_steps
-- A piece of every begin. Whose steps these are has ended, so there will be no more of them.
INSERT INTO steps (attempt_id, n, kind, input_tokens, output_tokens, cost, body, checksum)
SELECT :attempt, steps.n, steps.kind, steps.input_tokens, steps.output_tokens, steps.cost, steps.body,
       steps.checksum
FROM held JOIN steps ON steps.attempt_id = :continues;

-- name: insert_request
-- A piece of begins that ask for a new turn.
INSERT INTO requests (turn_id, tenant, session_id, kind, key, fingerprint, caller, end_user, model, agent_key,
                      after, replaces, expects, options, on_leave, durable, created_at, input, checksum)
SELECT :turn, :tenant, :session, :kind, :key, :fingerprint, :caller, :user, :override, :asked_agent_key,
       :after, :replaces, :expects, :options, :on_leave, :durable, clock(), :input, :checksum
FROM held;

-- name: claim_queued
-- A piece of begins that take from the queue: all of it or nothing. So the rows are locked and
-- looked at again, and only then counted.
SELECT queued.n FROM free JOIN queued ON queued.session_id = free.id
WHERE queued.tenant = :tenant AND queued.settled_at IS NULL AND queued.attempt_id IS NULL
  AND (queued.n = :takes::bigint AND queued.turn_id = :turn AND queued.parked IS NULL
       OR queued.n = ANY(:reclaims::bigint[]))
ORDER BY queued.n FOR NO KEY UPDATE OF queued;

-- name: take_queued
-- A piece of the same.
UPDATE queued
SET attempt_id = :attempt, journaled = queued.n IS DISTINCT FROM :takes::bigint,
    kind = CASE WHEN queued.n = :takes::bigint THEN 'followup' ELSE 'steer' END
FROM held, claimed WHERE queued.n = claimed.n;

-- name: begin_if_free
-- Free is decided here and in the two below, and nowhere else. A key that was used before breaks
-- requests_by_key, which undoes the hold as well.
WITH held AS (
    UPDATE sessions
    SET fence = fence + 1, attempt_id = :attempt, holder = :holder, lease_until = clock() + :lease,
        event_seq = event_seq + :events, has_queued = false
    WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL
      AND (NOT :checks_head OR head IS NOT DISTINCT FROM :expected_head)
    RETURNING {session}
), asked AS (
    {insert_request}
), tried AS (
    {insert_attempt}
), adopted AS (
    {adopt_steps}
), stored AS (
    {store_events}
)
SELECT held.*, tried.number, tried.model FROM held, tried;

-- name: begin_queued_if_free
-- The first try of a turn that was said for later.
WITH free AS (
    SELECT id FROM sessions
    WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL
      AND (NOT :checks_head OR head IS NOT DISTINCT FROM :expected_head)
    FOR NO KEY UPDATE
), claimed AS MATERIALIZED (
    {claim_queued}
), held AS (
    UPDATE sessions
    SET fence = fence + 1, attempt_id = :attempt, holder = :holder, lease_until = clock() + :lease,
        event_seq = event_seq + :events, has_queued = :claims > 0
    FROM free WHERE sessions.id = free.id AND (SELECT count(*) FROM claimed) = :claims
    RETURNING {session}
), asked AS (
    {insert_request}
), tried AS (
    {insert_attempt}
), adopted AS (
    {adopt_steps}
), taken AS (
    {take_queued}
), stored AS (
    {store_events}
)
SELECT held.*, tried.number, tried.model FROM held, tried;

-- name: begin_again_if_free
-- A turn that was committed meanwhile takes no further attempt. Its commit has taken
-- the input out of the request, and the request is locked here: looking for the turn
-- instead would look into the past if this statement had to wait for that very commit.
WITH free AS (
    SELECT sessions.id FROM sessions JOIN requests ON requests.session_id = sessions.id
    WHERE sessions.tenant = :tenant AND sessions.id = :session AND sessions.attempt_id IS NULL
      AND (NOT :checks_head OR sessions.head IS NOT DISTINCT FROM :expected_head)
      AND requests.turn_id = :turn AND requests.input IS NOT NULL
    FOR NO KEY UPDATE OF sessions, requests
), claimed AS MATERIALIZED (
    {claim_queued}
), held AS (
    UPDATE sessions
    SET fence = fence + 1, attempt_id = :attempt, holder = :holder, lease_until = clock() + :lease,
        event_seq = event_seq + :events, has_queued = :claims > 0
    FROM free WHERE sessions.id = free.id AND (SELECT count(*) FROM claimed) = :claims
    RETURNING {session}
), tried AS (
    {insert_attempt}
), adopted AS (
    {adopt_steps}
), taken AS (
    {take_queued}
), stored AS (
    {store_events}
)
SELECT held.*, tried.number, tried.model FROM held, tried;

-- name: standing
-- What stood in the way of a begin, in one look: pieces read one after the other
-- could tell of a state that never was.
SELECT {session}, coalesce(sessions.lease_until < clock(), false), coalesce(clock() - tried.ended_at, 0),
       holder.*, prior.*, tried.*
FROM sessions
LEFT JOIN (SELECT {attempt} FROM attempts) AS holder
       ON holder.tenant = sessions.tenant AND holder.id = sessions.attempt_id
LEFT JOIN (SELECT {request} FROM requests) AS prior
       ON prior.tenant = sessions.tenant AND prior.turn_id = CASE
          WHEN :key::text IS NOT NULL
          THEN (SELECT turn_id FROM requests WHERE tenant = :tenant AND key = :key)
          WHEN :is_retry THEN ({newest_by_body})
          ELSE :again::text END
LEFT JOIN LATERAL (
    SELECT {attempt} FROM attempts
    WHERE attempts.tenant = :tenant AND attempts.turn_id = prior.turn_id ORDER BY number DESC LIMIT 1
) AS tried ON true
WHERE sessions.tenant = :tenant AND sessions.id = :session;

-- name: touch_if_held
-- A piece of others: reserves event numbers, and is the fence check of every write of an attempt.
-- The batch is compared here, too: one whose answer was lost is sent again, and must not be stored
-- twice, not even if the first try was only late and arrives after the second.
UPDATE sessions SET event_seq = event_seq + :events, batch = coalesce(:batch::bigint, batch)
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
  AND lease_until IS NOT NULL AND (:batch::bigint IS NULL OR batch < :batch)
RETURNING event_seq;

-- name: append_events_if_held
WITH held AS (
    {touch_if_held}
), stored AS (
    {store_events}
)
SELECT event_seq, {relaxed} FROM held;

-- name: insert_steps
-- A piece of both journals.
INSERT INTO steps (attempt_id, n, kind, input_tokens, output_tokens, cost, body, checksum)
SELECT :attempt, item.n + (SELECT coalesce(max(n), 0) FROM steps WHERE attempt_id = :attempt),
       item.kind, item.input_tokens, item.output_tokens, item.cost, item.body, item.checksum
FROM held, unnest(:step_kinds::text[], :step_inputs::bigint[], :step_outputs::bigint[],
                  :step_costs::double precision[], :step_bodies::bytea[], :step_checksums::bytea[])
     WITH ORDINALITY AS item (kind, input_tokens, output_tokens, cost, body, checksum, n);

-- name: journal_if_held
WITH held AS (
    {touch_if_held}
), journaled AS (
    {insert_steps}
), counted AS (
    {count_held}
), stored AS (
    {store_events}
)
SELECT event_seq, {relaxed} FROM held;

-- name: journal_steers_if_held
WITH held AS (
    {touch_if_held}
), journaled AS (
    {insert_steps}
), marked AS (
    UPDATE queued SET journaled = true FROM held
    WHERE queued.n = ANY(:steers::bigint[]) AND queued.attempt_id = :attempt AND queued.kind = 'steer'
      AND queued.settled_at IS NULL
), stored AS (
    {store_events}
)
SELECT event_seq, {relaxed} FROM held;

-- name: commit_if_head
-- The one statement that moves a head. Head, fence and attempt are compared here,
-- not in an `if` above: two nodes can both read turn 7, and only one may go on from it.
-- The expected head is not the turn's parent: an edit goes on from an earlier turn, in a new segment,
-- and what was the head is kept as a branch. The parent is what the attempt was begun for, or a wrong
-- one would pass for an edit; that never changes, so it may be read from the past.
-- Orphaned is compared in the UPDATE of the attempt, which waits for a set_orphaned
-- that is under way and then looks again; a set_orphaned that comes later waits for this
-- one and finds the attempt ended. The head moves only if the attempt could be ended, and
-- the session is locked before that, so nothing can come between the two.
-- What the attempt has of the queue goes with it: settle_queued, in the same transaction. In the
-- same statement it would not know a steer that came while this one waited for the session's
-- row. Nearly always there is nothing of the kind, and then this is all there is.
WITH own AS (
    SELECT id, event_seq + :events AS event_seq FROM sessions
    WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
      AND lease_until IS NOT NULL AND head IS NOT DISTINCT FROM :expected_head
      AND EXISTS (SELECT 1 FROM attempts WHERE attempts.id = :attempt AND base IS NOT DISTINCT FROM :base)
      AND (:with_queue OR NOT has_queued)
    FOR NO KEY UPDATE
), ended AS (
    UPDATE attempts SET status = 'committed', last_event = own.event_seq, ended_at = clock()
    FROM own WHERE attempts.id = :attempt AND status = 'running' AND NOT orphaned
    RETURNING attempts.session_id
), held AS (
    UPDATE sessions
    SET head = :turn, seq = :seq, head_hash = :hash,
        segment = CASE WHEN :replaces::text IS NULL THEN segment ELSE :turn END, attempt_id = NULL, holder = NULL, lease_until = NULL,
        model = coalesce(:override, model), agent_key = coalesce(:binds, agent_key),
        event_seq = event_seq + :events,
        input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens,
        cost = cost + :cost, stored_bytes = stored_bytes + length(:body::bytea), updated_at = :now
    FROM ended WHERE sessions.id = ended.session_id
    RETURNING event_seq, segment
), kept AS (
    INSERT INTO branches (tenant, session_id, head, seq, after, replaced_by, created_at)
    SELECT :tenant, :session, turns.id, turns.seq, :base, :turn, clock()
    FROM held JOIN turns ON turns.id = :replaces
), chained AS (
    INSERT INTO turns (id, tenant, session_id, seq, segment, parent, attempt_id, kind, hash, agent_key,
                       agent_digest, model, decision, input_tokens, output_tokens, cost, created_at, end_user, inputs, body)
    SELECT :turn, :tenant, :session, :seq, held.segment, :base, :attempt, :kind, :hash, :agent_key, :agent_digest, :model,
           :decision, :input_tokens, :output_tokens, :cost, :now, :user, :inputs, :body
    FROM held
), forgotten AS (
    UPDATE requests SET input = NULL FROM held WHERE turn_id = :turn
), counted AS (
    {count_held}
), announced AS (
    {announce_held}
), stored AS (
    {store_events}
)
SELECT held.event_seq FROM own LEFT JOIN held ON true;

-- name: finish_if_held
-- Ends a hold without a commit. Nothing of the history is named here. The deadline may
-- be read from the past: it changes only when the attempt begins to wait, and then it
-- is not over yet, or when it is resumed, and then the fence has moved. With something of the
-- queue, give_back_queued follows, for the reason given at commit_if_head. The question that the attempt
-- waits with stays: it says which calls have not begun.
WITH held AS (
    UPDATE sessions SET attempt_id = NULL, holder = NULL, lease_until = NULL, event_seq = event_seq + :events
    WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
      AND (NOT :only_if_expired OR lease_until < clock()
           OR EXISTS (SELECT 1 FROM attempts WHERE attempts.id = :attempt AND deadline < clock()))
      AND (:with_queue OR NOT has_queued)
    RETURNING event_seq
), ended AS (
    UPDATE attempts
    SET status = :status, error_code = :code, error_message = :message, died = :died, deadline = NULL,
        last_event = held.event_seq, ended_at = clock()
    FROM held WHERE attempts.id = :attempt AND ended_at IS NULL
), counted AS (
    {count_held}
), announced AS (
    {announce_held}
), stored AS (
    {store_events}
)
SELECT event_seq FROM held;

-- name: wait_if_held
WITH held AS (
    UPDATE sessions SET lease_until = NULL, holder = NULL, event_seq = event_seq + :events
    WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
      AND lease_until IS NOT NULL
    RETURNING event_seq
), waits AS (
    UPDATE attempts SET status = 'waiting', question = :question, deadline = clock() + :seconds
    FROM held WHERE attempts.id = :attempt AND status = 'running'
), counted AS (
    {count_held}
), announced AS (
    {announce_held}
), stored AS (
    {store_events}
)
SELECT event_seq FROM held;

-- name: resume_if_waiting
-- The deadline is judged here: between it and the sweep that ends the attempt, an answer comes too late.
WITH held AS (
    UPDATE sessions SET fence = fence + 1, holder = :holder, lease_until = clock() + :lease
    WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence AND lease_until IS NULL
      AND EXISTS (SELECT 1 FROM attempts WHERE attempts.id = :attempt AND deadline >= clock())
    RETURNING fence
), runs AS (
    UPDATE attempts SET status = 'running', fence = held.fence, question = NULL, deadline = NULL
    FROM held WHERE attempts.id = :attempt AND status = 'waiting'
)
SELECT fence FROM held;

-- name: set_orphaned
-- Locks the attempt alone; commit_if_head says why that is enough.
UPDATE attempts SET orphaned = :orphaned
WHERE tenant = :tenant AND id = :attempt AND fence = :fence AND ended_at IS NULL RETURNING 1;

-- name: ask_cancel
UPDATE attempts SET cancel_asked = true
WHERE tenant = :tenant AND id = :attempt AND fence = :fence AND ended_at IS NULL RETURNING 1;

-- name: renew_leases
-- The only write that locks several sessions; in the order of their ids, so that two
-- nodes that both think they hold the same ones cannot wait for each other.
WITH own AS (
    SELECT sessions.id, sessions.attempt_id
    FROM unnest(:tenants::text[], :sessions::text[], :attempts::text[], :fences::bigint[])
         AS hold (tenant, session_id, attempt_id, fence)
    JOIN sessions ON sessions.id = hold.session_id
    WHERE sessions.tenant = hold.tenant AND sessions.attempt_id = hold.attempt_id
      AND sessions.fence = hold.fence AND sessions.lease_until IS NOT NULL
    ORDER BY sessions.id FOR NO KEY UPDATE OF sessions
), held AS (
    UPDATE sessions SET lease_until = clock() + :lease FROM own WHERE sessions.id = own.id
    RETURNING sessions.attempt_id
)
SELECT {attempt}, {relaxed} FROM held JOIN attempts ON attempts.id = held.attempt_id;

-- name: expired_attempts
SELECT {attempt} FROM attempts JOIN sessions ON sessions.id = attempts.session_id
WHERE attempts.ended_at IS NULL AND sessions.attempt_id = attempts.id
  AND attempts.task_id IS NULL AND (sessions.lease_until < clock() OR attempts.deadline < clock())
LIMIT :limit;

-- name: interrupted_asks
-- Durable, not committed, newest try interrupted, nobody on the session, few deaths.
SELECT {attempt}, {request}, sessions.head, fate.deaths
FROM requests
JOIN sessions ON sessions.id = requests.session_id AND sessions.attempt_id IS NULL
JOIN LATERAL (
    SELECT * FROM attempts AS tries WHERE tries.turn_id = requests.turn_id ORDER BY tries.number DESC LIMIT 1
) AS attempts ON attempts.status = 'interrupted' AND attempts.task_id IS NULL
JOIN LATERAL (
    SELECT count(*) FILTER (WHERE died) AS deaths FROM attempts AS tries WHERE tries.turn_id = requests.turn_id
) AS fate ON fate.deaths < :deaths_below
WHERE requests.durable AND requests.input IS NOT NULL
ORDER BY attempts.started_at, attempts.id LIMIT :limit OFFSET :skip;

-- name: steps_of
SELECT attempts.session_id, {step}
FROM steps JOIN attempts ON attempts.id = steps.attempt_id
WHERE steps.attempt_id = ANY(:attempts::text[]) ORDER BY steps.attempt_id, steps.n;

-- name: segments_of
-- A piece of others: a chain is a few segments, up to one turn of each. The turn before a segment's
-- first one is where a fork or an edit started it. Numbers fall towards the beginning: a damaged row must
-- not send this round in circles.
SELECT segment, session_id, seq FROM turns WHERE tenant = :tenant AND id = :head AND seq > :after
UNION ALL
SELECT before.segment, before.session_id, before.seq
FROM part
CROSS JOIN LATERAL (
    SELECT parent, seq FROM turns WHERE turns.segment = part.segment ORDER BY seq LIMIT 1
) AS first
JOIN turns AS before ON before.id = first.parent
WHERE before.seq > :after AND before.seq < first.seq;

-- name: read_turns
-- All turns of a segment belong to one session; one that does not is missing, and that is found out.
WITH RECURSIVE part (segment, session_id, upto) AS (
    {segments_of}
)
SELECT {turn} FROM part JOIN turns ON turns.segment = part.segment AND turns.session_id = part.session_id
WHERE turns.tenant = :tenant AND turns.seq <= part.upto AND turns.seq > :after
ORDER BY turns.seq;

-- name: turn_at
-- The first turn after the given number; the segments before it are not looked at.
WITH RECURSIVE part (segment, session_id, upto) AS (
    {segments_of}
)
SELECT {turn} FROM part JOIN turns ON turns.segment = part.segment AND turns.seq = :after + 1
WHERE turns.tenant = :tenant AND turns.seq <= part.upto;

-- name: delete_session
-- First of several. It waits for whoever is writing to the session, and nobody writes to it
-- after: every other write asks for this row.
DELETE FROM sessions WHERE tenant = :tenant AND id = :session
  AND (:unused_since::double precision IS NULL
       OR (attempt_id IS NULL AND NOT starred AND updated_at < :unused_since
           AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = :tenant AND tasks.session_id = sessions.id
                             AND tasks.ended_at IS NULL)))
RETURNING head;

-- name: delete_attempts
-- With the asks they were tries of; every ask has one, or a task. Before the events: tidy takes
-- them in this order, too.
WITH gone AS (
    DELETE FROM attempts WHERE session_id = :session RETURNING id, turn_id
), requests_gone AS (
    DELETE FROM requests USING gone WHERE requests.turn_id = gone.turn_id
), messages_gone AS (
    DELETE FROM task_messages USING gone WHERE task_messages.attempt_id = gone.id
)
DELETE FROM steps USING gone WHERE steps.attempt_id = gone.id;

-- name: delete_tasks
-- After the attempts. A queued task has a request and no attempt.
WITH gone AS (
    DELETE FROM tasks WHERE tenant = :tenant AND session_id = :session RETURNING id, turn_id
), claims_gone AS (
    DELETE FROM claims USING gone WHERE claims.task_id = gone.id
)
DELETE FROM requests USING gone WHERE requests.turn_id = gone.turn_id;

-- name: delete_traces
WITH queued_gone AS (
    DELETE FROM queued WHERE session_id = :session
), questions_gone AS (
    DELETE FROM questions WHERE session_id = :session
), pointers_gone AS (
    DELETE FROM pointers WHERE session_id = :session
), snapshots_gone AS (
    DELETE FROM snapshots WHERE session_id = :session
)
DELETE FROM events WHERE session_id = :session;

-- name: erase_turns
-- Walks back from the head of a deleted session and from those of its branches, up to a turn whose own
-- session lives or that a fork starts from: those are needed, with all before them. So are turns with
-- a follower that this walk did not reach, because then another session reaches it.
WITH RECURSIVE reached (id, parent) AS (
    SELECT turns.id, turns.parent FROM turns
    WHERE turns.id IN (SELECT :head::text UNION SELECT head FROM branches WHERE session_id = :session)
      AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = turns.session_id)
      AND NOT EXISTS (SELECT 1 FROM sessions WHERE forked_turn = turns.id)
    UNION
    SELECT turns.id, turns.parent FROM reached JOIN turns ON turns.id = reached.parent
    WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = turns.session_id)
      AND NOT EXISTS (SELECT 1 FROM sessions WHERE forked_turn = turns.id)
), needed (id, parent) AS (
    SELECT reached.id, reached.parent FROM reached JOIN turns AS next ON next.parent = reached.id
    WHERE next.id NOT IN (SELECT id FROM reached)
    UNION
    SELECT turns.id, turns.parent FROM needed JOIN turns ON turns.id = needed.parent
    WHERE turns.id IN (SELECT id FROM reached)
)
DELETE FROM turns WHERE id IN (SELECT id FROM reached EXCEPT SELECT id FROM needed);

-- name: tidy
-- One node at a time: two that tidy different attempts of one session could wait for
-- each other's events. Rows that somebody is writing to are left for the next time: it waits for nobody. The times are
-- sub-selects, because an index can be searched for those and not for a function that moves.
WITH mine AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('lastgood tidy', 0)) AS alone
), old AS MATERIALIZED (
    SELECT attempts.id, attempts.session_id, attempts.last_event, attempts.task_id
    FROM attempts JOIN sessions ON sessions.id = attempts.session_id
    WHERE (SELECT alone FROM mine) AND attempts.ended_at IS NOT NULL AND NOT attempts.tidied
      AND attempts.ended_at < (SELECT clock() - :events_age)
    ORDER BY attempts.ended_at LIMIT :limit FOR NO KEY UPDATE OF sessions, attempts SKIP LOCKED
), dropped AS (
    DELETE FROM events USING old WHERE events.session_id = old.session_id AND events.seq <= old.last_event
    RETURNING 1
), earlier_claims AS (
    -- The newest claim stays with its task: its worker may have slept for days, and what it then reports is kept
    -- beside the task.
    DELETE FROM claims
    WHERE claims.task_id IN (SELECT task_id FROM old)
      AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = claims.task_id AND tasks.claim_token = claims.token)
      AND EXISTS (SELECT 1 FROM attempts
                  WHERE attempts.id = claims.attempt_id AND attempts.ended_at < (SELECT clock() - :events_age))
    RETURNING 1
), marked AS (
    UPDATE attempts SET tidied = true FROM old WHERE attempts.id = old.id RETURNING 1
), noted AS (
    UPDATE sessions SET events_dropped = greatest(events_dropped, gone.last)
    FROM (SELECT session_id, max(last_event) AS last FROM old GROUP BY session_id) AS gone
    WHERE sessions.id = gone.session_id
), settled AS MATERIALIZED (
    -- What is left of committed asks: their keys, once these need not be remembered any more.
    SELECT turn_id FROM requests
    WHERE (SELECT alone FROM mine) AND input IS NULL AND created_at < (SELECT clock() - :keys_age)
    LIMIT :limit FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM requests USING settled WHERE requests.turn_id = settled.turn_id RETURNING 1
), said AS MATERIALIZED (
    SELECT n FROM queued
    WHERE (SELECT alone FROM mine) AND settled_at < (SELECT clock() - :keys_age)
    LIMIT :limit FOR UPDATE SKIP LOCKED
), unsaid AS (
    DELETE FROM queued USING said WHERE queued.n = said.n RETURNING 1
)
SELECT (SELECT count(*) FROM dropped) + (SELECT count(*) FROM marked) + (SELECT count(*) FROM forgotten)
       + (SELECT count(*) FROM unsaid)
       + (SELECT count(*) FROM earlier_claims),
       {relaxed};

-- name: lock_session
-- In a statement of its own, so that the next one sees what was done before the lock was free.
SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :session FOR NO KEY UPDATE;

-- name: insert_queued
-- In a transaction that has locked the session. A key that another session's queue took meanwhile
-- adds nothing.
WITH added AS (
    INSERT INTO queued (tenant, session_id, turn_id, kind, key, fingerprint, caller, end_user, model, agent_key,
                        attempt_id, created_at, input, checksum)
    VALUES (:tenant, :session, :turn, :kind, :key, :fingerprint, :caller, :user, :model, :agent_key,
            :attempt, clock(), :input, :checksum)
    ON CONFLICT (tenant, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING {queued}
), counted AS (
    UPDATE sessions SET has_queued = true
    FROM added WHERE sessions.id = added.session_id AND added.attempt_id IS NOT NULL
)
SELECT * FROM added;

-- name: create_token
INSERT INTO tokens (id, tenant, name, username, worker_id, hash, scopes, created_at, expires_at)
VALUES (:id, :tenant, :name, :user, :worker, :hash, :scopes, clock(), :expires_at)
RETURNING {token};

-- name: revoke_token
UPDATE tokens SET revoked_at = coalesce(revoked_at, clock()) WHERE id = :id
RETURNING {token};

-- name: listed_runtimes
-- A piece of others.
SELECT json_array_elements_text(CAST(CAST(:runtimes AS text) AS json));

-- name: shared_users
-- A piece of others: with whom a runtime is shared.
SELECT json_array_elements_text(CAST(runtimes.shared_with AS json));

-- name: listed_sessions
-- A piece of others.
SELECT json_array_elements_text(CAST(CAST(:sessions AS text) AS json));

-- name: listed_statuses
-- A piece of others.
SELECT json_array_elements_text(CAST(CAST(:statuses AS text) AS json));

-- name: existing_sessions
SELECT id FROM sessions WHERE id = ANY(:sessions::text[]);

-- Writes on SQLite. Each runs inside a transaction of the one writer; the
-- conditions are in the WHERE clauses anyway, because the caller's view is
-- older than the transaction. clock() is the database's time.

-- name: insert_session
-- A piece of others.
INSERT INTO sessions ({new_session},
                      conversation, segment, created_at, updated_at)
VALUES ({new_session_values},
        :conversation, :id, clock(), clock());

-- name: create_session
{insert_session}
ON CONFLICT DO NOTHING
RETURNING {session};

-- name: fork_session
-- A pointer to a turn: no message is copied. A rule that was set since the source was read would be missing
-- in the fork, so then there is no fork.
INSERT INTO sessions ({new_session},
                      forked_session, forked_turn, head, seq, head_hash, segment, created_at, updated_at)
SELECT {new_session_values},
       :source, :head, :head, :seq, :hash, :id, clock(), clock()
WHERE EXISTS (SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :source AND rules = :rules)
RETURNING {session};

-- name: set_title
UPDATE sessions SET title = :title, title_by = :by, event_seq = event_seq + :events
WHERE tenant = :tenant AND id = :session AND (:by = 'person' OR title_by = 'nobody')
RETURNING event_seq;

-- name: set_model
UPDATE sessions SET model = :value WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL;

-- name: set_agent_key
UPDATE sessions SET agent_key = :value WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL;

-- name: set_starred
UPDATE sessions SET starred = :value WHERE tenant = :tenant AND id = :session;

-- name: set_metadata
UPDATE sessions SET metadata = :value WHERE tenant = :tenant AND id = :session;

-- name: set_rules_if_unchanged
-- Who may change what was decided on :expected; another change in between may have added a stronger rule.
UPDATE sessions SET rules = :rules WHERE tenant = :tenant AND id = :session AND rules = :expected;

-- name: place_of_turn
SELECT segment, session_id, seq FROM turns WHERE tenant = :tenant AND id = :turn;

-- name: read_segment
-- The turns of one segment, up to one of them. A chain is a few segments: one for each fork and edit.
-- All turns of a segment belong to one session; one that does not is missing, and that is found out.
SELECT {turn} FROM turns
WHERE tenant = :tenant AND segment = :segment AND session_id = :session AND seq <= :upto AND seq > :after
ORDER BY seq;

-- name: first_of_segment
SELECT seq, parent FROM turns WHERE tenant = :tenant AND segment = :segment ORDER BY seq LIMIT 1;

-- name: turn_in_segment
SELECT {turn} FROM turns WHERE tenant = :tenant AND segment = :segment AND seq = :seq;

-- name: hold_session
-- Begin. Free is decided here and nowhere else.
UPDATE sessions
SET fence = fence + 1, attempt_id = :attempt, holder = :holder, lease_until = clock() + :lease,
    event_seq = event_seq + :events, has_queued = :claims > 0
WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL
  AND (NOT :checks_head OR head IS :expected_head)
RETURNING {session};

-- name: insert_request
INSERT INTO requests (turn_id, tenant, session_id, kind, key, fingerprint, caller, end_user, model, agent_key,
                      after, replaces, expects, options, on_leave, durable, created_at, input, checksum)
VALUES (:turn, :tenant, :session, :kind, :key, :fingerprint, :caller, :user, :override, :asked_agent_key,
        :after, :replaces, :expects, :options, :on_leave, :durable, clock(), :input, :checksum);

-- name: insert_attempt
-- A turn that was committed meanwhile takes no further attempt; neither does one that was tried again meanwhile,
-- if this try adopts the steps of the try before.
INSERT INTO attempts (id, tenant, session_id, turn_id, number, status, base, head, fence, agent_key,
                      agent_digest, model, decision, continues, started_at, request_id)
SELECT :attempt, :tenant, :session, :turn,
       1 + (SELECT coalesce(max(number), 0) FROM attempts WHERE turn_id = :turn),
       'running', :base, :head, :fence, :agent_key, :agent_digest, :model, :decision, :continues, clock(),
       :request_id
WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = :turn)
  AND (:follows IS NULL OR :follows = (SELECT max(number) FROM attempts WHERE turn_id = :turn))
RETURNING number;

-- name: listed_numbers
-- A piece of others.
SELECT value FROM json_each(:numbers);

-- name: lock_usage
-- Nobody else writes to this file.
SELECT 1;

-- name: adopt_steps
INSERT INTO steps (attempt_id, n, kind, input_tokens, output_tokens, cost, body, checksum)
SELECT :attempt, n, kind, input_tokens, output_tokens, cost, body, checksum
FROM steps WHERE attempt_id = :continues;

-- name: take_followup
UPDATE queued SET attempt_id = :attempt
WHERE tenant = :tenant AND session_id = :session AND n = :takes AND turn_id = :turn
  AND settled_at IS NULL AND attempt_id IS NULL AND parked IS NULL;

-- name: reclaim_steer
UPDATE queued SET kind = 'steer', journaled = true, attempt_id = :attempt
WHERE tenant = :tenant AND session_id = :session AND n = :number AND settled_at IS NULL AND attempt_id IS NULL;

-- name: journal_steer
UPDATE queued SET journaled = true
WHERE n = :number AND attempt_id = :attempt AND kind = 'steer' AND settled_at IS NULL;

-- name: insert_event
INSERT INTO events (session_id, seq, kind, attempt_id, created_at, body)
VALUES (:session, :seq, :kind, :attempt, coalesce(:at, clock()), :body);

-- name: read_events
-- The reader takes one row after the other, and ends the page itself when it is large enough.
SELECT seq, kind, attempt_id, body, created_at FROM events
WHERE session_id = :session AND seq > :after
  AND EXISTS (SELECT 1 FROM sessions WHERE id = :session AND tenant = :tenant)
ORDER BY seq LIMIT :limit;

-- name: touch_if_held
-- Reserves event numbers, and is the fence check of every write of an attempt. The batch is compared
-- here, too: one whose answer was lost is sent again, and must not be stored twice.
UPDATE sessions SET event_seq = event_seq + :events, batch = coalesce(:batch, batch)
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
  AND lease_until IS NOT NULL AND (:batch IS NULL OR batch < :batch)
RETURNING event_seq;

-- name: insert_step
INSERT INTO steps (attempt_id, n, kind, input_tokens, output_tokens, cost, body, checksum)
VALUES (:attempt, 1 + (SELECT coalesce(max(n), 0) FROM steps WHERE attempt_id = :attempt),
        :kind, :input_tokens, :output_tokens, :cost, :body, :checksum);

-- name: commit_head
-- The one statement that moves a head. Head, fence and attempt are compared here,
-- not in an `if` above: two nodes can both read turn 7, and only one may go on from it.
-- The expected head is not the turn's parent: an edit goes on from an earlier turn, in a new segment.
-- The parent is what the attempt was begun for, or a wrong one would pass for an edit.
UPDATE sessions
SET head = :turn, seq = :seq, head_hash = :hash,
    segment = CASE WHEN :replaces IS NULL THEN segment ELSE :turn END, attempt_id = NULL, holder = NULL, lease_until = NULL,
    model = coalesce(:override, model), agent_key = coalesce(:binds, agent_key),
    event_seq = event_seq + :events,
    input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens,
    cost = cost + :cost, stored_bytes = stored_bytes + length(:body), updated_at = :now
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
  AND head IS :expected_head AND lease_until IS NOT NULL
  AND EXISTS (SELECT 1 FROM attempts WHERE id = :attempt AND orphaned = 0 AND base IS :base)
RETURNING event_seq, has_queued, segment;

-- name: keep_branch
-- In the commit that replaces it: what was the head is still there, under a name that says what it is.
INSERT INTO branches (tenant, session_id, head, seq, after, replaced_by, created_at)
SELECT :tenant, :session, id, seq, :base, :turn, clock() FROM turns WHERE id = :replaces;

-- name: forget_input
UPDATE requests SET input = NULL WHERE turn_id = :turn;

-- name: is_orphaned
SELECT 1 FROM attempts JOIN sessions ON sessions.attempt_id = attempts.id AND sessions.fence = :fence
WHERE attempts.tenant = :tenant AND attempts.id = :attempt AND attempts.orphaned = 1;

-- name: free_session
-- Ends a hold without a commit. Nothing of the history is named here.
UPDATE sessions SET attempt_id = NULL, holder = NULL, lease_until = NULL, event_seq = event_seq + :events
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
  AND (NOT :only_if_expired OR lease_until < clock()
       OR EXISTS (SELECT 1 FROM attempts WHERE id = :attempt AND deadline < clock()))
RETURNING event_seq, has_queued;

-- name: end_attempt
-- The question that it waits with stays: it says which calls have not begun.
UPDATE attempts
SET status = :status, error_code = :code, error_message = :message, died = :died, deadline = NULL,
    last_event = :last_event, ended_at = clock()
WHERE id = :attempt AND ended_at IS NULL;

-- name: give_lease_back
UPDATE sessions SET lease_until = NULL, holder = NULL, event_seq = event_seq + :events
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence
  AND lease_until IS NOT NULL
RETURNING event_seq;

-- name: set_waiting
UPDATE attempts SET status = 'waiting', question = :question, deadline = clock() + :seconds
WHERE id = :attempt AND status = 'running';

-- name: hold_again
-- The deadline is judged here: between it and the sweep that ends the attempt, an answer comes too late.
UPDATE sessions SET fence = fence + 1, holder = :holder, lease_until = clock() + :lease
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence AND lease_until IS NULL
  AND EXISTS (SELECT 1 FROM attempts WHERE attempts.id = :attempt AND deadline >= clock())
RETURNING fence;

-- name: set_running
UPDATE attempts SET status = 'running', fence = :fence, question = NULL, deadline = NULL
WHERE id = :attempt AND status = 'waiting';

-- name: set_orphaned
UPDATE attempts SET orphaned = :orphaned
WHERE tenant = :tenant AND id = :attempt AND fence = :fence AND ended_at IS NULL;

-- name: ask_cancel
UPDATE attempts SET cancel_asked = 1
WHERE tenant = :tenant AND id = :attempt AND fence = :fence AND ended_at IS NULL;

-- name: renew_lease
UPDATE sessions SET lease_until = clock() + :lease
WHERE tenant = :tenant AND id = :session AND attempt_id = :attempt AND fence = :fence AND lease_until IS NOT NULL;

-- name: expired_attempts
SELECT {attempt} FROM attempts JOIN sessions ON sessions.id = attempts.session_id
WHERE attempts.ended_at IS NULL AND sessions.attempt_id = attempts.id
  AND attempts.task_id IS NULL AND (sessions.lease_until < clock() OR attempts.deadline < clock())
LIMIT :limit;

-- name: is_expired
SELECT 1 FROM sessions WHERE id = :session AND lease_until < clock();

-- name: attempt_age
SELECT clock() - ended_at FROM attempts
WHERE tenant = :tenant AND turn_id = :turn AND ended_at IS NOT NULL
  AND number = (SELECT max(number) FROM attempts WHERE turn_id = :turn);

-- name: delete_session
DELETE FROM sessions WHERE tenant = :tenant AND id = :session
  AND (:unused_since IS NULL
       OR (attempt_id IS NULL AND NOT starred AND updated_at < :unused_since
           AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = :tenant AND tasks.session_id = sessions.id
                             AND tasks.ended_at IS NULL)))
RETURNING head;

-- name: delete_steps
DELETE FROM steps WHERE attempt_id IN (SELECT id FROM attempts WHERE session_id = :session);

-- name: delete_attempts
DELETE FROM attempts WHERE session_id = :session;

-- name: delete_requests
-- The request of a queued task has no attempt yet.
DELETE FROM requests WHERE turn_id IN (
    SELECT turn_id FROM attempts WHERE session_id = :session
    UNION ALL SELECT turn_id FROM tasks WHERE tenant = :tenant AND session_id = :session);

-- name: delete_claims
DELETE FROM claims WHERE task_id IN (SELECT id FROM tasks WHERE tenant = :tenant AND session_id = :session);

-- name: delete_task_messages
DELETE FROM task_messages WHERE attempt_id IN (SELECT id FROM attempts WHERE session_id = :session);

-- name: delete_questions
DELETE FROM questions WHERE session_id = :session;

-- name: delete_pointers
DELETE FROM pointers WHERE session_id = :session;

-- name: delete_snapshots
DELETE FROM snapshots WHERE session_id = :session;

-- name: delete_tasks
DELETE FROM tasks WHERE tenant = :tenant AND session_id = :session;

-- name: delete_events
DELETE FROM events WHERE session_id = :session;

-- name: delete_queued
DELETE FROM queued WHERE session_id = :session;

-- name: erase_turns
-- Walks back from the head of a deleted session and from those of its branches, up to a turn whose own
-- session lives or that a fork starts from: those are needed, with all before them. So are turns with
-- a follower that this walk did not reach, because then another session reaches it.
WITH RECURSIVE reached (id, parent) AS (
    SELECT turns.id, turns.parent FROM turns
    WHERE turns.id IN (SELECT :head UNION SELECT head FROM branches WHERE session_id = :session)
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

-- name: tidy_attempts
SELECT id, session_id, last_event, task_id FROM attempts
WHERE ended_at IS NOT NULL AND tidied = 0 AND ended_at < clock() - :age ORDER BY ended_at LIMIT :limit;

-- name: tidy_events
DELETE FROM events WHERE session_id = :session AND seq <= :last;

-- name: tidy_claims
-- Earlier claims of the task. The newest one stays with it: its worker may have slept for days, and what it then
-- reports is kept beside the task.
DELETE FROM claims
WHERE task_id = :task
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = claims.task_id AND tasks.claim_token = claims.token)
  AND EXISTS (SELECT 1 FROM attempts WHERE attempts.id = claims.attempt_id AND attempts.ended_at < clock() - :age);

-- name: mark_dropped
UPDATE sessions SET events_dropped = max(events_dropped, :last) WHERE id = :session;

-- name: mark_tidied
UPDATE attempts SET tidied = 1 WHERE id = :attempt;

-- name: tidy_requests
-- What is left of committed asks: their keys, once these need not be remembered any more.
DELETE FROM requests WHERE turn_id IN (
    SELECT turn_id FROM requests WHERE input IS NULL AND created_at < clock() - :age LIMIT :limit);

-- name: tidy_queued
DELETE FROM queued WHERE n IN (SELECT n FROM queued WHERE settled_at < clock() - :age LIMIT :limit);

-- name: insert_queued
INSERT INTO queued (tenant, session_id, turn_id, kind, key, fingerprint, caller, end_user, model, agent_key,
                    attempt_id, created_at, input, checksum)
VALUES (:tenant, :session, :turn, :kind, :key, :fingerprint, :caller, :user, :model, :agent_key,
        :attempt, clock(), :input, :checksum)
RETURNING {queued};

-- name: hand_over
UPDATE sessions SET has_queued = true WHERE id = :session;

-- name: create_token
INSERT INTO tokens (id, tenant, name, username, worker_id, hash, scopes, created_at, expires_at)
VALUES (:id, :tenant, :name, :user, :worker, :hash, :scopes, clock(), :expires_at)
RETURNING {token};

-- name: revoke_token
UPDATE tokens SET revoked_at = coalesce(revoked_at, clock()) WHERE id = :id
RETURNING {token};

-- name: listed_runtimes
-- A piece of others.
SELECT value FROM json_each(:runtimes);

-- name: shared_users
-- A piece of others: with whom a runtime is shared.
SELECT value FROM json_each(runtimes.shared_with);

-- name: listed_sessions
-- A piece of others.
SELECT value FROM json_each(:sessions);

-- name: listed_statuses
-- A piece of others.
SELECT value FROM json_each(:statuses);

-- name: existing_sessions
SELECT id FROM sessions WHERE id IN (SELECT value FROM json_each(:sessions));

-- Claims and what is reported under them, on both databases. The transactions are in store/claims.py,
-- task_ends.py, questions.py and pointers.py.

-- name: claimable_groups
-- A piece of claims: what the newest process of a worker may claim from, and the first unfinished task of each
-- agent and priority there. The index is searched once for each of these, however many tasks wait.
moment AS MATERIALIZED (
    SELECT clock() AS now
), own AS MATERIALIZED (
    SELECT runtimes.id FROM workers
    JOIN runtimes ON runtimes.tenant = workers.tenant AND runtimes.worker_id = workers.id
    WHERE workers.tenant = :tenant AND workers.id = :worker AND workers.owner = :owner AND workers.epoch = :epoch
      AND runtimes.removed_at IS NULL AND runtimes.id IN ({listed_runtimes})
), heads (n) AS (
    SELECT (SELECT tasks.n FROM tasks WHERE tasks.runtime_id = own.id AND tasks.ended_at IS NULL
            ORDER BY tasks.agent_key, tasks.priority, tasks.n LIMIT 1)
    FROM own
    UNION ALL
    SELECT (SELECT tasks.n FROM tasks
            WHERE tasks.runtime_id = head.runtime_id AND tasks.ended_at IS NULL
              AND (tasks.agent_key, tasks.priority) > (head.agent_key, head.priority)
            ORDER BY tasks.agent_key, tasks.priority, tasks.n LIMIT 1)
    FROM heads JOIN tasks AS head ON head.n = heads.n
);

-- name: is_due
-- A piece of claims, for unfinished tasks. An expired lease makes a task claimable, and does nothing else.
CASE WHEN tasks.status IN ('queued', 'deferred')
     THEN NOT tasks.held AND (tasks.due_at IS NULL OR tasks.due_at <= (SELECT now FROM moment))
          AND (tasks.expires_at IS NULL OR tasks.expires_at > (SELECT now FROM moment))
     ELSE tasks.lease_until < (SELECT now FROM moment) END;

-- name: first_of_group
-- A piece of claims: the first tasks of a group that are the first unfinished one of their session, which nobody
-- else holds. Within a group, the one that was queued first is the most urgent. Each CASE is taken for one of two
-- to be true: PostgreSQL then reads the group in the order of the index and stops early. Told the conditions one
-- by one, it expects so few matches that it reads and sorts the whole group.
SELECT tasks.n FROM tasks
WHERE tasks.tenant = :tenant AND tasks.runtime_id = head.runtime_id AND tasks.agent_key = head.agent_key
  AND tasks.priority = head.priority AND tasks.ended_at IS NULL AND {is_due}
  AND CASE WHEN EXISTS (SELECT 1 FROM tasks AS earlier
                        WHERE earlier.tenant = tasks.tenant AND earlier.session_id = tasks.session_id
                          AND earlier.ended_at IS NULL AND earlier.n < tasks.n)
           THEN false
           ELSE EXISTS (SELECT 1 FROM sessions
                        WHERE sessions.id = tasks.session_id
                          AND (sessions.attempt_id IS NULL OR sessions.attempt_id = tasks.attempt_id)) END
ORDER BY tasks.n LIMIT :looked_at;

-- name: end_expired_attempt
UPDATE attempts
SET status = :status, question = NULL, deadline = NULL, ended_at = clock(),
    last_event = (SELECT event_seq FROM sessions WHERE sessions.id = attempts.session_id)
WHERE tenant = :tenant AND id = :attempt AND ended_at IS NULL;

-- name: free_expired_session
-- Before the end of its attempt, which holds the number of its last event. Whoever watched the attempt may have
-- seen events that a power cut took, so their numbers are skipped.
UPDATE sessions
SET attempt_id = NULL, holder = NULL, lease_until = NULL, event_seq = event_seq + :numbers
WHERE tenant = :tenant AND id = :session AND attempt_id = :expired
RETURNING event_seq;

-- name: hold_for_claim
-- Without end: the lease of the task says when it may be claimed again.
UPDATE sessions
SET fence = fence + 1, attempt_id = :attempt, holder = :worker, lease_until = :forever, has_queued = false
WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL
RETURNING {session};

-- name: insert_claim_attempt
INSERT INTO attempts (id, tenant, session_id, turn_id, number, status, base, head, fence, agent_key, agent_digest,
                      model, decision, task_id, started_at)
VALUES (:attempt, :tenant, :session, :turn,
        1 + (SELECT coalesce(max(number), 0) FROM attempts WHERE turn_id = :turn),
        'running', :base, :head, :fence, :agent_key, '', :model, '{{}}', :task, clock())
RETURNING {attempt};

-- name: insert_claim
INSERT INTO claims (token, tenant, task_id, attempt_id, worker_id, epoch, created_at)
VALUES (:token, :tenant, :task, :attempt, :worker, :epoch, clock());

-- name: claim_task
-- A claim that was never confirmed was never sent, so it is not lost.
UPDATE tasks
SET lost_claims = lost_claims
                  + CASE WHEN status IN ('claimed', 'running', 'waiting') AND decision <> '{{}}' THEN 1 ELSE 0 END,
    tried_since = coalesce(tried_since, clock()), status = 'claimed', claim_token = :token, worker_id = :worker, worker_epoch = :epoch, attempt_id = :attempt,
    claims = claims + 1, lease_until = clock() + :lease, deadline_at = clock() + :lease + deadline_seconds,
    due_at = NULL, why = '', cancel_seen = false, decision = '{{}}'
WHERE tenant = :tenant AND id = :task
RETURNING {task};

-- name: fail_unreadable_task
UPDATE tasks
SET status = 'failed', error_code = :code, error_message = :message, held = false, due_at = NULL,
    lease_until = NULL, deadline_at = NULL, ended_at = clock()
WHERE tenant = :tenant AND id = :task;

-- name: decide_attempt
UPDATE attempts
SET decision = :decision, agent_digest = coalesce(nullif(:agent_digest, ''), agent_digest),
    model = coalesce(nullif(:model, ''), model)
WHERE tenant = :tenant AND id = :attempt AND ended_at IS NULL;

-- name: confirm_claim
UPDATE tasks
SET decision = :decision, lease_until = clock() + :lease, deadline_at = clock() + deadline_seconds
WHERE tenant = :tenant AND id = (SELECT task_id FROM claims WHERE token = :token)
  AND claim_token = :token AND attempt_id = :attempt AND status IN ('claimed', 'running', 'waiting')
RETURNING id;

-- name: find_claim
SELECT claims.attempt_id, tasks.claim_token = claims.token, claims.report, {task}
FROM claims
JOIN tasks ON tasks.id = claims.task_id
JOIN workers ON workers.tenant = claims.tenant AND workers.id = claims.worker_id
WHERE claims.tenant = :tenant AND claims.token = :token AND claims.task_id = :task
  AND workers.owner = :owner AND (claims.worker_id = :worker OR CAST(:worker AS TEXT) IS NULL);

-- name: find_held_task
SELECT {task} FROM tasks
WHERE id = (SELECT task_id FROM claims WHERE token = :token)
  AND claim_token = :token AND status IN ('claimed', 'running', 'waiting');

-- name: is_current
SELECT 1 FROM tasks
WHERE tenant = :tenant AND id = :task AND claim_token = :token AND status IN ('claimed', 'running', 'waiting');

-- name: start_task
UPDATE tasks SET status = CASE WHEN status = 'claimed' THEN 'running' ELSE status END
WHERE tenant = :tenant AND id = :task AND claim_token = :token AND status IN ('claimed', 'running', 'waiting')
RETURNING id;

-- name: end_claim
-- Expiry starts again for a task that is tried again, and not for one whose claim was given back: nothing ran, so it
-- still waits for its first claim. A worker that reports the end needs no word of it.
UPDATE tasks
SET status = :status, why = :why, held = false, error_code = :code, error_message = :message,
    failures = failures + :failures, due_at = clock() + CAST(:due_seconds AS double precision),
    expires_at = CASE WHEN :is_over OR :status = 'queued' THEN expires_at
                 ELSE clock() + coalesce(CAST(:due_seconds AS double precision), 0) + max_wait_seconds END,
    lease_until = NULL, deadline_at = NULL, cancel_seen = :by_worker,
    ended_at = CASE WHEN :is_over THEN clock() END
WHERE tenant = :tenant AND id = :task AND attempt_id = :attempt AND status IN ('claimed', 'running', 'waiting')
  AND (NOT :by_worker OR claim_token = :token)
RETURNING id;

-- name: note_run
UPDATE attempts
SET cli_version = coalesce(nullif(:cli_version, ''), cli_version), ran_tools = ran_tools OR :ran_tools
WHERE tenant = :tenant AND id = :attempt;

-- name: store_report
UPDATE claims SET report = :report WHERE token = :token AND task_id = :task AND report IS NULL;

-- name: may_point
-- The current claim; or the newest one of a task that somebody else has ended, as long as no newer attempt of
-- the session has a pointer.
SELECT 1 FROM tasks JOIN claims ON claims.token = tasks.claim_token
WHERE tasks.tenant = :tenant AND tasks.id = :task AND tasks.claim_token = :token
  AND (tasks.status IN ('claimed', 'running', 'waiting')
       OR tasks.ended_at IS NOT NULL AND claims.report IS NULL
          AND NOT EXISTS (SELECT 1 FROM pointers JOIN attempts ON attempts.id = pointers.attempt_id
                          WHERE pointers.session_id = tasks.session_id AND attempts.fence > :fence));

-- name: put_pointer
-- One row for one attempt, with what the rows of the attempt and the runtime say now: nothing can be mispaired.
INSERT INTO pointers (tenant, session_id, agent_key, task_id, attempt_id, native_session, runtime_id, worker_id,
                      provider, account, format, work_dir, base_turn, through_turn, outcome, agent_digest, dirty,
                      created_at)
SELECT tasks.tenant, tasks.session_id, tasks.agent_key, tasks.id, attempts.id, :native_session, tasks.runtime_id,
       claims.worker_id, coalesce(runtimes.provider, ''), coalesce(runtimes.account, ''),
       coalesce(runtimes.format, ''), :work_dir, attempts.base, :through, :outcome, attempts.agent_digest, :dirty,
       clock()
FROM tasks
JOIN attempts ON attempts.id = :attempt AND attempts.task_id = tasks.id
JOIN claims ON claims.attempt_id = attempts.id
LEFT JOIN runtimes ON runtimes.tenant = tasks.tenant AND runtimes.id = tasks.runtime_id
WHERE tasks.tenant = :tenant AND tasks.id = :task
ON CONFLICT (attempt_id) DO UPDATE
SET native_session = coalesce(excluded.native_session, pointers.native_session),
    work_dir = coalesce(excluded.work_dir, pointers.work_dir),
    -- Another native session has not seen what the pinned one has.
    through_turn = CASE WHEN excluded.native_session <> pointers.native_session THEN excluded.through_turn
                   ELSE coalesce(excluded.through_turn, pointers.through_turn) END,
    agent_digest = excluded.agent_digest, outcome = excluded.outcome, dirty = excluded.dirty;

-- name: retire_of_task
UPDATE pointers SET retired = :reason
WHERE tenant = :tenant AND native_session = :native_session AND retired IS NULL
  AND session_id = (SELECT tasks.session_id FROM tasks WHERE tasks.id = :task)
  AND runtime_id = (SELECT tasks.runtime_id FROM tasks WHERE tasks.id = :task);

-- name: retire_native_session
UPDATE pointers SET retired = :reason
WHERE tenant = :tenant AND session_id = :session AND runtime_id IS NOT DISTINCT FROM :runtime
  AND native_session = :native_session AND retired IS NULL
RETURNING n;

-- name: list_pointers
SELECT {pointer} FROM pointers WHERE tenant = :tenant AND session_id = :session ORDER BY n DESC LIMIT :limit;

-- name: last_message
SELECT coalesce(max(seq), 0) FROM task_messages WHERE attempt_id = :attempt;

-- name: newest_message
SELECT seq, body FROM task_messages WHERE attempt_id = :attempt ORDER BY seq DESC LIMIT 1;

-- name: delete_message
DELETE FROM task_messages WHERE attempt_id = :attempt AND seq = :seq;

-- name: activity_bytes
SELECT activity_bytes FROM attempts WHERE tenant = :tenant AND id = :attempt;

-- name: note_activity
UPDATE attempts SET activity_bytes = activity_bytes + :bytes, ran_tools = ran_tools OR :ran_tools
WHERE tenant = :tenant AND id = :attempt AND (:bytes > 0 OR :ran_tools);

-- name: insert_message
INSERT INTO task_messages (attempt_id, seq, created_at, body) VALUES (:attempt, :seq, clock(), :body);

-- name: read_messages
SELECT task_messages.seq, task_messages.body, task_messages.created_at
FROM task_messages JOIN attempts ON attempts.id = task_messages.attempt_id
WHERE attempts.tenant = :tenant AND task_messages.attempt_id = :attempt AND task_messages.seq > :after
ORDER BY task_messages.seq LIMIT :limit;

-- name: question_of_attempt
SELECT {question} FROM questions WHERE tenant = :tenant AND attempt_id = :attempt AND id = :question;

-- name: task_waits
UPDATE tasks SET status = 'waiting'
WHERE tenant = :tenant AND id = :task AND claim_token = :token AND status IN ('claimed', 'running', 'waiting')
RETURNING id;

-- name: insert_question
INSERT INTO questions (id, tenant, task_id, attempt_id, session_id, body, status, deadline_at, created_at)
VALUES (:question, :tenant, :task, :attempt, :session, :body, 'pending', clock() + :seconds, clock())
RETURNING {question};

-- name: answer_question
UPDATE questions SET status = 'answered', answer = :answer, answered_by = :by
WHERE tenant = :tenant AND task_id = :task AND id = :question AND status = 'pending' AND deadline_at >= clock()
RETURNING {question};

-- name: expire_question
UPDATE questions SET status = 'expired'
WHERE tenant = :tenant AND task_id = :task AND id = :question AND status = 'pending' AND deadline_at < clock()
RETURNING {question};

-- name: task_runs_on
UPDATE tasks SET status = 'running'
WHERE tenant = :tenant AND id = :task AND status = 'waiting'
  AND NOT EXISTS (SELECT 1 FROM questions
                  WHERE questions.task_id = tasks.id AND questions.attempt_id = tasks.attempt_id
                    AND questions.status = 'pending');

-- name: withdraw_questions
UPDATE questions SET status = 'withdrawn' WHERE tenant = :tenant AND attempt_id = :attempt AND status = 'pending';

-- name: list_questions
SELECT {question} FROM questions
WHERE tenant = :tenant AND session_id = :session AND status = 'pending' ORDER BY created_at, id;

-- name: get_question
-- Of the newest attempt that asked it.
SELECT {question} FROM questions JOIN attempts ON attempts.id = questions.attempt_id
WHERE questions.tenant = :tenant AND questions.task_id = :task AND questions.id = :question
ORDER BY attempts.fence DESC LIMIT 1;

-- name: questions_past_deadline
SELECT tenant, task_id, id FROM questions
WHERE status = 'pending' AND deadline_at < (SELECT clock()) ORDER BY deadline_at LIMIT :limit;

-- name: size_of_snapshot
SELECT length(body) FROM snapshots WHERE attempt_id = :attempt;

-- name: put_snapshot
INSERT INTO snapshots (attempt_id, tenant, session_id, turn_id, kind, summary, created_at, body)
VALUES (:attempt, :tenant, :session, :turn, :kind, :summary, clock(), :body)
ON CONFLICT (attempt_id) DO UPDATE
SET kind = excluded.kind, summary = excluded.summary, created_at = excluded.created_at, body = excluded.body;

-- name: add_stored_bytes
UPDATE sessions SET stored_bytes = stored_bytes + :bytes WHERE tenant = :tenant AND id = :session;

-- name: get_snapshot
SELECT {snapshot} FROM snapshots WHERE tenant = :tenant AND attempt_id = :attempt;

-- name: summary_of_snapshot
SELECT {snapshot_summary} FROM snapshots WHERE tenant = :tenant AND attempt_id = :attempt;

-- name: committed_snapshots
-- Those that can be restored. Only the attempt that was committed speaks for its turn.
SELECT turns.seq, {snapshot_summary}
FROM snapshots JOIN turns ON turns.id = snapshots.turn_id AND turns.attempt_id = snapshots.attempt_id
WHERE snapshots.tenant = :tenant AND snapshots.session_id = :session AND length(snapshots.body) > 0;

-- name: outdated_snapshots
-- Those of attempts that were not committed, and of all but the newest turns. The newest one before each turn that
-- a fork starts from stays.
WITH committed AS MATERIALIZED (
    SELECT snapshots.attempt_id, turns.seq
    FROM snapshots JOIN turns ON turns.id = snapshots.turn_id AND turns.attempt_id = snapshots.attempt_id
    WHERE snapshots.tenant = :tenant AND snapshots.session_id = :session AND length(snapshots.body) > 0
), kept (attempt_id) AS (
    SELECT attempt_id FROM (SELECT attempt_id FROM committed ORDER BY seq DESC LIMIT :most) AS newest
    UNION
    SELECT (SELECT committed.attempt_id FROM committed WHERE committed.seq <= turns.seq
            ORDER BY committed.seq DESC LIMIT 1)
    FROM sessions JOIN turns ON turns.id = sessions.forked_turn
    WHERE sessions.tenant = :tenant AND sessions.forked_session = :session
)
SELECT snapshots.attempt_id, length(snapshots.body) FROM snapshots
WHERE snapshots.tenant = :tenant AND snapshots.session_id = :session AND length(snapshots.body) > 0
  AND NOT EXISTS (SELECT 1 FROM kept WHERE kept.attempt_id = snapshots.attempt_id);

-- name: empty_snapshot
UPDATE snapshots SET body = :empty WHERE tenant = :tenant AND attempt_id = :attempt;

-- name: insert_audit
INSERT INTO audit (tenant, at, kind, actor, username, subject, detail, machine)
VALUES (:tenant, clock(), :kind, :actor, :user, :subject, :detail, :machine)
RETURNING n;

-- name: list_audit
SELECT n, at, tenant, kind, actor, username, subject, detail, machine FROM audit
WHERE tenant = :tenant AND n > :after
  AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
  AND (CAST(:subject AS TEXT) IS NULL OR subject = :subject)
  AND (CAST(:user AS TEXT) IS NULL OR username = :user)
ORDER BY n LIMIT :limit;

-- name: ended_ephemeral
SELECT tenant, id FROM sessions
WHERE id IN (SELECT session_id FROM tasks WHERE ephemeral AND ended_at < clock() - :age)
LIMIT :limit;

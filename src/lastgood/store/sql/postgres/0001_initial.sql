-- compatible-from: 1
-- The schema of the whole mission. A session is a chain of immutable turns and a
-- head; everything else is either beside the history or about who may extend it.
-- Times are seconds since the epoch, for people. No time orders anything.
-- Tables and columns are those of the SQLite schema; JSON is text there and here.

-- The database's own time: leases are judged by it on every node, whatever the nodes' clocks say.
CREATE FUNCTION clock() RETURNS DOUBLE PRECISION LANGUAGE sql VOLATILE
AS 'SELECT extract(epoch FROM clock_timestamp())::double precision';

CREATE TABLE sessions (
    n              BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,  -- orders lists, because no clock may
    id             TEXT NOT NULL UNIQUE,
    tenant         TEXT NOT NULL,
    agent_key      TEXT NOT NULL,
    title          TEXT NOT NULL DEFAULT '',
    title_by       TEXT NOT NULL DEFAULT 'nobody' CHECK (title_by IN ('nobody', 'us', 'person')),
    model          TEXT,                    -- an override that was committed with a turn
    working_dir    TEXT,
    rules          TEXT NOT NULL DEFAULT '[]',  -- in layers, each with the scope that set it
    starred        BOOLEAN NOT NULL DEFAULT false,
    metadata       TEXT NOT NULL DEFAULT '{}',
    created_by     TEXT NOT NULL DEFAULT '',  -- the token that made it
    stored_bytes   BIGINT NOT NULL DEFAULT 0,  -- of its committed turns, and of what a fork started from
    conversation   TEXT,                    -- the name a /v1 client gave it
    scope_kind     TEXT,
    scope_id       TEXT,
    owner          TEXT NOT NULL DEFAULT '',  -- the user who made it
    runtime_id     TEXT,                    -- of its newest task; who may use that one may read the session
    runtime_pinned BOOLEAN NOT NULL DEFAULT false,  -- it was bound to this runtime by itself, whatever its agent is bound to
    forked_session TEXT,
    forked_turn    TEXT,                    -- keeps that turn and all before it from being erased
    head           TEXT,
    seq            BIGINT NOT NULL DEFAULT 0,
    head_hash      BYTEA,
    segment        TEXT NOT NULL,           -- of the turn that comes next
    fence          BIGINT NOT NULL DEFAULT 0,
    attempt_id     TEXT,                    -- who holds it; NULL: free
    has_queued     BOOLEAN NOT NULL DEFAULT false,  -- whether who holds it has something of the queue
    holder         TEXT,
    lease_until    DOUBLE PRECISION,        -- NULL while held: waiting for a person
    event_seq      BIGINT NOT NULL DEFAULT 0,
    batch          BIGINT NOT NULL DEFAULT 0,  -- the last one that an attempt stored; repeated, it finds itself here
    events_dropped BIGINT NOT NULL DEFAULT 0,  -- up to here they have been tidied away
    input_tokens   BIGINT NOT NULL DEFAULT 0,
    output_tokens  BIGINT NOT NULL DEFAULT 0,
    cost           DOUBLE PRECISION NOT NULL DEFAULT 0,
    created_at     DOUBLE PRECISION NOT NULL,
    updated_at     DOUBLE PRECISION NOT NULL,
    CHECK ((head IS NULL) = (seq = 0)),
    CHECK ((head IS NULL) = (head_hash IS NULL)),
    CHECK (attempt_id IS NOT NULL OR lease_until IS NULL)
) WITH (fillfactor = 80);
-- No index names a column that begin, commit, events or leases change: with room
-- in the page (fillfactor) all of them are HOT updates, which touch no index at
-- all. Who holds sessions is found through attempts_live.
CREATE INDEX sessions_by_tenant ON sessions (tenant, n);
CREATE UNIQUE INDEX sessions_by_conversation ON sessions (tenant, conversation) WHERE conversation IS NOT NULL;
CREATE UNIQUE INDEX sessions_by_scope ON sessions (tenant, scope_kind, scope_id, agent_key) WHERE scope_kind IS NOT NULL;
CREATE INDEX sessions_by_fork ON sessions (forked_turn) WHERE forked_turn IS NOT NULL;
CREATE INDEX sessions_by_source ON sessions (forked_session) WHERE forked_session IS NOT NULL;

CREATE TABLE turns (
    id            TEXT NOT NULL UNIQUE,     -- minted at begin; the chain takes it at most once
    tenant        TEXT NOT NULL,
    session_id    TEXT NOT NULL,            -- where it was committed; may be deleted while a fork lives
    seq           BIGINT NOT NULL CHECK (seq > 0),
    segment       TEXT NOT NULL,            -- a run of turns without siblings: each create, fork and edit starts one
    parent        TEXT,
    attempt_id    TEXT NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('run', 'append', 'reset')),
    hash          BYTEA NOT NULL,
    agent_key     TEXT NOT NULL,
    agent_digest  TEXT NOT NULL,
    model         TEXT NOT NULL,
    decision      TEXT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost          DOUBLE PRECISION NOT NULL,
    created_at    DOUBLE PRECISION NOT NULL,
    end_user      TEXT NOT NULL,            -- whom its caller spoke for
    inputs        INTEGER NOT NULL,         -- so many of its messages were said to the agent
    body          BYTEA NOT NULL,
    UNIQUE (segment, seq),
    CHECK ((parent IS NULL) = (seq = 1))
);
CREATE INDEX turns_by_parent ON turns (parent);  -- what comes after a turn keeps it from being erased
CREATE INDEX turns_by_user ON turns (tenant, end_user, session_id) WHERE end_user <> '';

-- Heads that an edit has replaced. They are not sessions: nobody appends to them, and they end with theirs.
CREATE TABLE branches (
    n           BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant      TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    head        TEXT NOT NULL,
    seq         BIGINT NOT NULL,             -- of the head: how many turns the branch has
    after       TEXT,                       -- the last turn it shares with what replaced it; NULL: none
    replaced_by TEXT NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    UNIQUE (session_id, head)
);
CREATE INDEX branches_by_session ON branches (session_id, n);

CREATE TABLE requests (
    turn_id     TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    kind        TEXT NOT NULL,
    key         TEXT,
    fingerprint TEXT NOT NULL,
    caller      TEXT NOT NULL,
    end_user    TEXT NOT NULL,              -- whom the caller speaks for
    model       TEXT,
    agent_key   TEXT,
    after       TEXT,                       -- an edit: the turn it goes on from; NULL: the beginning
    replaces    TEXT,                       -- an edit: the head that it takes the place of; NULL: no edit
    expects     TEXT,                       -- no edit: the head it must begin at; '': no turn yet; NULL: any
    options     TEXT,                       -- what it asks of the model beside its messages
    on_leave    TEXT NOT NULL CHECK (on_leave IN ('continue', 'orphan', 'cancel')),
    durable    BOOLEAN NOT NULL,
    closed      BOOLEAN NOT NULL DEFAULT false,  -- a later request had the same body, so no retry means this one
    created_at  DOUBLE PRECISION NOT NULL,
    input       BYTEA,                      -- NULL once the turn that holds it is committed
    checksum    BYTEA NOT NULL              -- of what was asked, and after it of the input
);
CREATE UNIQUE INDEX requests_by_key ON requests (tenant, key) WHERE key IS NOT NULL;
-- An SDK's retry has no key; it is found by its body. Other requests are not in here.
CREATE INDEX requests_by_body ON requests (session_id, fingerprint) WHERE on_leave = 'orphan' AND NOT closed;
CREATE INDEX requests_settled ON requests (created_at) WHERE input IS NULL;
CREATE INDEX requests_durable ON requests (turn_id) WHERE durable AND input IS NOT NULL;

CREATE TABLE attempts (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    turn_id       TEXT NOT NULL,
    number        INTEGER NOT NULL,
    status        TEXT NOT NULL CHECK (status IN
                  ('running', 'waiting', 'committed', 'failed', 'cancelled', 'interrupted', 'superseded')),
    base          TEXT,                     -- the turn it goes on from
    head          TEXT,                     -- the session's when it began; not its base: an edit
    fence         BIGINT NOT NULL,
    agent_key     TEXT NOT NULL,
    agent_digest  TEXT NOT NULL,
    model         TEXT NOT NULL,
    decision      TEXT NOT NULL,
    orphaned      BOOLEAN NOT NULL DEFAULT false,
    cancel_asked  BOOLEAN NOT NULL DEFAULT false,
    question      TEXT,
    deadline      DOUBLE PRECISION,
    error_code    TEXT,
    error_message TEXT,
    continues     TEXT,
    task_id       TEXT,                     -- its holder is a worker's claim: tasks decide when it ends
    request_id    TEXT NOT NULL DEFAULT '',  -- of the HTTP request that began it
    cli_version   TEXT NOT NULL DEFAULT '',  -- of the agent CLI that ran it, as its worker reported it
    ran_tools     BOOLEAN NOT NULL DEFAULT false,  -- on a runtime: its worker reported a tool call
    activity_bytes BIGINT NOT NULL DEFAULT 0,  -- of its messages: store/run_activity.py
    died          BOOLEAN NOT NULL DEFAULT false,  -- ended because its process had died
    last_event    BIGINT,
    tidied        BOOLEAN NOT NULL DEFAULT false,
    started_at    DOUBLE PRECISION NOT NULL,
    ended_at      DOUBLE PRECISION,
    UNIQUE (turn_id, number),
    UNIQUE (session_id, fence),
    CHECK ((ended_at IS NULL) = (status IN ('running', 'waiting'))),
    CHECK ((status = 'waiting') = (deadline IS NOT NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX attempts_live ON attempts (session_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_to_tidy ON attempts (ended_at) WHERE ended_at IS NOT NULL AND NOT tidied;
CREATE INDEX attempts_by_request ON attempts (tenant, request_id) WHERE request_id <> '';
-- Few attempts fail, and the newest of them are what people look at.
CREATE INDEX attempts_failed ON attempts (tenant, ended_at) WHERE status IN ('failed', 'interrupted');

CREATE TABLE steps (
    attempt_id    TEXT NOT NULL,
    n             INTEGER NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('model', 'tool', 'steer', 'hook')),
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost          DOUBLE PRECISION NOT NULL,
    body          BYTEA NOT NULL,
    checksum      BYTEA NOT NULL,           -- of what it says and its session: store/checksums.py
    PRIMARY KEY (attempt_id, n)
);

CREATE TABLE events (
    session_id TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    attempt_id TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    body       BYTEA NOT NULL,
    PRIMARY KEY (session_id, seq)
);

CREATE TABLE queued (
    n           BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,  -- the order in which it was said
    tenant      TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    turn_id     TEXT NOT NULL UNIQUE,       -- minted when it was said; the turn that it is or would be
    kind        TEXT NOT NULL CHECK (kind IN ('steer', 'followup')),
    key         TEXT,
    fingerprint TEXT NOT NULL,
    caller      TEXT NOT NULL,
    end_user    TEXT NOT NULL,
    model       TEXT,
    agent_key   TEXT,
    attempt_id  TEXT,                       -- whose it is until that one ends, or whose it was
    journaled   BOOLEAN NOT NULL DEFAULT false, -- a steer that is in its attempt's journal
    failures    INTEGER NOT NULL DEFAULT 0,
    parked      TEXT,                       -- why it is not tried any more
    created_at  DOUBLE PRECISION NOT NULL,
    settled_at  DOUBLE PRECISION,           -- kept for its key from then on
    input       BYTEA NOT NULL,
    checksum    BYTEA NOT NULL,
    CHECK (kind = 'followup' OR attempt_id IS NOT NULL)
);
CREATE INDEX queued_by_session ON queued (session_id, settled_at, n);
CREATE UNIQUE INDEX queued_by_key ON queued (tenant, key) WHERE key IS NOT NULL;
-- Every end of an attempt looks here, and nearly always finds nothing.
CREATE INDEX queued_by_attempt ON queued (attempt_id) WHERE attempt_id IS NOT NULL AND settled_at IS NULL;
CREATE INDEX queued_to_run ON queued (session_id, n, tenant)
    WHERE settled_at IS NULL AND attempt_id IS NULL AND parked IS NULL;
CREATE INDEX queued_settled ON queued (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX queued_parked ON queued (tenant, n) WHERE settled_at IS NULL AND parked IS NOT NULL;

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL,
    name         TEXT NOT NULL,
    username     TEXT NOT NULL DEFAULT '',  -- the user that it acts as
    worker_id    TEXT,                      -- a worker's token is good for this worker only
    hash         BYTEA NOT NULL UNIQUE,     -- the token itself is stored nowhere
    scopes       TEXT NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    expires_at   DOUBLE PRECISION,
    revoked_at   DOUBLE PRECISION
);

-- A browser's EventSource sends no header, so its address has one of these instead of a token.
CREATE TABLE stream_tickets (
    hash       BYTEA PRIMARY KEY,          -- the ticket itself is stored nowhere
    tenant     TEXT NOT NULL,
    session_id TEXT NOT NULL,               -- the only one whose events it is good for
    token      TEXT NOT NULL,               -- who asked for it: a ticket is worth no more than that token
    username   TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL
);
CREATE INDEX stream_tickets_expired ON stream_tickets (expires_at);

-- What agents keep beyond their sessions: memories and plans. No session owns them, so none takes them along when it
-- is deleted.
CREATE TABLE notes (
    tenant     TEXT NOT NULL,
    agent      TEXT NOT NULL,               -- the key of the agent whose tools wrote it
    space      TEXT NOT NULL,               -- one of its collections
    id         TEXT NOT NULL,
    revision   BIGINT NOT NULL,
    body       TEXT NOT NULL,               -- JSON
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, agent, space, id)
);

CREATE TABLE workers (
    tenant       TEXT NOT NULL,
    id           TEXT NOT NULL,
    name         TEXT NOT NULL,
    owner        TEXT NOT NULL,             -- the user whose machine it is
    instance     TEXT NOT NULL,             -- the live process; another one takes over with a higher epoch
    epoch        BIGINT NOT NULL DEFAULT 1,
    version      TEXT NOT NULL DEFAULT '',
    status       TEXT NOT NULL DEFAULT '',  -- why it claims nothing, in its own words
    last_seen_at DOUBLE PRECISION NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- A runtime that was removed keeps its row: its sessions' pointers name it, and the same machine gets it back.
CREATE TABLE runtimes (
    id           TEXT PRIMARY KEY,          -- derived from the five columns of its identity
    tenant       TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    provider     TEXT NOT NULL,
    profile      TEXT NOT NULL DEFAULT '',
    account      TEXT NOT NULL DEFAULT '',
    name         TEXT NOT NULL,
    owner        TEXT NOT NULL,
    shared_with  TEXT NOT NULL DEFAULT '[]',  -- users; "*": everybody of the tenant
    format       TEXT NOT NULL DEFAULT '',  -- of the CLI's session files
    cli_version  TEXT NOT NULL DEFAULT '',
    steerable    BOOLEAN NOT NULL DEFAULT false,  -- its CLI takes messages while a turn runs
    enforces     TEXT NOT NULL DEFAULT '' CHECK (enforces IN ('', 'all', 'none')),  -- of permissions
    last_seen_at DOUBLE PRECISION NOT NULL,  -- 0: its worker has signed off
    offline_noticed BOOLEAN NOT NULL DEFAULT false,  -- it was announced, and not seen since
    created_at   DOUBLE PRECISION NOT NULL,
    removed_at   DOUBLE PRECISION,
    UNIQUE (tenant, worker_id, provider, profile, account)
);
CREATE INDEX runtimes_by_tenant ON runtimes (tenant, created_at);

CREATE TABLE agent_runtimes (
    tenant           TEXT NOT NULL,
    agent_key        TEXT NOT NULL,
    runtime_id       TEXT NOT NULL,
    offline          TEXT NOT NULL CHECK (offline IN ('wait', 'fail')),
    max_wait_seconds DOUBLE PRECISION NOT NULL,
    deadline_seconds DOUBLE PRECISION NOT NULL,         -- a claim that is older ends its attempt
    max_running      BIGINT,               -- tasks of this agent at once; NULL: no limit
    published        BOOLEAN NOT NULL DEFAULT false,  -- whether tokens with the scope chat reach it
    bound_by         TEXT NOT NULL,
    on_agent_change  TEXT NOT NULL DEFAULT 'disclose' CHECK (on_agent_change IN ('disclose', 'replay', 'fresh')),
    on_dirty         TEXT NOT NULL DEFAULT 'disclose' CHECK (on_dirty IN ('disclose', 'replay')),
    PRIMARY KEY (tenant, agent_key)
);

CREATE TABLE tasks (
    n             BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,  -- the order of the tasks of one session
    id            TEXT NOT NULL UNIQUE,
    tenant        TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    turn_id       TEXT NOT NULL,            -- its input is a request like any other
    agent_key     TEXT NOT NULL,
    scope_kind    TEXT NOT NULL CHECK (scope_kind IN ('issue', 'chat')),
    scope_id      TEXT NOT NULL,
    runtime_id    TEXT NOT NULL,            -- stamped when it is queued; resuming compares with this one
    status        TEXT NOT NULL CHECK (status IN
                  ('queued', 'deferred', 'claimed', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    priority      BIGINT NOT NULL DEFAULT 0,
    directive     TEXT NOT NULL DEFAULT '{}',  -- fresh, rerun_of, note: every retry inherits it whole
    created_by    TEXT NOT NULL,            -- the token
    end_user      TEXT NOT NULL,
    why           TEXT NOT NULL DEFAULT '',  -- what a task that waits is waiting for
    ephemeral     BOOLEAN NOT NULL DEFAULT false,  -- its session is deleted when it ends
    held          BOOLEAN NOT NULL DEFAULT false,  -- after a person's cancel, until somebody continues or drops it
    due_at        DOUBLE PRECISION,                     -- not claimed before
    max_wait_seconds DOUBLE PRECISION,               -- for a claim; counted again each time it is queued
    expires_at    DOUBLE PRECISION,        -- fails if nobody has claimed it by then
    claim_token   BYTEA,                     -- hashed; valid until the task is claimed again
    worker_id     TEXT,                     -- whose claim it is
    worker_epoch  BIGINT,
    attempt_id    TEXT,                     -- of the newest claim
    claims        BIGINT NOT NULL DEFAULT 0,
    failures      BIGINT NOT NULL DEFAULT 0,
    lost_claims   BIGINT NOT NULL DEFAULT 0,  -- whose lease ended without a report
    tried_since   DOUBLE PRECISION,                     -- when it was first claimed, or claimed again after a person's word
    lease_until   DOUBLE PRECISION,                     -- afterwards the task may be claimed again; nothing else happens
    deadline_seconds DOUBLE PRECISION NOT NULL,
    deadline_at   DOUBLE PRECISION,                     -- of the claim
    cancel_seen   BOOLEAN NOT NULL DEFAULT false,  -- the worker has acknowledged it
    decision      TEXT NOT NULL DEFAULT '{}',
    late_output   TEXT,                     -- reported after the end, for people; never committed
    error_code    TEXT,
    error_message TEXT,
    created_at    DOUBLE PRECISION NOT NULL,
    ended_at      DOUBLE PRECISION,
    CHECK ((ended_at IS NULL) = (status IN ('queued', 'deferred', 'claimed', 'running', 'waiting'))),
    CHECK (status NOT IN ('claimed', 'running', 'waiting') OR
           (claim_token IS NOT NULL AND attempt_id IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (status <> 'deferred' OR due_at IS NOT NULL)
);
CREATE INDEX tasks_to_claim ON tasks (runtime_id, agent_key, priority, n) WHERE ended_at IS NULL;
CREATE INDEX tasks_by_session ON tasks (tenant, session_id, n);
CREATE INDEX tasks_unfinished ON tasks (tenant, session_id, n) WHERE ended_at IS NULL;
CREATE INDEX tasks_by_turn ON tasks (tenant, turn_id, n);
CREATE UNIQUE INDEX tasks_open_turn ON tasks (turn_id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX tasks_open ON tasks (session_id) WHERE status IN ('claimed', 'running', 'waiting');
CREATE INDEX tasks_by_tenant ON tasks (tenant, n);
CREATE INDEX tasks_unfinished_of_tenant ON tasks (tenant, n) WHERE ended_at IS NULL;
CREATE INDEX tasks_unfinished_of_agent ON tasks (tenant, agent_key, status) WHERE ended_at IS NULL;
CREATE INDEX tasks_held ON tasks (tenant, agent_key) WHERE status IN ('claimed', 'running', 'waiting');
CREATE INDEX tasks_to_expire ON tasks (expires_at) WHERE status IN ('queued', 'deferred');
CREATE INDEX tasks_to_stop ON tasks (deadline_at) WHERE status IN ('claimed', 'running', 'waiting');
CREATE INDEX tasks_ephemeral ON tasks (ended_at) WHERE ephemeral;

-- One row for each time that a task was claimed. A report that is repeated gets the same answer, also after the task
-- was claimed again.
CREATE TABLE claims (
    token      BYTEA PRIMARY KEY,           -- hashed
    tenant     TEXT NOT NULL,
    task_id    TEXT NOT NULL,
    attempt_id TEXT NOT NULL UNIQUE,
    worker_id  TEXT NOT NULL,
    epoch      BIGINT NOT NULL,
    report     TEXT,                       -- the answer to its final report
    created_at DOUBLE PRECISION NOT NULL
);
CREATE INDEX claims_by_task ON claims (task_id);

-- What a run did, as its worker reported it: shown live and afterwards, never part of a prompt.
CREATE TABLE task_messages (
    attempt_id TEXT NOT NULL,
    seq        BIGINT NOT NULL,            -- given by the worker; a repeated one is stored once
    created_at DOUBLE PRECISION NOT NULL,
    body       BYTEA NOT NULL,
    PRIMARY KEY (attempt_id, seq)
);

CREATE TABLE questions (
    id          TEXT NOT NULL,              -- given by the worker; repeated after a restart, it is the same one
    tenant      TEXT NOT NULL,
    task_id     TEXT NOT NULL,
    attempt_id  TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    body        TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('pending', 'answered', 'withdrawn', 'expired')),
    answer      TEXT,
    answered_by TEXT NOT NULL DEFAULT '',
    deadline_at DOUBLE PRECISION NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (attempt_id, id)
);
CREATE INDEX questions_by_session ON questions (session_id);
CREATE INDEX questions_by_task ON questions (task_id);
CREATE INDEX questions_pending ON questions (deadline_at) WHERE status = 'pending';

CREATE TABLE pointers (
    n              BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant         TEXT NOT NULL,
    session_id     TEXT NOT NULL,           -- a session is one scope and one agent
    agent_key      TEXT NOT NULL,
    task_id        TEXT NOT NULL,
    attempt_id     TEXT NOT NULL UNIQUE,    -- one attempt, one pointer: it cannot be mispaired
    native_session TEXT,
    runtime_id     TEXT,                    -- NULL only in rows imported from elsewhere
    worker_id      TEXT NOT NULL,           -- whose machine the working directory is on
    provider       TEXT NOT NULL,
    account        TEXT NOT NULL DEFAULT '',
    format         TEXT NOT NULL DEFAULT '',
    work_dir       TEXT,
    base_turn      TEXT,                    -- the turn that the attempt continued from
    through_turn   TEXT,                    -- the last committed turn it has seen
    outcome        TEXT NOT NULL CHECK (outcome IN ('committed', 'failed', 'resume_failed', 'uncounted')),
    agent_digest   TEXT NOT NULL DEFAULT '',
    dirty          BOOLEAN NOT NULL DEFAULT false,  -- it holds a prompt whose turn was not committed
    retired        TEXT,                    -- why it is never resumed again
    created_at     DOUBLE PRECISION NOT NULL
);
CREATE INDEX pointers_by_session ON pointers (session_id, n);

-- What a task left in its working directory, bounded.
CREATE TABLE snapshots (
    attempt_id TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    session_id TEXT NOT NULL,
    turn_id    TEXT NOT NULL,
    kind       TEXT NOT NULL,               -- the format of the body
    summary    TEXT NOT NULL DEFAULT '{}',  -- what changed, and what was left out
    created_at DOUBLE PRECISION NOT NULL,
    body       BYTEA NOT NULL
);
CREATE INDEX snapshots_by_session ON snapshots (session_id, created_at);

CREATE TABLE enrollments (
    hash       BYTEA PRIMARY KEY,            -- of the one-time code
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    worker_id  TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    used_at    DOUBLE PRECISION
);

-- What was used: a row for each end of an attempt and each response of a model. Every commit adds one, so it has no
-- index; a sweep moves its rows into the sums.
CREATE TABLE uses (
    n             BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant        TEXT NOT NULL,
    hour          BIGINT NOT NULL,           -- since the epoch
    end_user      TEXT NOT NULL,            -- whom the caller spoke for, else the token
    agent_key     TEXT NOT NULL,
    runtime_id    TEXT NOT NULL,            -- '': this server
    model         TEXT NOT NULL,
    attempts      BIGINT NOT NULL,
    turns         BIGINT NOT NULL,           -- attempts that were committed
    failures      BIGINT NOT NULL,           -- attempts that failed or were interrupted
    calls         BIGINT NOT NULL,           -- requests to the model, answered or not
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost          DOUBLE PRECISION NOT NULL,
    seconds       DOUBLE PRECISION NOT NULL,          -- of all its attempts together
    slowest       DOUBLE PRECISION NOT NULL
);

-- What was used, in sums. They name no session, and outlive them.
CREATE TABLE usage (
    tenant        TEXT NOT NULL,
    hour          BIGINT NOT NULL,           -- since the epoch
    end_user      TEXT NOT NULL,            -- whom the caller spoke for, else the token
    agent_key     TEXT NOT NULL,
    runtime_id    TEXT NOT NULL,            -- '': this server
    model         TEXT NOT NULL,
    attempts      BIGINT NOT NULL,
    turns         BIGINT NOT NULL,           -- attempts that were committed
    failures      BIGINT NOT NULL,           -- attempts that failed or were interrupted
    calls         BIGINT NOT NULL,           -- requests to the model, answered or not
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost          DOUBLE PRECISION NOT NULL,
    seconds       DOUBLE PRECISION NOT NULL,          -- of all its attempts together
    slowest       DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, hour, end_user, agent_key, runtime_id, model)
);

CREATE TABLE audit (
    n          BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant     TEXT NOT NULL,
    at         DOUBLE PRECISION NOT NULL,
    kind       TEXT NOT NULL,
    actor      TEXT NOT NULL,              -- the token
    username   TEXT NOT NULL,              -- the user that the token acts as
    subject    TEXT NOT NULL,              -- the id of what was changed
    detail     TEXT NOT NULL DEFAULT '{}',
    machine    TEXT NOT NULL DEFAULT ''    -- an address, a worker or a node
);
CREATE INDEX audit_by_tenant ON audit (tenant, n);
CREATE INDEX audit_by_subject ON audit (tenant, subject, n);

-- Receivers and their events. The secret signs each message, so it is stored in plain text; no list shows it.
CREATE TABLE webhooks (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    url         TEXT NOT NULL,
    secret      TEXT NOT NULL,
    kinds       TEXT NOT NULL,              -- a JSON array
    created_by  TEXT NOT NULL,              -- the token
    created_at  DOUBLE PRECISION NOT NULL,
    disabled_at DOUBLE PRECISION                    -- its receiver answered 410 Gone
);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant);

-- One row for each message to each webhook, written with what it announces.
CREATE TABLE webhook_outbox (
    n            BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id           TEXT NOT NULL,             -- sent in every try, so that a receiver can tell duplicates
    tenant       TEXT NOT NULL,
    webhook_id   TEXT NOT NULL,
    kind         TEXT NOT NULL,
    detail       TEXT NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    due_at       DOUBLE PRECISION,                  -- the next try, or the end of a lease; NULL: delivered, or a dead letter
    tries        INTEGER NOT NULL DEFAULT 0,
    last_error   TEXT,
    delivered_at DOUBLE PRECISION,
    session_id   TEXT,
    turn_id      TEXT,
    attempt_id   TEXT,
    task_id      TEXT,
    UNIQUE (webhook_id, id),
    CHECK (delivered_at IS NULL OR due_at IS NULL)
);
CREATE INDEX webhook_outbox_by_webhook ON webhook_outbox (tenant, webhook_id, n);
CREATE INDEX webhook_outbox_due ON webhook_outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_outbox_due_of_webhook ON webhook_outbox (webhook_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_outbox_delivered ON webhook_outbox (delivered_at) WHERE delivered_at IS NOT NULL;
CREATE INDEX webhook_outbox_dead ON webhook_outbox (created_at) WHERE due_at IS NULL AND delivered_at IS NULL;

-- One row, rewritten by the test writes of readiness probes.
CREATE TABLE write_probe (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    filler   BYTEA NOT NULL
);

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
    runtime_id     TEXT,
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

CREATE TABLE steps (
    attempt_id    TEXT NOT NULL,
    n             INTEGER NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('model', 'tool', 'steer')),
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
    heard       BOOLEAN NOT NULL DEFAULT false, -- a steer that is in its attempt's journal
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

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL,
    name         TEXT NOT NULL,
    hash         BYTEA NOT NULL UNIQUE,     -- the token itself is stored nowhere
    scopes       TEXT NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    expires_at   DOUBLE PRECISION,
    revoked_at   DOUBLE PRECISION
);

CREATE TABLE runtimes (
    id           TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    provider     TEXT NOT NULL,
    profile      TEXT NOT NULL DEFAULT '',
    account      TEXT NOT NULL DEFAULT '',
    name         TEXT NOT NULL,
    owner        TEXT NOT NULL,
    shared       BOOLEAN NOT NULL DEFAULT false,
    last_seen_at DOUBLE PRECISION NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    UNIQUE (tenant, worker_id, provider, profile, account)
);

CREATE TABLE tasks (
    n            BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id           TEXT NOT NULL UNIQUE,
    tenant       TEXT NOT NULL,
    session_id   TEXT NOT NULL,
    turn_id      TEXT NOT NULL,             -- its ask is a request like any other
    agent_key    TEXT NOT NULL,
    runtime_id   TEXT NOT NULL,             -- stamped when it is queued; resuming compares with this one
    status       TEXT NOT NULL CHECK (status IN
                 ('queued', 'claimed', 'running', 'completed', 'failed', 'cancelled')),
    priority     INTEGER NOT NULL DEFAULT 0,
    fresh        BOOLEAN NOT NULL DEFAULT false,
    rerun_of     TEXT,
    due_at       DOUBLE PRECISION,
    why          TEXT NOT NULL DEFAULT '',  -- what a task that waits is waiting for
    claim_token  BYTEA,                     -- hashed; valid until the task is claimed again
    claims       INTEGER NOT NULL DEFAULT 0,
    lease_until  DOUBLE PRECISION,
    decision     TEXT,
    report       TEXT,                      -- the answer to the final report, to be repeated
    created_at   DOUBLE PRECISION NOT NULL,
    ended_at     DOUBLE PRECISION,
    CHECK ((ended_at IS NULL) = (status IN ('queued', 'claimed', 'running')))
);
CREATE INDEX tasks_to_claim ON tasks (runtime_id, priority DESC, n) WHERE status = 'queued';
CREATE INDEX tasks_leased ON tasks (lease_until) WHERE status IN ('claimed', 'running');
CREATE UNIQUE INDEX tasks_open ON tasks (session_id) WHERE status IN ('claimed', 'running');
CREATE INDEX tasks_by_tenant ON tasks (tenant, n);

CREATE TABLE pointers (
    n              BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant         TEXT NOT NULL,
    scope_kind     TEXT NOT NULL,
    scope_id       TEXT NOT NULL,
    agent_key      TEXT NOT NULL,
    attempt_id     TEXT NOT NULL UNIQUE,    -- one attempt, one pointer: it cannot be mispaired
    native_session TEXT,
    runtime_id     TEXT,                    -- NULL only in rows brought along from elsewhere
    provider       TEXT NOT NULL,
    account        TEXT NOT NULL DEFAULT '',
    format         TEXT NOT NULL DEFAULT '',
    work_dir       TEXT,
    through_turn   TEXT,                    -- the last committed turn it has seen
    dirty          BOOLEAN NOT NULL DEFAULT false,
    failed_resumes INTEGER NOT NULL DEFAULT 0,
    retired        TEXT,                    -- why it is never resumed again
    created_at     DOUBLE PRECISION NOT NULL
);
CREATE INDEX pointers_by_scope ON pointers (tenant, scope_kind, scope_id, agent_key, n);

CREATE TABLE audit (
    n          BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant     TEXT NOT NULL,
    at         DOUBLE PRECISION NOT NULL,
    actor      TEXT NOT NULL,
    what       TEXT NOT NULL,
    subject    TEXT NOT NULL,
    detail     TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_by_tenant ON audit (tenant, n);

-- One row, rewritten by the test writes of readiness probes.
CREATE TABLE write_probe (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    filler   BYTEA NOT NULL
);

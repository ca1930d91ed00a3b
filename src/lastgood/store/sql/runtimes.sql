-- Workers, runtimes and bindings, on both databases. A parameter whose type PostgreSQL cannot tell from its place
-- is CAST. The transactions are in store/runtimes.py.

-- name: usable_runtimes
-- A piece of others: what :user may use, as core/runtime_access.py says.
SELECT runtimes.id FROM runtimes
WHERE runtimes.tenant = :tenant
  AND (runtimes.owner = :user OR :user IN ({shared_users}) OR '*' IN ({shared_users}));

-- name: runtimes_of_session_owner
-- A piece of others: what the owner of the session may use.
SELECT runtimes.id FROM runtimes
WHERE runtimes.tenant = sessions.tenant
  AND (runtimes.owner = sessions.owner OR sessions.owner IN ({shared_users}) OR '*' IN ({shared_users}));

-- name: keeps_reader
-- A piece of others. Nobody else's move hides a session from the user who made it.
(sessions.owner IN ('', :user) OR :runtime IN ({runtimes_of_session_owner})
 OR sessions.runtime_id IS NOT NULL AND sessions.runtime_id NOT IN ({runtimes_of_session_owner}));

-- name: may_rebind
-- A piece of others. A runtime that was removed keeps nobody's agent.
(:is_admin OR agent_runtimes.runtime_id IN ({usable_runtimes})
 OR NOT EXISTS (SELECT 1 FROM runtimes
                WHERE runtimes.tenant = :tenant AND runtimes.id = agent_runtimes.runtime_id
                  AND runtimes.removed_at IS NULL));

-- name: is_own_worker
-- A piece of others: the worker of a task is the caller's.
EXISTS (SELECT 1 FROM workers
        WHERE workers.tenant = tasks.tenant AND workers.id = tasks.worker_id AND workers.owner = :owner);

-- name: insert_worker
INSERT INTO workers (tenant, id, name, owner, instance, epoch, version, last_seen_at, created_at)
VALUES (:tenant, :worker, :name, :owner, '', 0, :version, clock(), clock())
ON CONFLICT (tenant, id) DO NOTHING;

-- name: update_worker
UPDATE workers
SET name = :name, version = :version, status = '', last_seen_at = clock(),
    epoch = epoch + CASE WHEN instance = :instance THEN 0 ELSE 1 END, instance = :instance
WHERE tenant = :tenant AND id = :worker
RETURNING epoch;

-- name: put_runtime
-- One that was removed is there again, under its old id: its pointers and queued tasks name that.
INSERT INTO runtimes (id, tenant, worker_id, provider, profile, account, name, owner, format, cli_version,
                      steerable, enforces, last_seen_at, created_at)
VALUES (:id, :tenant, :worker, :provider, :profile, :account, :name, :owner, :format, :cli_version,
        :steerable, :enforces, clock(), clock())
ON CONFLICT (tenant, worker_id, provider, profile, account) DO UPDATE
SET name = excluded.name, format = excluded.format, cli_version = excluded.cli_version,
    steerable = excluded.steerable, enforces = excluded.enforces, last_seen_at = excluded.last_seen_at,
    removed_at = NULL, offline_noticed = false
RETURNING {runtime};

-- name: get_worker
SELECT owner, epoch FROM workers WHERE tenant = :tenant AND id = :worker;

-- name: see_worker
UPDATE workers SET last_seen_at = clock(), status = :status
WHERE tenant = :tenant AND id = :worker AND owner = :owner AND epoch = :epoch
RETURNING epoch;

-- name: see_runtime
UPDATE runtimes SET last_seen_at = clock(), offline_noticed = false
WHERE tenant = :tenant AND worker_id = :worker AND owner = :owner AND id = :runtime AND removed_at IS NULL
RETURNING id;

-- name: own_runtime
SELECT id FROM runtimes
WHERE tenant = :tenant AND worker_id = :worker AND owner = :owner AND id = :runtime AND removed_at IS NULL;

-- name: renew_claim
-- Also after the lease has ended: as long as nobody else has claimed the task, this claim is the current one.
UPDATE tasks SET lease_until = clock() + :lease, why = :why
WHERE tenant = :tenant AND id = :task AND claim_token = :token AND worker_id = :worker
  AND {is_own_worker} AND status IN ('claimed', 'running', 'waiting')
RETURNING id;

-- name: was_ended_by_others
SELECT 1 FROM tasks JOIN claims ON claims.token = tasks.claim_token
WHERE tasks.tenant = :tenant AND tasks.id = :task AND tasks.claim_token = :token AND tasks.worker_id = :worker
  AND {is_own_worker} AND tasks.ended_at IS NOT NULL AND NOT tasks.cancel_seen AND claims.report IS NULL;

-- name: sign_off
UPDATE workers SET instance = '', status = ''
WHERE tenant = :tenant AND id = :worker AND owner = :owner AND epoch = :epoch
RETURNING id;

-- name: runtimes_sign_off
UPDATE runtimes SET last_seen_at = 0 WHERE tenant = :tenant AND worker_id = :worker;

-- name: list_runtimes
SELECT {runtime} FROM runtimes
WHERE tenant = :tenant AND (:with_removed OR removed_at IS NULL) ORDER BY created_at, id;

-- name: get_runtime
SELECT {runtime} FROM runtimes WHERE tenant = :tenant AND id = :runtime;

-- name: share_runtime
UPDATE runtimes SET shared_with = :users WHERE tenant = :tenant AND id = :runtime
RETURNING {runtime};

-- name: remove_runtime
UPDATE runtimes SET removed_at = clock() WHERE tenant = :tenant AND id = :runtime AND removed_at IS NULL
RETURNING id;

-- name: put_binding
INSERT INTO agent_runtimes (tenant, agent_key, runtime_id, offline, max_wait_seconds, deadline_seconds,
                            max_running, published, bound_by, on_agent_change, on_dirty)
VALUES (:tenant, :agent_key, :runtime, :offline, :max_wait, :deadline, :max_running, :published, :bound_by,
        :on_agent_change, :on_dirty)
ON CONFLICT (tenant, agent_key) DO UPDATE
SET runtime_id = excluded.runtime_id, offline = excluded.offline, max_wait_seconds = excluded.max_wait_seconds,
    deadline_seconds = excluded.deadline_seconds, max_running = excluded.max_running,
    published = excluded.published, bound_by = excluded.bound_by,
    on_agent_change = excluded.on_agent_change, on_dirty = excluded.on_dirty
WHERE {may_rebind}
RETURNING agent_key;

-- name: delete_binding
DELETE FROM agent_runtimes WHERE tenant = :tenant AND agent_key = :agent_key AND {may_rebind} RETURNING agent_key;

-- name: get_binding
SELECT {binding} FROM agent_runtimes WHERE tenant = :tenant AND agent_key = :agent_key;

-- name: move_tasks_of_agent
-- A worker that has a task keeps it. Sessions with a runtime of their own stay where they are.
UPDATE tasks SET runtime_id = :runtime
WHERE tenant = :tenant AND agent_key = :agent_key AND ended_at IS NULL AND status IN ('queued', 'deferred')
  AND runtime_id <> :runtime AND runtime_id IN ({usable_runtimes}) AND :runtime IN ({usable_runtimes})
  AND EXISTS (SELECT 1 FROM sessions
              WHERE sessions.id = tasks.session_id AND NOT sessions.runtime_pinned AND {keeps_reader}
                AND (sessions.runtime_id IS NULL OR sessions.runtime_id IN ({usable_runtimes})))
RETURNING session_id;

-- name: move_tasks_of_session
-- After pin_runtime, which has checked the session. The target may be its agent's runtime, which is another user's.
UPDATE tasks SET runtime_id = :runtime
WHERE tenant = :tenant AND session_id = :session AND ended_at IS NULL AND status IN ('queued', 'deferred')
  AND runtime_id <> :runtime AND runtime_id IN ({usable_runtimes}) AND :runtime IN ({usable_runtimes})
RETURNING session_id;

-- name: stamp_runtime
-- One that a session was bound to by itself stays.
UPDATE sessions SET runtime_id = :runtime
WHERE tenant = :tenant AND id = :session AND NOT runtime_pinned AND (runtime_id IS NULL OR runtime_id <> :runtime);

-- name: pin_runtime
-- Without a runtime the session follows its agent again, from its next task on.
UPDATE sessions SET runtime_pinned = CAST(:runtime AS text) IS NOT NULL, runtime_id = coalesce(:runtime, runtime_id)
WHERE tenant = :tenant AND id = :session AND (runtime_id IS NULL OR runtime_id IN ({usable_runtimes}))
  AND (CAST(:runtime AS text) IS NULL OR {keeps_reader})
RETURNING id;

-- name: runtime_of_session_agent
SELECT agent_runtimes.runtime_id FROM sessions
JOIN agent_runtimes ON agent_runtimes.tenant = sessions.tenant AND agent_runtimes.agent_key = sessions.agent_key
WHERE sessions.tenant = :tenant AND sessions.id = :session;

-- name: create_enrollment
INSERT INTO enrollments (hash, tenant, owner, worker_id, expires_at)
VALUES (:code, :tenant, :owner, :worker, :expires_at);

-- name: use_enrollment
UPDATE enrollments SET used_at = clock() WHERE hash = :code AND used_at IS NULL AND expires_at > clock()
RETURNING tenant, owner, worker_id, expires_at;

-- Sessions that come from another system, on either database.

-- name: append_imported
-- Like a commit: the head is compared where it is moved. An attempt that holds the session keeps its base.
UPDATE sessions
SET head = :head, seq = :seq, head_hash = :hash, stored_bytes = stored_bytes + :bytes, updated_at = clock()
WHERE tenant = :tenant AND id = :session AND attempt_id IS NULL
  AND head IS NOT DISTINCT FROM CAST(:base AS TEXT)
RETURNING segment;

-- name: import_pointer
INSERT INTO pointers (tenant, session_id, agent_key, task_id, attempt_id, native_session, runtime_id, worker_id,
                      provider, account, format, work_dir, through_turn, outcome, dirty, retired, created_at)
VALUES (:tenant, :session, :agent_key, :task, :attempt, :native_session, :runtime, :worker,
        :provider, :account, :format, :work_dir, :through, :outcome, :dirty, :retired, clock())
ON CONFLICT (attempt_id) DO NOTHING
RETURNING n;

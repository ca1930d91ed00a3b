-- Notes of agents.

-- name: list_notes
SELECT id, revision, body, created_at, updated_at FROM notes
WHERE tenant = :tenant AND agent = :agent AND space = :space
ORDER BY created_at, id;

-- name: find_note
SELECT id, revision, body, created_at, updated_at FROM notes
WHERE tenant = :tenant AND agent = :agent AND space = :space AND id = :id;

-- name: insert_note_if_room
INSERT INTO notes (tenant, agent, space, id, revision, body, created_at, updated_at)
SELECT CAST(:tenant AS TEXT), CAST(:agent AS TEXT), CAST(:space AS TEXT), CAST(:id AS TEXT), 1,
       CAST(:body AS TEXT), clock(), clock()
WHERE (SELECT count(*) FROM notes WHERE tenant = :tenant AND agent = :agent AND space = :space) < :most
ON CONFLICT (tenant, agent, space, id) DO NOTHING
RETURNING id;

-- name: replace_note_if
UPDATE notes SET body = :body, revision = revision + 1, updated_at = clock()
WHERE tenant = :tenant AND agent = :agent AND space = :space AND id = :id
  AND (CAST(:revision AS bigint) IS NULL OR revision = :revision)
RETURNING revision;

-- name: delete_note_if
DELETE FROM notes
WHERE tenant = :tenant AND agent = :agent AND space = :space AND id = :id
  AND (CAST(:revision AS bigint) IS NULL OR revision = :revision)
RETURNING id;

-- Reads of a multica database. `extra` is a whole row as JSON: a column that an older release lacks is NULL there.

-- name: columns
SELECT class.relname::text, attribute.attname::text
FROM pg_class AS class JOIN pg_attribute AS attribute ON attribute.attrelid = class.oid
WHERE class.relname IN ('agent', 'agent_runtime', 'agent_task_queue', 'chat_message', 'chat_session', 'issue')
  AND class.relkind IN ('r', 'p', 'v') AND pg_table_is_visible(class.oid)
  AND attribute.attnum > 0 AND NOT attribute.attisdropped;

-- name: agents
SELECT agent.id::text, coalesce(nullif(extra.body ->> 'name', ''), agent.id::text), extra.body ->> 'workspace_id'
FROM agent, LATERAL (SELECT to_jsonb(agent) AS body) AS extra
ORDER BY agent.id;

-- name: agents_without_table
SELECT id::text, id::text, NULL FROM (
    SELECT agent_id AS id FROM chat_session UNION SELECT agent_id FROM agent_task_queue
) AS known
ORDER BY id;

-- name: runtimes
SELECT runtime.id::text, coalesce(runtime.daemon_id, ''), runtime.provider, coalesce(extra.body ->> 'profile_id', ''),
       runtime.name
FROM agent_runtime AS runtime, LATERAL (SELECT to_jsonb(runtime) AS body) AS extra;

-- name: chats
SELECT chat.id::text, chat.agent_id::text, chat.title, nullif(chat.session_id, ''), extra.body ->> 'runtime_id',
       nullif(chat.work_dir, '')
FROM chat_session AS chat, LATERAL (SELECT to_jsonb(chat) AS body) AS extra
WHERE chat.agent_id = :agent::text::uuid
ORDER BY chat.created_at, chat.id;

-- name: issues
SELECT task.issue_id::text, task.agent_id::text, coalesce(max(issue.title), '')
FROM agent_task_queue AS task LEFT JOIN issue ON issue.id = task.issue_id
WHERE task.agent_id = :agent::text::uuid AND task.issue_id IS NOT NULL AND task.chat_session_id IS NULL
GROUP BY task.issue_id, task.agent_id
ORDER BY task.issue_id;

-- name: issues_without_table
SELECT DISTINCT issue_id::text, agent_id::text, '' FROM agent_task_queue
WHERE agent_id = :agent::text::uuid AND issue_id IS NOT NULL AND chat_session_id IS NULL
ORDER BY 1;

-- name: messages
-- `is_failure`: the reply is the text of an error.
SELECT message.id::text, message.role, message.content, coalesce(extra.body ->> 'message_kind', 'message'),
       extra.body ->> 'failure_reason' IS NOT NULL, extra.body ->> 'task_id',
       coalesce((extra.body ->> 'channel_context_revision')::int, 1),
       extract(epoch FROM message.created_at)::double precision
FROM chat_message AS message, LATERAL (SELECT to_jsonb(message) - 'content' AS body) AS extra
WHERE message.chat_session_id = :chat::text::uuid
ORDER BY message.created_at, message.id;

-- name: tasks
SELECT task.id::text, task.agent_id::text, task.status, nullif(task.session_id, ''), task.runtime_id::text,
       nullif(task.work_dir, ''), nullif(extra.body ->> 'retired_session_id', ''), extra.body ->> 'failure_reason',
       extract(epoch FROM finished.at)::double precision
FROM agent_task_queue AS task,
     LATERAL (SELECT to_jsonb(task) - 'context' - 'result' AS body) AS extra,
     LATERAL (SELECT coalesce(task.completed_at, task.started_at, task.dispatched_at, task.created_at) AS at)
         AS finished
WHERE task.agent_id = :agent::text::uuid
  AND (task.chat_session_id = :chat::text::uuid
       OR (task.chat_session_id IS NULL AND task.issue_id = :issue::text::uuid))
ORDER BY finished.at, task.id;

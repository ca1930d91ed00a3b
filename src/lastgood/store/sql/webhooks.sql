-- Webhooks and their outbox, on both databases. The transactions are in store/webhooks.py; what announces an attempt or
-- a task runs in the transaction that changes it.

-- name: announce_plain
{into_outbox}, NULL, NULL, NULL, NULL
FROM webhooks WHERE {webhooks_for};

-- name: announce_test
{into_outbox}, NULL, NULL, NULL, NULL
FROM webhooks WHERE tenant = :tenant AND id = :webhook
RETURNING {delivery};

-- name: announce_task
{into_outbox}, tasks.session_id, tasks.turn_id, tasks.attempt_id, tasks.id
FROM webhooks JOIN tasks ON tasks.tenant = :tenant AND tasks.id = :task
WHERE {webhooks_for};

-- name: insert_webhook
INSERT INTO webhooks (id, tenant, url, secret, kinds, created_by, created_at)
SELECT :id, CAST(:tenant AS TEXT), :url, :secret, :kinds, :created_by, CAST(:created_at AS double precision)
WHERE (SELECT count(*) FROM webhooks WHERE tenant = :tenant) < :most
RETURNING id;

-- name: list_webhooks
SELECT id, tenant, url, kinds, created_by, created_at, disabled_at FROM webhooks
WHERE tenant = :tenant ORDER BY created_at, id;

-- name: delete_webhook
DELETE FROM webhooks WHERE tenant = :tenant AND id = :webhook RETURNING id;

-- name: delete_deliveries
DELETE FROM webhook_outbox WHERE tenant = :tenant AND webhook_id = :webhook;

-- name: disable_webhook
UPDATE webhooks SET disabled_at = clock() WHERE tenant = :tenant AND id = :webhook AND disabled_at IS NULL;

-- name: list_deliveries
SELECT {delivery} FROM webhook_outbox
WHERE tenant = :tenant AND webhook_id = :webhook
  AND (CAST(:before AS bigint) IS NULL OR n < :before)
  AND (CAST(:state AS TEXT) IS NULL
       OR :state = CASE WHEN delivered_at IS NOT NULL THEN 'delivered'
                        WHEN due_at IS NULL THEN 'dead' ELSE 'pending' END)
ORDER BY n DESC LIMIT :limit;

-- name: dead_deliveries
SELECT {delivery} FROM webhook_outbox
WHERE tenant = :tenant AND due_at IS NULL AND delivered_at IS NULL
  AND created_at > (SELECT clock()) - CAST(:seconds AS double precision)
ORDER BY created_at DESC, n DESC LIMIT :limit;

-- name: any_due
SELECT 1 FROM webhook_outbox WHERE due_at <= (SELECT clock()) LIMIT 1;

-- name: lease_delivery
UPDATE webhook_outbox SET tries = tries + 1, due_at = clock() + :lease WHERE n = :number;

-- name: leased_delivery
SELECT {delivery}, webhooks.url, webhooks.secret
FROM webhook_outbox JOIN webhooks ON webhooks.id = webhook_outbox.webhook_id
WHERE webhook_outbox.n = :number;

-- name: set_delivered
-- Also if another server has leased it meanwhile: it was delivered.
UPDATE webhook_outbox SET delivered_at = clock(), due_at = NULL, last_error = NULL
WHERE n = :number AND delivered_at IS NULL;

-- name: set_failed
-- The number of tries is the fence: a process whose lease has ended must not put off the try of another.
UPDATE webhook_outbox SET due_at = clock() + CAST(:delay AS double precision), last_error = :error
WHERE n = :number AND tries = :tries AND delivered_at IS NULL;

-- name: delete_delivered
DELETE FROM webhook_outbox WHERE delivered_at < (SELECT clock()) - CAST(:seconds AS double precision);

-- name: delete_dead
DELETE FROM webhook_outbox
WHERE due_at IS NULL AND delivered_at IS NULL AND created_at < (SELECT clock()) - CAST(:seconds AS double precision);

-- name: runtimes_gone
SELECT tenant, id FROM runtimes
WHERE removed_at IS NULL AND NOT offline_noticed
  AND last_seen_at < (SELECT clock()) - CAST(:seconds AS double precision)
LIMIT :limit;

-- name: notice_offline
UPDATE runtimes SET offline_noticed = true
WHERE tenant = :tenant AND id = :runtime AND removed_at IS NULL AND NOT offline_noticed
  AND last_seen_at < clock() - CAST(:seconds AS double precision)
RETURNING name, worker_id;

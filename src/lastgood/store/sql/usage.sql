-- Usage: counted in the transaction of what was used, added to the sums by a sweep, read together.

-- name: record_use
-- Of a run without a session.
INSERT INTO uses (tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls,
                   input_tokens, output_tokens, cost, seconds, slowest)
VALUES (:tenant, {this_hour}, :user, :agent_key, '', :use_model, :use_attempts, :use_turns, :use_failures, :use_calls,
        :use_inputs, :use_outputs, :use_cost, :use_seconds, :use_seconds);

-- name: recent_uses
SELECT n, tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls, input_tokens,
       output_tokens, cost, seconds, slowest
FROM uses ORDER BY n LIMIT :limit;

-- name: add_usage
INSERT INTO usage (tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls,
                   input_tokens, output_tokens, cost, seconds, slowest)
VALUES (:tenant, :hour, :user, :agent_key, :runtime, :model, :attempts, :turns, :failures, :calls,
        :input_tokens, :output_tokens, :cost, :seconds, :slowest)
ON CONFLICT (tenant, hour, end_user, agent_key, runtime_id, model) DO UPDATE
SET attempts = usage.attempts + excluded.attempts, turns = usage.turns + excluded.turns,
    failures = usage.failures + excluded.failures, calls = usage.calls + excluded.calls,
    input_tokens = usage.input_tokens + excluded.input_tokens,
    output_tokens = usage.output_tokens + excluded.output_tokens,
    cost = usage.cost + excluded.cost, seconds = usage.seconds + excluded.seconds,
    slowest = CASE WHEN excluded.slowest > usage.slowest THEN excluded.slowest ELSE usage.slowest END;

-- name: drop_uses
DELETE FROM uses WHERE n IN ({listed_numbers});

-- name: all_usage
-- A piece of others.
SELECT tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls, input_tokens,
       output_tokens, cost, seconds, slowest
FROM usage WHERE tenant = :tenant AND hour >= :since AND hour < :until
UNION ALL
SELECT tenant, hour, end_user, agent_key, runtime_id, model, attempts, turns, failures, calls, input_tokens,
       output_tokens, cost, seconds, slowest
FROM uses WHERE tenant = :tenant AND hour >= :since AND hour < :until;

-- name: read_usage
SELECT hour / CAST(:step AS BIGINT) * CAST(:step AS BIGINT) AS start,
       CASE CAST(:by AS TEXT) WHEN 'user' THEN end_user WHEN 'agent' THEN agent_key
            WHEN 'runtime' THEN runtime_id WHEN 'model' THEN model ELSE '' END AS name,
       CAST(sum(attempts) AS BIGINT), CAST(sum(turns) AS BIGINT), CAST(sum(failures) AS BIGINT),
       CAST(sum(calls) AS BIGINT), CAST(sum(input_tokens) AS BIGINT), CAST(sum(output_tokens) AS BIGINT),
       sum(cost), sum(seconds), max(slowest)
FROM ({all_usage}) AS found
WHERE (CAST(:user AS TEXT) IS NULL OR end_user = :user)
  AND (CAST(:agent AS TEXT) IS NULL OR agent_key = :agent)
  AND (CAST(:runtime AS TEXT) IS NULL OR runtime_id = :runtime)
  AND (CAST(:model AS TEXT) IS NULL OR model = :model)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit;

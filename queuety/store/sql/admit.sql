-- Admit what this transaction has claimed, or park it, free: see the function.
-- lanes text[]: the queues in claim order.  queue_budgets, group_budgets jsonb: name to cost units, by the settings.
-- guard float8: seconds within which a start under a rate happens, or is given back.
-- Returns the ids that were refused and the keys they wait for.
-- Locks: the meters of the keys, until the end of the transaction.
SELECT a.refused, a.waits_for
FROM queuety.admit(%(lanes)s::text[], %(queue_budgets)s::jsonb, %(group_budgets)s::jsonb, %(guard)s::float8) AS a

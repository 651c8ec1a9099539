-- Unpark, in order, what there is room for: of `keys`, or of all keys after one (NULL: from the first).
-- keys text[] (NULL: all).  lanes text[].  queue_budgets, group_budgets jsonb.  after text.
-- places int: free places filled at most.  each int: jobs for each of them.
-- Returns how many were unparked, the seconds until a rate has room again (NULL: none waits), and the last key.
-- Locks: the rows; locked rows are skipped.
SELECT r.unparked, r.next_s, r.last
FROM queuety.refill(
    %(keys)s::text[], %(lanes)s::text[], %(queue_budgets)s::jsonb, %(group_budgets)s::jsonb, %(places)s::int,
    %(each)s::int, %(after)s::text
) AS r

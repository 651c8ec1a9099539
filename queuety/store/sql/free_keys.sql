-- Lock up to `size` unique keys that nobody seems to hold, in their order.
-- after text: the keys behind that one.  size int.
-- Returns the keys.
-- Locks: the rows; locked rows are skipped.  Index: unique_keys_pkey, jobs_pkey.
SELECT u.key
FROM queuety.unique_keys AS u
WHERE u.key > %(after)s::text
    AND NOT (SELECT h.held FROM queuety.key_holders AS h WHERE h.key = u.key)
ORDER BY u.key
LIMIT %(size)s::int
FOR UPDATE SKIP LOCKED

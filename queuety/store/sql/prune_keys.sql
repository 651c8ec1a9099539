-- Delete those of the locked unique keys that nobody holds.
-- keys text[].  Index: unique_keys_pkey.
DELETE FROM queuety.unique_keys AS u
WHERE u.key = ANY (%(keys)s::text[])
    AND NOT EXISTS (SELECT FROM queuety.held_keys AS h WHERE h.key = u.key)

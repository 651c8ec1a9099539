-- Delete those of the locked unique keys that nobody holds.
-- keys text[].  Index: unique_keys_pkey, jobs_pkey.
DELETE FROM queuety.unique_keys AS u
WHERE u.key = ANY (%(keys)s::text[])
    AND NOT (SELECT h.held FROM queuety.key_holders AS h WHERE h.key = u.key)

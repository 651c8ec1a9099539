-- Drop the partitions of days that are older than so many days, and the oldest such rows of the defaults.
-- finished_days, event_days int (0: keep).  Returns how many partitions.
-- Locks: the parent exclusively until the commit; waits 0.2 s at most.
SELECT queuety.drop_partitions(%(finished_days)s::int, %(event_days)s::int)

-- Make the missing partitions of today (UTC) and the days ahead.
-- days int.  Returns how many; 0 too if a table was in use, or somebody else makes them.
-- Locks: the parent against other changes of it (against writers, too, if today is missing), its default
-- partition exclusively; waits 0.2 s at most.
SELECT queuety.make_partitions(%(days)s::int)

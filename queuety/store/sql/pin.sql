-- Pin the plans of this transaction, and hold off `pause` until it is over.
-- Only index plans remain possible for the claim and the settlements, whatever the statistics say; a plan cached
-- while the table was empty is then still the right one when it holds a million rows.
-- The shared lock is taken in a statement of its own, before the claim's snapshot: a pause that has returned is
-- seen by every claim that starts after it (pause takes the same lock exclusively once it has committed).
-- Locks: advisory 7100001, shared, until the end of the transaction.
SELECT
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('enable_nestloop', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('enable_sort', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('jit', 'off', true),
    pg_advisory_xact_lock_shared(7100001)

-- Steer the plans of this transaction: walk an index in order, whatever the statistics say.
-- A day's partition was empty when it was made; believing that, a batch would read and sort all of it.
SELECT
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true),
    set_config('jit', 'off', true)

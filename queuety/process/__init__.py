"""The three kinds of process of a pool: supervisor, keeper, worker."""

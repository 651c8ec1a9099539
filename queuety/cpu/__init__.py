"""A pool of processes for computing beside an event loop; it knows nothing of jobs and of the database."""

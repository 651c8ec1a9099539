"""A sample application and a stream of jobs for it: what `queuety demo` shows."""

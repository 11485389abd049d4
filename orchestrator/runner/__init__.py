"""The sweep: admission queue, a launch's life, retries, resume."""

"""The report's page while a sweep runs: served on this machine, for browsers and for Prometheus."""

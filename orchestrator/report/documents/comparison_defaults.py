"""What ``orchestrator compare`` gates, and what may differ, unless it is told otherwise.

They stand apart because ``--help`` shows them and loads nothing else.
"""

# names of metrics, as JSON of `results` has them
GATED = ("output_token_throughput", "ttft_ms.p99", "attainment")
# names of settings
ACROSS = ("engine_version", "image", "executable", "revision")

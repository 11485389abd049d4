"""What ``orchestrator compare`` gates, and what may differ, unless it is told otherwise.

They stand apart because ``--help`` shows them and loads nothing else.
"""

# before a name, in place of that of a part: of each part of a mix
EACH_PART = "*"
# names of metrics, as JSON of `results` has them
GATED = (
    *("output_token_throughput", "ttft_ms.p99", "attainment"),
    *(f"{EACH_PART}:ttft_ms.p99", f"{EACH_PART}:attainment"),
)
# names of settings
ACROSS = ("engine_version", "image", "executable", "revision")

"""The defaults of ``orchestrator compare``.

They stand apart because ``--help`` shows them and loads nothing else.
"""

# In ``*:ttft_ms.p99`` it stands for the name of a part: this metric of every part of a mix.
EACH_PART = "*"
# --fail-on: metrics that must not get worse, named as in the JSON of `results`
GATED = (
    "output_token_throughput",
    "ttft_ms.p99",
    "attainment",
    f"{EACH_PART}:ttft_ms.p99",
    f"{EACH_PART}:attainment",
)
# --across: settings that may differ between the two sides
ACROSS = ("engine_version", "image", "executable", "revision")

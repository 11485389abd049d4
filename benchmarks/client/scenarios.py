"""What is measured: the load, the mock server's timing, and which truths the tools are held to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load on one server. Either ``streams`` (closed loop) or ``rate`` (open loop, requests per
    second).
    """

    name: str
    title: str
    requests: int
    output_tokens: int
    ttft_ms: float
    itl_ms: float
    streams: int | None = None
    rate: float | None = None
    arrivals: str = "poisson"
    max_in_flight: int | None = None
    clients: int = 1
    cores_per_client: float | None = None  # of CPU time; None: what is there
    input_tokens: int = 64
    server: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()  # empty: all
    timeout_s: float = 100.0
    seed: int = field(default=7)

    def server_flags(self) -> list[str]:
        """Command line of mock_server, without port and files."""
        return ["--ttft-ms", str(self.ttft_ms), "--itl-ms", str(self.itl_ms), *self.server]


def closed(
    name: str, title: str, streams: int, rounds: int, output_tokens: int, **more: object
) -> Scenario:
    """``streams`` requests in flight, each followed by the next one, ``rounds`` times over."""
    return Scenario(name, title, streams * rounds, output_tokens, streams=streams, **more)  # type: ignore[arg-type]


def open_loop(rate: float, clients: int) -> Scenario:
    """Poisson arrivals for about 10 s, short answers: the cost is in sending and starting."""
    title = f"open loop, Poisson {rate:g} requests/s, {clients} client{'s' if clients > 1 else ''}"
    tools = () if clients == 1 else ("ours",)
    return Scenario(
        f"open{rate:g}x{clients}",
        title,
        round(rate * 10),
        16,
        30,
        10,
        rate=rate,
        clients=clients,
        tools=tools,
    )


def limited(clients: int) -> Scenario:
    """More streams than clients held to 40 % of a core can keep up with: how much more do two of
    them carry?

    On two cores, with the server on one of them, two clients cannot have a core each. What a CPU
    limit cannot show is what they would contend for on a larger machine: memory bandwidth and the
    kernel's locks.
    """
    many = "2 clients" if clients > 1 else "1 client"
    title = f"{many} at the limit, 40 % of a core for each (a CPU limit, both on core 1)"
    more = {"tools": ("ours",), "clients": clients, "cores_per_client": 0.4}
    return closed(f"limit{clients}", title, 500 * clients, 20, 8, ttft_ms=30, itl_ms=10, **more)


# C only counts
TALKING = ("ours", "sglang-rust", "vllm", "aiperf", "genai-bench", "guidellm", "inference-perf")
FAST = ("c", "ours", "sglang-rust", "vllm", "aiperf")

SCENARIOS = (
    closed("streams512", "512 streams, 25,000 tokens/s", 512, 12, 128, ttft_ms=100, itl_ms=20, timeout_s=240.0),
    closed(
        "streams512step",
        "512 streams, 25,000 tokens/s, all streams in step (as an engine's batch sends them)",
        512, 4, 128, ttft_ms=100, itl_ms=20, server=("--spread-ms", "0"), tools=FAST,
    ),
    closed("streams2048", "2,048 streams, 100,000 tokens/s", 2048, 2, 256, ttft_ms=200, itl_ms=20, tools=FAST),
    open_loop(400, 1),
    open_loop(1000, 1),
    open_loop(1000, 2),
    limited(1),
    limited(2),
    Scenario(
        "slots8", "8 slots (20 requests/s) at twice that rate, at most 16 in flight",
        400, 36, 50, 10, rate=40, arrivals="constant", max_in_flight=16, server=("--slots", "8", "--spread-ms", "0"),
    ),
    closed(
        "failures", "every 10th request HTTP 500, every 7th stream cut",
        16, 25, 32, ttft_ms=20, itl_ms=5, server=("--error-every", "10", "--cut-every", "7"), tools=TALKING,
    ),
    closed("start", "start of the command to its first request", 1, 4, 8, ttft_ms=20, itl_ms=5),
)  # fmt: skip

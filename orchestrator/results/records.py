"""The typed rows of all tables: the contract between measuring and everything that reads results.

The Arrow schemas are made from these classes (schemas.py): a field's type becomes the column's
type, its text the column's description. Keys are never null; names carry their units. Rules for
changes: docs/reference/data-format.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated as A
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orchestrator.results import outcomes
from orchestrator.results.window import MeasuredWindow

I16 = A[int, pa.int16()]
I32 = A[int, pa.int32()]
Doubles = A[npt.NDArray[np.float64], pa.list_(pa.float64())]
ShortList = A[npt.NDArray[np.int16], pa.list_(pa.int16())]
BoolList = A[npt.NDArray[np.bool_], pa.list_(pa.bool_())]
AttemptStatus = A[Literal["ok", "failed"], pa.string()]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKey:
    """Identifies one attempt."""

    measurement_id: A[str, "hash of point_id, repeat and seed"]
    attempt_id: A[str, "ULID of this attempt at the measurement"]

    @property
    def ids(self) -> tuple[str, str]:
        return self.measurement_id, self.attempt_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(AttemptKey):
    """One scheduled request, failed ones included."""

    request_index: A[I32, "index in the schedule of the whole point"]
    client: A[I16, "client that sent it"]
    replica: A[I16, "replica it was sent to"]
    phase: A[str, "warmup | measure"]
    session: A[I32 | None, "conversation it belongs to"] = None
    turn: A[I16 | None, "turn within the conversation, from 0"] = None
    part: A[str | None, "part of the mix that it is of; null: the workload is no mix"] = None
    adapter: A[str | None, "LoRA adapter it asked for; null: it asked for the model itself"] = None
    scheduled_ns: A[
        int | None,
        "when it was due, ns since the point's start; null: imported, and no schedule is known",
    ] = None
    sent_ns: A[int | None, "when its first byte was written to the socket; null: never sent"] = None
    first_byte_ns: A[int | None, "first byte of the response"] = None
    first_token_ns: A[int | None, "first event with content"] = None
    first_answer_ns: A[
        int | None, "first content after the reasoning; null: no reasoning was streamed"
    ] = None
    last_token_ns: A[int | None, "last event with content"] = None
    done_ns: A[int, "when it ended, whatever its outcome"]
    input_tokens_asked: A[
        I32, "prompt length asked for; 0: unknown, as of texts from a prompt file"
    ]
    input_tokens: A[I32 | None, "prompt length as reported by the engine"] = None
    output_tokens_asked: A[I32, "output length asked for"]
    images: A[I16 | None, "pictures in its prompt; null: none, or it was never written"] = None
    body_bytes: A[I32 | None, "bytes of its body; null: it was never written"] = None
    # plausible: load/response/counts.py: _is_plausible
    output_tokens: A[
        I32 | None,
        (
            "length used in all figures: the engine's count where that is plausible, else the "
            "client's"
        ),
    ] = None
    hidden_tokens: A[
        I32 | None,
        "output tokens (reasoning) that were counted and never streamed; null: none known of",
    ] = None
    first_chunk_tokens: A[
        I32 | None, "tokens of the first chunk; null: the stream does not say, so taken as one"
    ] = None
    output_tokens_counted: A[I32 | None, "the client's own count from the stream"] = None
    token_count_source: A[
        str | None, "usage | token_ids | continuous_usage | native | tokenizer | chunks"
    ] = None
    cached_tokens: A[
        I32 | None, "prompt tokens found in the engine's prefix cache; null: not reported"
    ] = None
    expected_cached_tokens: A[
        I32 | None,
        (
            "prompt tokens that a cache of unlimited size would have held, in whole blocks; null: "
            "not answered, or the tokens of prompts are not known"
        ),
    ] = None
    chunks: A[I32, "events with content; those of one speculative step count as one"]
    coalesced_chunks: A[
        I32,
        (
            "chunks in one read with the one before, or closer to it than both 0.2 ms and a tenth of "
            "the mean gap"
        ),
    ]
    itl_kind: A[
        str | None, "token: every chunk held one token; chunk: gaps are spread over several tokens"
    ] = None
    finish_reason: A[str | None, "as reported by the engine"] = None
    constraint: A[
        str | None, "what its answer had to be: json_schema | regex | choice; null: anything"
    ] = None
    constraint_met: A[
        bool | None,
        "the answer is what it had to be; null: not constrained, failed, cut before it could tell, or "
        "unchecked because the check took too long, or was ended",
    ] = None
    status: A[str, " | ".join(outcomes.RequestStatus)]
    error_class: A[str | None, " | ".join(outcomes.ErrorClass)] = None
    error: A[str | None, "first 500 characters of the error message"] = None
    http_status: A[I16 | None, "HTTP status code"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEventsRow(AttemptKey):
    """The gaps between the chunks of one request."""

    request_index: A[I32, "as in requests"]
    gaps_us: A[
        tuple[I32, ...], "gaps between content chunks, rounded to 1 us with the remainder carried"
    ]
    tokens_per_chunk: A[
        tuple[I16, ...] | None, "tokens of each content chunk; null: one each, or unknown"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointHead(AttemptKey):
    """One attempt at a measurement, without the evidence for its validity."""

    point_id: A[
        str, "hash of deployment, workload, level, how it is loaded, seed and version of measuring"
    ]
    deployment_id: A[str, "see deployments"]
    launch_id: A[str, "engine start that it ran on; empty: none succeeded"]
    experiment: A[str, "name in the experiment file"]
    workload: A[str, "name of the workload"]
    control: A[str, "request_rate | concurrency"]
    level: A[float, "requests per second (infinite: all at once), or requests in flight"]
    arrivals: A[str, "arrival process; closed for concurrency, at_once for an infinite rate"]
    repeat: A[I32, "from 0"]
    start: A[I32, "which of the deployment's starts it ran on, from 0"] = 0
    seed: A[int, "seed of the schedule"]
    status: A[AttemptStatus, "ok | failed"]
    reason: A[str | None, "one plain sentence when failed"] = None
    failure_class: A[str | None, "bad_config | engine_crash | infra | timeout | client_bound"] = (
        None
    )
    failure_kind: A[str | None, "what went wrong: docs/reference/failures.md lists the kinds"] = (
        None
    )
    validity: A[
        str,
        "valid | broken_output | invalid | network_bound | disturbed | client_bound | "
        "stream_buffered | "
        "engine_bound_backlog | interrupted | unmeasured | unchecked",
    ]
    validity_reasons: A[tuple[str, ...], "evidence in sentences"]
    clients: A[I32, "client processes"]
    window_start_ns: A[int, "steady window, ns since the point's start"]
    window_end_ns: A[int, "its end, exclusive"]
    ended_early: A[
        str | None,
        "of a probe that ended early: holds | fails | mixed | undecided; null: it did not",
    ] = None
    ended_for: A[
        str | None,
        "of a probe that ended early: the limits whose verdicts it waited for, SLOs separated by ;",
    ] = None
    capped_share: A[
        float | None,
        "share of requests that waited for a place under max_in_flight; null: no such limit",
    ] = None
    offered_rate: A[
        float | None,
        "requests/s that were due in the steady window; null: a closed loop, or all at once",
    ] = None
    later_turns_share: A[
        float | None, "share of requests that are later turns of a session; null: not known"
    ] = None
    cached_share: A[
        float | None,
        "share of prompt tokens found in the engine's prefix cache; null: not reported",
    ] = None
    expected_cached_share: A[
        float | None,
        "share of prompt tokens that a cache of unlimited size would have held; null: not known",
    ] = None
    content: A[
        str | None,
        "what prompts are made of: random (tokens or words) | text (slices of one) | file | mixed; "
        "null: the file was gone",
    ] = None
    recorded_rate: A[
        float | None, "requests/s of the recorded trace that was sent at its times, on average"
    ] = None
    rate_factor: A[float | None, "rate asked for over the recorded one"] = None
    thinned_share: A[float | None, "share of the recorded sessions that were left out"] = None
    distinct_times_share: A[
        float | None, "distinct recorded times per request: below 1, some were sent at one instant"
    ] = None
    adapter_share: A[
        float | None, "share of answered requests that asked for a LoRA adapter; null: none did"
    ] = None
    adapters_asked: A[I32 | None, "different LoRA adapters that answered"] = None
    adapter_ttft_ms: A[
        float | None, "median TTFT of requests for adapters, from when they were due"
    ] = None
    base_ttft_ms: A[
        float | None, "median TTFT of the requests for the model itself; null: too few of either"
    ] = None
    adapter_tpot_ms: A[float | None, "median TPOT of requests for adapters"] = None
    base_tpot_ms: A[float | None, "median TPOT of the requests for the model itself"] = None
    constrained_share: A[
        float | None, "share of answered requests that were constrained; null: none was"
    ] = None
    constraint_violations: A[
        I32 | None, "answers of constrained requests that are not what they had to be"
    ] = None
    constraint_cut_share: A[
        float | None, "share of constrained answers that were cut before it could be told"
    ] = None
    constraint_unchecked_share: A[
        float | None, "share of constrained answers whose check took too long, or was ended"
    ] = None
    constrained_ttft_ms: A[
        float | None, "median TTFT of constrained requests, from when they were due"
    ] = None
    free_ttft_ms: A[
        float | None, "median TTFT of the free requests beside them; null: too few of either"
    ] = None
    constrained_tpot_ms: A[float | None, "median TPOT of constrained requests"] = None
    free_tpot_ms: A[float | None, "median TPOT of the free requests beside them"] = None
    steady: A[
        bool | None, "a steady part was found; null: not looked for (warm-up given, or no duration)"
    ] = None
    started_unix_ns: A[int, "wall clock of the point's start at the driver"]
    emulated: A[bool, "true: an emulator answered, not an engine"]
    simulated: A[bool, "true: computed in virtual time by a model; nothing was sent"] = False
    source: A[str | None, "other tool that measured it, with its version; null: this program"] = (
        None
    )

    @property
    def window(self) -> MeasuredWindow:
        """The steady window."""
        return MeasuredWindow(self.window_start_ns, self.window_end_ns)

    @property
    def window_s(self) -> float:
        """The length of the steady window in seconds."""
        return self.window.length_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow(PointHead):
    """One attempt at a measurement, with the evidence for its validity."""

    workload_json: A[str, "the workload, resolved"]
    load_json: A[str | None, "arrivals, warm-up, window, limits and the version of measuring"] = (
        None
    )
    evidence_json: A[
        str,
        (
            "figures behind validity: achieved and offered rate, lags, CPU, sockets, network, others' "
            "load, mismatches"
        ),
    ]
    clients_json: A[str, "ClientStats of each"]
    requests_scheduled: A[I32, "rows of this attempt in requests"]
    cache_state: A[
        str | None, "prefix cache at its begin: " + " | ".join(get_args(outcomes.CacheState))
    ] = None
    log_tail: A[str | None, "last lines of the engine when it failed"] = None
    client_version: A[str, "version of this program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRow:
    """One engine configuration."""

    deployment_id: A[
        str, "hash of the resolved engine configuration, version, revision and hardware class"
    ]
    experiment: A[str, "name in the experiment file"]
    label: A[str, "short name that tells it from its siblings"]
    engine: A[str, "name of the engine"]
    engine_version: A[str | None, "as asked for"] = None
    model: A[str, "hub name or folder"]
    hardware: A[str, "hardware class"]
    accelerator: A[str, "accelerator of the hardware class"]
    devices: A[
        I32,
        (
            "GPUs (cores on cpu) of all replicas; of an endpoint as many as its `endpoint_gpus` says, "
            "or 0"
        ),
    ]
    nodes: A[I32, "nodes of one replica"]
    replicas: A[I32, "engine instances that share the load, over all roles"]
    roles: A[
        str | None, "roles of replicas, if any: prefill, decode; settings_json has their settings"
    ] = None
    router: A[str | None, "engine name of the router between clients and replicas"] = None
    tensor_parallel_size: A[I32, "ranks that share each layer"]
    pipeline_parallel_size: A[I32, "ranks that share the layers among them"]
    data_parallel_size: A[I32, "copies of the model in one engine"]
    quantization: A[str | None, "of the weights"] = None
    kv_cache_dtype: A[str | None, "data type of the KV cache"] = None
    max_num_seqs: A[I32 | None, "most sequences in a batch"] = None
    max_num_batched_tokens: A[I32 | None, "most tokens in one step"] = None
    usd_per_hour: A[float | None, "all replicas together"] = None
    settings_json: A[str, "the whole resolved configuration, without secrets"]
    predicted_json: A[str | None, "weights, KV tokens and concurrency predicted by plan"] = None
    work_json: A[
        str | None,
        "bytes and FLOPs of its tokens and the peaks of its devices, or why they are not known",
    ] = None

    @property
    def launched(self) -> bool:
        """False for an endpoint, which somebody else started."""
        return self.engine != "endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """One live start of a deployment."""

    launch_id: A[str, "ULID"]
    deployment_id: A[str, "see deployments"]
    experiment: A[str, "name in the experiment file"]
    status: A[AttemptStatus, "ok | failed"]
    failure_class: A[str | None, "as in points"] = None
    failure_kind: A[str | None, "as in points"] = None
    reason: A[str | None, "one plain sentence"] = None
    log_tail: A[str | None, "last lines of the engine"] = None
    log_uri: A[str | None, "whole log, below the results root"] = None
    engine_version: A[str | None, "as the engine reports it"] = None
    argv_json: A[str | None, "command line of every rank, without secrets"] = None
    placement_json: A[str | None, "node, devices and cores of every rank"] = None
    engine_reported_json: A[
        str | None, "what the engine reported at its start: KV tokens, maximum length, …"
    ] = None
    environment_json: A[
        str | None,
        "each host as found: driver, CUDA, GPUs, kernel, CPU, memory, image; null: unknown",
    ] = None
    placed_s: A[float | None, "seconds from request to placement"] = None
    ready_s: A[float | None, "seconds from process start to ready"] = None
    stopped_s: A[float | None, "seconds the stop took"] = None
    held_s: A[float | None, "seconds the devices were held"] = None
    started_unix_ns: A[int, "wall clock of the driver when placement was requested"]
    emulated: A[bool, "true: an emulator was started, not an engine"]
    simulated: A[bool, "true: nothing was started: a model computed its points"] = False

    @property
    def source(self) -> None:
        """None: what another tool measured has no launch. It is here so that launches satisfy
        ``report/origin.py: HasOrigin``.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """A launch's answer to one of the fixed prompts, before it was measured."""

    launch_id: A[str, "see launches"]
    deployment_id: A[str, "see deployments"]
    prompt_index: A[I32, "which of the prompts"]
    replica: A[I16, "replica that answered"]
    api: A[str, "path of the API that was used"]
    prompt: A[str, "the prompt; answers to the same prompt through the same API are compared"]
    text: A[str, "the answer as text"]
    token_ids: A[tuple[I32, ...] | None, "ids of its tokens; null: not reported"] = None
    logprobs: A[
        tuple[float, ...] | None, "log-probability of each, NaN if it has none; null: not reported"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something that happened during a sweep."""

    unix_ns: A[int, "wall clock of the driver"]
    kind: A[str, "sweep | launch | retry | gave_up | engine_died | measured | failed | budget | …"]
    launch_id: A[str | None, "launch it is about"] = None
    measurement_id: A[str | None, "measurement it is about"] = None
    text: A[str, "one sentence"]
    data_json: A[str | None, "figures, if any"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetricsRow(AttemptKey):
    """One reading of a replica's own /metrics."""

    replica: A[I16, "replica that was read"]
    role: A[str | None, "its role, where replicas have some"] = None
    host: A[str | None, "name of the replica's host"] = None
    unix_ns: A[int, "wall clock of that host at the reading"]
    clock_offset_ns: A[int | None, "that clock minus the driver's; null: unknown"] = None
    clock_error_ns: A[int | None, "bound of that offset's error"] = None
    running: A[float | None, "requests in the batch now"] = None
    waiting: A[float | None, "requests in its queue now"] = None
    kv_usage: A[float | None, "share of the KV cache in use now, 0 to 1"] = None
    preemptions_total: A[float | None, "requests preempted because the KV cache was full"] = None
    prefix_query_tokens_total: A[float | None, "prompt tokens looked up in the prefix cache"] = None
    prefix_hit_tokens_total: A[float | None, "prompt tokens found there"] = None
    queue_time_s_sum: A[float | None, "seconds that requests waited in its queue, summed"] = None
    queue_time_count: A[float | None, "requests in that sum"] = None
    ttft_s_sum: A[float | None, "seconds from arrival to the first token, summed"] = None
    ttft_count: A[float | None, "requests in that sum"] = None
    spec_draft_tokens_total: A[float | None, "tokens proposed by speculative decoding"] = None
    spec_accepted_tokens_total: A[
        float | None, "tokens of speculative decoding that were accepted"
    ] = None
    spec_drafts_total: A[
        float | None, "how often tokens were proposed for a request: steps that may yield several"
    ] = None
    spec_accept_length: A[
        float | None, "tokens that such a step yields, as the engine averages it now"
    ] = None
    spec_accept_share: A[
        float | None, "share of proposed tokens that were accepted, as the engine averages it now"
    ] = None
    prompt_tokens_total: A[
        float | None, "prompt tokens, those of the prefix cache included (except by llama.cpp)"
    ] = None
    generation_tokens_total: A[float | None, "tokens generated"] = None
    prefill_time_s_sum: A[
        float | None, "seconds from a request's first step to its first token, summed"
    ] = None
    prefill_time_count: A[float | None, "requests in that sum"] = None
    decode_time_s_sum: A[
        float | None, "seconds from a request's first token to its last, summed"
    ] = None
    decode_time_count: A[float | None, "requests in that sum"] = None
    estimated_flops_per_gpu_total: A[
        float | None, "floating-point operations of a GPU, as the engine estimates; mean of ranks"
    ] = None
    estimated_read_bytes_per_gpu_total: A[
        float | None,
        "bytes that a GPU read from its memory, as the engine estimates; mean of ranks",
    ] = None
    estimated_write_bytes_per_gpu_total: A[
        float | None, "bytes that a GPU wrote to its memory, as the engine estimates; mean of ranks"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryRow(AttemptKey):
    """One reading of one GPU of a replica, twice a second while a point runs."""

    host: A[str, "name of its host"]
    gpu_uuid: A[str, "the GPU, as its driver names it"]
    unix_ns: A[int, "wall clock of the host at the reading"]
    clock_offset_ns: A[int | None, "wall clock of the host minus the driver's; null: unknown"] = (
        None
    )
    clock_error_ns: A[int | None, "bound of that offset's error"] = None
    power_w: A[float | None, "watts of the whole board now"] = None
    energy_mj: A[int | None, "counter of the energy used since the GPU's driver was loaded, mJ"] = (
        None
    )
    sm_mhz: A[I32 | None, "clock of its multiprocessors"] = None
    memory_mhz: A[I32 | None, "clock of its memory"] = None
    temperature_c: A[I32 | None, "degrees Celsius of the chip"] = None
    memory_temperature_c: A[I32 | None, "degrees Celsius of the memory"] = None
    used_bytes: A[int | None, "memory in use, by all processes"] = None
    busy_share: A[float | None, "share of the last moments in which any kernel ran, 0 to 1"] = None
    event_reasons: A[int | None, "bits of NVML's clocks event reasons: why clocks are low"] = None
    throttled_ns_power: A[
        int | None, "counter of the time in which the power limit held clocks down"
    ] = None
    throttled_ns_thermal: A[
        int | None, "counter of the time in which the driver held clocks down because of heat"
    ] = None
    throttled_ns_hw: A[
        int | None,
        "counter of the time in which the hardware held clocks down: heat, or a power brake",
    ] = None
    ecc_uncorrected: A[
        int | None, "counter of uncorrected memory errors since the driver was loaded"
    ] = None
    dram_share: A[
        float | None, "share of its memory bandwidth in use since the last reading, 0 to 1"
    ] = None
    tensor_share: A[
        float | None, "share of the time since the last reading in which tensor cores ran, 0 to 1"
    ] = None
    nvlink_bytes: A[
        int | None, "counter of the data sent and received over NVLink, all links together"
    ] = None
    foreign_bytes: A[
        int | None, "memory in use by processes that are not of its launch; null: unknown"
    ] = None
    sampler_cpu_s: A[
        float | None,
        "CPU seconds of the agent's readings of GPUs and host since the first one, without those of engine metrics",
    ] = None
    field_latency_us: A[int | None, "longest time that the driver took for a field"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow(AttemptKey):
    """One reading of a host of a launch, or of the host of ``load``, twice a second while a point
    runs.
    """

    host: A[str, "name of the host"]
    unix_ns: A[int, "its wall clock at the reading"]
    clock_offset_ns: A[int | None, "that clock minus the driver's; null: unknown"] = None
    clock_error_ns: A[int | None, "bound of that offset's error"] = None
    cpu_share: A[
        float | None, "share of all cores' time in use since the last reading, by anything, 0 to 1"
    ] = None
    foreign_cpu_share: A[
        float | None,
        "share of all cores' time used by neither the sweep's engines nor its clients since the "
        "reading before that has it; every 5 s and at the end. On the host of `load`, a server "
        "that runs there counts as well",
    ] = None
    engine_cpu_s: A[
        float | None, "CPU seconds of the launch's processes on this host since the first reading"
    ] = None
    engine_rss_bytes: A[
        int | None, "resident memory of the launch's processes; shared pages count for each of them"
    ] = None
    free_bytes: A[int | None, "main memory that programs can still get"] = None
    network_rx_bytes: A[
        int | None, "counter of the bytes received over its network, without lo and RDMA"
    ] = None
    network_tx_bytes: A[int | None, "the same for bytes sent"] = None
    sampler_cpu_s: A[
        float | None,
        "CPU seconds of the agent's readings of GPUs and host since the first one, without those of engine metrics",
    ] = None


# The version of ``AttemptData`` and ``PooledFigures``, with the records that they contain. It rises
# when a column changes, or how one is computed.
METRICS_VERSION = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, standard deviation (of exactly these values, not a sample estimate), extremes,
    percentiles (linear).
    """

    mean: float
    std: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTotals:
    """Numbers of measured requests that were due in the steady window."""

    scheduled: int
    ok: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The metrics of one attempt, or of several pooled (docs/reference/metrics.md). None: there was
    no data for it.
    """

    requests: RequestTotals
    errors: Mapping[str, int]  # error class -> requests
    window_s: float
    request_throughput: float | None
    requests_per_minute: float | None
    output_token_throughput: float | None
    input_token_throughput: float | None
    total_token_throughput: float | None
    throughput_basis: str | None  # chunk_times | interpolated | mixed
    ttft_ms: Distribution | None
    ttfo_ms: Distribution | None
    e2e_ms: Distribution | None
    ttft_from_sent_ms: Distribution | None
    e2e_from_sent_ms: Distribution | None
    tpot_ms: Distribution | None
    prefill_throughput: Distribution | None
    decode_throughput: Distribution | None
    normalized_ttft_ms: Distribution | None
    input_tokens: Distribution | None
    output_tokens: Distribution | None
    itl_ms: Distribution | None
    itl_kind: str | None  # token | chunk | mixed
    decode_context: float | None  # mean tokens of context of a token that is decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """Facts beside speed of one part of a mix; each field as the column of ``points`` with the same
    name. None: not known, or no answer of the part was constrained.
    """

    cached_share: float | None
    expected_cached_share: float | None
    constraint_violations: float | None  # a mean where it is of several repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigures:
    """The metrics of the requests of one part of a mix, in the window of the whole point.
    ``facts``: of one attempt; None where several are pooled.
    """

    part: str
    figures: Figures
    facts: PartFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRow(AttemptKey):
    """What a file of another tool says of one point, under that tool's definitions."""

    source: A[str, "name of the tool"]
    source_version: A[str | None, "its version; null: its files do not say"] = None
    file: A[str, "name of the file"]
    file_sha256: A[str, "SHA-256 of its content"]
    place: A[I32, "which of the file's points it is, from 0"]
    definitions: A[Mapping[str, str], "figure -> its name in the file, and how the tool defines it"]
    figures: A[Figures, "the file's own figures; NaN: a percentile that it does not have"]
    aggregates_json: A[str, "the figures as the file has them, under its own names"]
    left_out: A[Mapping[str, I32], "content of the file that no table has -> how many values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSide:
    """What the engines reported during an attempt, over all replicas. None: not reported."""

    running_max: float | None
    waiting_max: float | None
    kv_usage_max: float | None
    preemptions: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    queue_time_mean_ms: float | None
    ttft_mean_ms: float | None
    prefix_hit_share: float | None
    spec_accepted_share: float | None
    spec_accepted_length: float | None  # tokens of a step of one request
    # of one GPU in the steady window, per second, as the engines estimate them
    estimated_flops_s: float | None
    estimated_bytes_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSide:
    """What the GPUs of an attempt did in its steady window, all together
    (docs/reference/efficiency.md). None: not known.
    """

    gpus: int
    window_s: float
    energy_j: float | None  # by their counters
    integral_j: float | None  # by the integral of the power that was read
    dram_share: float | None  # mean of the shares of bandwidth in use
    tensor_share: float | None  # mean of the shares of time in which tensor cores ran
    energy_notes: tuple[str, ...]  # of analysis/energy.py: EnergyNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(AttemptKey):
    """One committed attempt at a measurement. Of a measurement the first ok attempt that nothing
    spoilt counts forever (``results/store.py: best_ok``).
    """

    earlier: A[
        I32, "how many attempts at the measurement had been committed before it: orders them"
    ] = 0
    created_unix_ns: A[
        int, "time of its manifest: orders attempts that were committed at the same instant"
    ]
    status: A[AttemptStatus, "ok | failed"]
    failure_class: A[str | None, "as in points"] = None
    deployment_id: A[str, "see deployments"] = ""
    data_bytes: A[int, "size of its files, without those that may be deleted"] = 0

    @property
    def age(self) -> tuple[int, int, str]:
        """Sort key of the attempts at a measurement: in order of commit, whatever the drivers'
        clocks said.
        """
        return self.earlier, self.created_unix_ns, self.attempt_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttemptData(Committed):
    """One committed attempt with everything that answers are computed from.

    The ``request_`` lists have one entry per measured request that was due in the steady window, in
    scheduled order. A value in seconds is -inf where the request cannot violate a limit (one token
    has no TPOT), NaN where it is unknown.
    """

    metrics_version: A[I32, "how the figures were computed"]
    point: A[PointHead, "its row in points, without the evidence"]
    deployment: A[
        DeploymentRow | None, "its row in deployments; null: none was committed with it"
    ] = None
    figures: A[Figures, "its metrics"]
    engine_side: A[EngineSide | None, "what the engines reported about themselves"] = None
    device_side: A[DeviceSide | None, "what the GPUs did in the steady window"] = None
    batch_tokens: A[Doubles, "output tokens of each tenth of the steady window"]
    batch_s: A[Doubles, "length of each"]
    request_ok: A[BoolList, "whether it was answered"]
    request_ttft_s: A[Doubles, "from scheduled to the first content token"]
    request_tpot_s: A[Doubles, "time per output token after the first"]
    request_e2e_s: A[Doubles, "from scheduled to the last content token"]
    request_normalized_ttft_s: A[
        Doubles, "from scheduled to the first content token, per prompt token"
    ]
    request_itl_p99_s: A[
        Doubles | None, "p99 of its own token gaps; null: the attempt has no token_events"
    ] = None
    request_part: A[
        ShortList | None, "index in part_names of the part it is of; null: the workload is no mix"
    ] = None
    part_names: A[tuple[str, ...], "names of the parts of its mix that requests are of"] = ()
    part_figures: A[tuple[PartFigures, ...], "the metrics of each of these parts alone"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFigures:
    """The metrics of several repeats of a point, computed as if they were one attempt."""

    attempt_ids: A[str, "the attempts, sorted and joined by +"]
    metrics_version: A[I32, "how the figures were computed"]
    figures: A[Figures, "their metrics"]
    part_figures: A[tuple[PartFigures, ...], "those of each part of a mix alone"] = ()

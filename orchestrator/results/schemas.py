"""The Arrow schemas of all tables: the one contract between measuring and everything after it.

Keys are never null, units stand in names, every column carries its description. Rules for changes:
docs/data-format.md.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1


def _schema(table: str, *columns: tuple[str, pa.DataType, bool, str]) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=null, metadata={"description": text}) for name, kind, null, text in columns]
    return pa.schema(fields, metadata={"table": table, "schema_version": str(SCHEMA_VERSION)})


_S, _I16, _I32, _I64, _F, _B = pa.string(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()
_KEY = (
    ("measurement_id", _S, False, "hash of point_id, repeat and seed"),
    ("attempt_id", _S, False, "ULID of this attempt at the measurement"),
)

_ERROR_CLASSES = (
    "connect | reset | http_4xx | http_429 | http_5xx | stream_error | truncated | no_end | wrong_length | garbage | "
    "timeout | client"
)

REQUESTS = _schema(
    "requests",
    *_KEY,
    ("request_index", _I32, False, "index in the point's one global schedule"),
    ("client", _I16, False, "client that sent it"),
    ("replica", _I16, False, "replica it was sent to"),
    ("phase", _S, False, "warmup | measure"),
    ("session", _I32, True, "conversation it belongs to"),
    ("turn", _I16, True, "turn within the conversation, from 0"),
    ("scheduled_ns", _I64, False, "when it was due, ns since the point's start"),
    ("sent_ns", _I64, True, "when its first byte was handed to the socket; null: never sent"),
    ("first_byte_ns", _I64, True, "first byte of the response"),
    ("first_token_ns", _I64, True, "first event with content"),
    ("last_token_ns", _I64, True, "last event with content"),
    ("done_ns", _I64, False, "when its outcome was known"),
    ("input_tokens_asked", _I32, False, "prompt length we meant to send; 0: a prompt file's, not known before"),
    ("input_tokens", _I32, True, "prompt length the engine reported"),
    ("output_tokens_asked", _I32, False, "output length asked for"),
    ("output_tokens", _I32, True, "N of all formulas: the engine's count where it gives one, else ours"),
    ("output_tokens_counted", _I32, True, "our own count from the stream"),
    ("token_count_source", _S, True, "usage | token_ids | continuous_usage | native | tokenizer | chunks"),
    ("cached_tokens", _I32, True, "prompt tokens the engine took from its prefix cache"),
    ("chunks", _I32, False, "events with content"),
    ("coalesced_chunks", _I32, False, "content events that shared a read with an earlier one of this request"),
    ("itl_kind", _S, True, "token: every chunk held one token; chunk: gaps were spread over several"),
    ("finish_reason", _S, True, "as the engine said it"),
    ("status", _S, False, "ok | error | invalid | timeout | aborted | lost"),
    ("error_class", _S, True, _ERROR_CLASSES),
    ("error", _S, True, "first 500 characters of what was said"),
    ("http_status", _I16, True, "HTTP status code"),
)

TOKEN_EVENTS = _schema(
    "token_events",
    *_KEY,
    ("request_index", _I32, False, "as in requests"),
    ("gaps_us", pa.list_(pa.int32()), False, "gaps between content chunks, rounded to 1 us with the remainder carried"),
    ("tokens_per_chunk", pa.list_(pa.int16()), True, "tokens of each content chunk; null: one each"),
)

POINTS = _schema(
    "points",
    *_KEY,
    ("point_id", _S, False, "hash of deployment, workload, level, warm-up rule and client version"),
    ("deployment_id", _S, False, "see deployments"),
    ("launch_id", _S, False, "live start of the engine it ran on; empty: none was reached"),
    ("experiment", _S, False, "name in the experiment file"),
    ("workload", _S, False, "name of the workload"),
    ("workload_json", _S, False, "the workload, resolved"),
    ("control", _S, False, "request_rate | concurrency"),
    ("level", _F, False, "requests per second, or requests in flight"),
    ("arrivals", _S, False, "arrival process; closed for concurrency"),
    ("repeat", _I32, False, "from 0"),
    ("seed", _I64, False, "seed of the schedule"),
    ("status", _S, False, "ok | failed"),
    ("reason", _S, True, "one plain sentence when failed"),
    ("failure_class", _S, True, "bad_config | engine_crash | infra | timeout | client_bound"),
    ("validity", _S, False, "valid | client_bound | engine_bound_backlog | invalid | unmeasured"),
    ("validity_reasons", pa.list_(_S), False, "evidence in sentences"),
    ("evidence_json", _S, False, "figures behind validity: achieved and offered rate, lags, CPU, sockets, mismatches"),
    ("clients", _I32, False, "client processes"),
    ("clients_json", _S, False, "ClientStats of each"),
    ("window_start_ns", _I64, False, "steady window, ns since the point's start"),
    ("window_end_ns", _I64, False, ""),
    ("started_unix_ns", _I64, False, "wall clock of the point's start at the driver"),
    ("requests_scheduled", _I32, False, "rows of this attempt in requests"),
    ("emulated", _B, False, "true: an emulator answered, not an engine"),
    ("client_version", _S, False, "version of this program"),
)

DEPLOYMENTS = _schema(
    "deployments",
    ("deployment_id", _S, False, "hash of the resolved engine configuration, version, revision and hardware class"),
    ("experiment", _S, False, ""),
    ("label", _S, False, "short name that tells it from its siblings"),
    ("engine", _S, False, ""),
    ("engine_version", _S, True, "as asked for"),
    ("model", _S, False, ""),
    ("hardware", _S, False, "hardware class"),
    ("accelerator", _S, False, ""),
    ("devices", _I32, False, "GPUs (cores on cpu) of all replicas"),
    ("nodes", _I32, False, "nodes of one replica"),
    ("replicas", _I32, False, ""),
    ("tensor_parallel_size", _I32, False, ""),
    ("pipeline_parallel_size", _I32, False, ""),
    ("data_parallel_size", _I32, False, ""),
    ("quantization", _S, True, ""),
    ("kv_cache_dtype", _S, True, ""),
    ("max_num_seqs", _I32, True, ""),
    ("max_num_batched_tokens", _I32, True, ""),
    ("usd_per_hour", _F, True, "all replicas together"),
    ("settings_json", _S, False, "the whole resolved configuration; no secrets"),
    ("predicted_json", _S, True, "weights, KV tokens and concurrency predicted by plan"),
)

LAUNCHES = _schema(
    "launches",
    ("launch_id", _S, False, "ULID"),
    ("deployment_id", _S, False, ""),
    ("experiment", _S, False, ""),
    ("status", _S, False, "ok | failed"),
    ("failure_class", _S, True, ""),
    ("failure_kind", _S, True, "signature, see engines/failures.py"),
    ("reason", _S, True, "one plain sentence"),
    ("log_tail", _S, True, "last lines of the engine"),
    ("log_uri", _S, True, "whole log, below the results root"),
    ("engine_version", _S, True, "as the engine reports it"),
    ("argv_json", _S, True, "argv of every rank; no secrets"),
    ("placement_json", _S, True, "node, devices and cores of every rank"),
    ("engine_reported_json", _S, True, "what the engine said at start: KV tokens, model length, …"),
    ("placed_s", _F, True, "seconds from request to placement"),
    ("ready_s", _F, True, "seconds from process start to ready"),
    ("stopped_s", _F, True, "seconds the stop took"),
    ("held_s", _F, True, "seconds the devices were held"),
    ("started_unix_ns", _I64, False, "wall clock of the driver when placement was asked for"),
    ("emulated", _B, False, ""),
)

EVENTS = _schema(
    "events",
    ("unix_ns", _I64, False, "wall clock of the driver"),
    ("kind", _S, False, "retry | engine_died | client_lost | node_lost | stop | overhead | …"),
    ("launch_id", _S, True, ""),
    ("measurement_id", _S, True, ""),
    ("text", _S, False, "one sentence"),
    ("data_json", _S, True, ""),
)

SELFCHECKS = _schema(
    "selfchecks",
    ("selfcheck_id", _S, False, "ULID"),
    ("experiment", _S, False, ""),
    ("host", _S, True, "name of the host; null when the check failed"),
    ("address", _S, False, "IP address of its node; clients name the host in points.clients_json"),
    ("status", _S, False, "ok | failed"),
    ("reason", _S, True, "one plain sentence when failed"),
    ("engines_starting", _I32, False, "engine ranks that were starting on this host meanwhile: it could do more alone"),
    ("cpus", _I32, True, "cores of the host"),
    ("clients", _I32, True, "client processes of the check"),
    ("events_per_s", _F, True, "highest rate of streamed events kept up with exactly, of those tried; 0: none"),
    ("limited_by", _S, True, "what ended the search for that rate: client | server | nothing | time"),
    ("cpu_us_per_event", _F, True, "client CPU at that rate"),
    ("cpu_share", _F, True, "of a core, at that rate"),
    ("loop_lag_p99_ms", _F, True, "at that rate"),
    ("ttft_error_mean_ms", _F, True, "what the client adds to the TTFT, at a rate far from any limit"),
    ("ttft_error_p99_ms", _F, True, ""),
    ("itl_error_mean_ms", _F, True, ""),
    ("itl_error_p99_ms", _F, True, ""),
    ("send_lag_p99_ms", _F, True, "sent - due, at open_loop_requests_per_s"),
    ("open_loop_requests_per_s", _F, True, ""),
    ("took_s", _F, False, "seconds the check lasted"),
    ("started_unix_ns", _I64, False, "wall clock of the driver"),
    ("python", _S, True, ""),
    ("client_version", _S, False, "version of this program"),
)

ENGINE_METRICS = _schema(
    "engine_metrics",
    *_KEY,
    ("replica", _I16, False, "replica that told"),
    ("unix_ns", _I64, False, "wall clock of the replica's node at the reading"),
    ("running", _F, True, "requests in the batch now"),
    ("waiting", _F, True, "requests in its queue now"),
    ("kv_usage", _F, True, "share of the KV cache in use now, 0 to 1"),
    ("preemptions_total", _F, True, "requests taken out of the batch for want of KV cache"),
    ("prefix_query_tokens_total", _F, True, "prompt tokens looked up in the prefix cache"),
    ("prefix_hit_tokens_total", _F, True, "prompt tokens found there"),
    ("queue_time_s_sum", _F, True, "seconds requests waited in its queue, all together"),
    ("queue_time_count", _F, True, "requests in that sum"),
    ("ttft_s_sum", _F, True, "seconds from arrival to the first token, all together"),
    ("ttft_count", _F, True, "requests in that sum"),
    ("spec_draft_tokens_total", _F, True, "tokens proposed by speculative decoding"),
    ("spec_accepted_tokens_total", _F, True, "of these, accepted"),
    ("prompt_tokens_total", _F, True, "prompt tokens computed"),
    ("generation_tokens_total", _F, True, "tokens generated"),
)

TABLES: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "token_events": TOKEN_EVENTS,
    "points": POINTS,
    "deployments": DEPLOYMENTS,
    "launches": LAUNCHES,
    "events": EVENTS,
    "selfchecks": SELFCHECKS,
    "engine_metrics": ENGINE_METRICS,
}

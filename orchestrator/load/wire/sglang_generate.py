"""SGLang's own ``POST /generate`` (LMDeploy has one of the same shape): each event holds the whole
text and the whole count so far.
"""

from typing import Any

import numpy as np

from orchestrator.load.wire.constraint_fields import with_options
from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_text,
    length_fields,
    read_odd_event,
    refuse,
    token_ids,
)
from orchestrator.load.wire.parsed import UNKNOWN, Parsed, whole_number
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt


class SglangGenerate:
    running_source = "native"

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        sampling: dict[str, Any] = {
            "max_new_tokens": output_tokens,
            "temperature": 0.0,
            **length_fields(output_tokens, dialect),
        }
        sampling = with_options(sampling, prompt, dialect)
        content = prompt.flat()
        prompt_field = "input_ids" if isinstance(content, np.ndarray) else "text"
        fields: dict[str, Any] = {
            prompt_field: content,
            "sampling_params": sampling,
            "stream": True,
            **dialect.adapter_fields(prompt.adapter),
        }
        if dialect.logprobs:
            fields["return_logprob"] = True
        return encode(fields, dialect)

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            if isinstance(event, dict) and not event.keys().isdisjoint(_FIELDS):
                _read(event, parsed)
            else:
                read_odd_event(event, parsed)


_FIELDS = ("text", "output_ids", "meta_info")


def _read(event: dict[str, Any], parsed: Parsed) -> None:
    message = error_text(event)
    if message is not None:
        refuse(event, message, parsed)
    meta = event.get("meta_info")
    if not isinstance(meta, dict):
        meta = {}
    total = whole_number(meta.get("completion_tokens"))
    has_text = _has_new_text(event, parsed)
    parsed.add_total(total, has_text, may_hold_back=True)
    if total is not None:
        parsed.output_tokens = total
        parsed.total_event = len(parsed.tokens)
    _read_meta(meta, parsed)
    if parsed.texts is not None:
        _collect(event, parsed)
        if total is not None:
            _collect_logprobs(meta.get("output_token_logprobs"), total, parsed)
    parsed.tokens.append(UNKNOWN if has_text else 0)


def _has_new_text(event: dict[str, Any], parsed: Parsed) -> bool:
    """Whether an event holds other text, or another number of ids, than the event before: more of
    the whole, or, where the server streams increments, the next piece.
    """
    text = event.get("text")
    ids = event.get("output_ids")
    has_new_text = False
    has_new_ids = False
    if isinstance(text, str):
        has_new_text = text not in ("", parsed.last_text)
        parsed.last_text = text
    if isinstance(ids, list):
        has_new_ids = len(ids) not in (0, parsed.last_id_count)
        parsed.last_id_count = len(ids)
    return has_new_text or has_new_ids


def _read_meta(meta: dict[str, Any], parsed: Parsed) -> None:
    """Records counts of the prompt, and why the answer ended."""
    prompt_tokens = whole_number(meta.get("prompt_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    cached_tokens = whole_number(meta.get("cached_tokens"))
    if cached_tokens is not None:
        parsed.cached_tokens = cached_tokens
    reason = meta.get("finish_reason")
    parsed.finish(reason)
    kind = reason
    message = ""
    if isinstance(reason, dict):
        kind = reason.get("type")
        message = reason.get("message", "")
    if kind == "abort":
        refuse({"error": reason}, f"aborted by the engine: {message}", parsed)


def _collect(event: dict[str, Any], parsed: Parsed) -> None:
    """Collects the reply. Each event holds all of it so far, unless the server streams
    increments.
    """
    text = event.get("text")
    if isinstance(text, str):
        texts = parsed.texts or []
        is_whole = text.startswith("".join(texts))
        parsed.texts = [text] if is_whole else [*texts, text]
        parsed.answer_texts = parsed.texts
    ids = token_ids(event.get("output_ids"))
    if ids is not None:
        is_whole = len(ids) == parsed.output_tokens
        parsed.token_ids = ids if is_whole else [*(parsed.token_ids or []), *ids]


def _collect_logprobs(entries: Any, total: int, parsed: Parsed) -> None:
    """Collects the log-probabilities, each the first item of an entry. Each event holds those of
    all tokens so far, unless the server streams increments.
    """
    if not isinstance(entries, list):
        return
    is_whole = len(entries) >= total
    if is_whole:
        entries = entries[len(parsed.logprobs or ()) :]
    logprobs = []
    for entry in entries:
        has_number = isinstance(entry, list) and len(entry) > 0
        logprobs.append(entry[0] if has_number else None)
    collect_logprobs(logprobs, parsed)


WIRE = SglangGenerate()

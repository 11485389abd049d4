"""SGLang's own ``POST /generate`` (LMDeploy has one of the same shape): text and counts are
cumulative.
"""

from typing import Any

import numpy as np

from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_text,
    length_fields,
    odd_event,
    refuse,
    token_ids,
)
from orchestrator.load.wire.parsed import UNKNOWN, Parsed, count
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt


class SglangGenerate:
    running_source = "native"

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        sampling = {
            "max_new_tokens": output_tokens,
            "temperature": 0.0,
            **length_fields(output_tokens, dialect),
        }
        content = prompt.flat()
        name = "input_ids" if isinstance(content, np.ndarray) else "text"
        asked = {"return_logprob": True} if dialect.logprobs else {}
        return encode(
            {name: content, "sampling_params": sampling, "stream": True, **asked}, dialect
        )

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            if isinstance(event, dict) and not event.keys().isdisjoint(_FIELDS):
                _read(event, parsed)
            else:
                odd_event(event, parsed)


_FIELDS = ("text", "output_ids", "meta_info")


def _read(event: dict[str, Any], parsed: Parsed) -> None:
    said = error_text(event)
    if said is not None:
        refuse(event, said, parsed)
    meta = event.get("meta_info")
    if not isinstance(meta, dict):
        meta = {}
    total = count(meta.get("completion_tokens"))
    has_text = _has_new_text(event, parsed)
    parsed.add_total(total, has_text, True)
    if total is not None:
        parsed.output_tokens, parsed.total_event = total, len(parsed.tokens)
    _read_meta(meta, parsed)
    if parsed.texts is not None:
        _collect(event, parsed)
        if total is not None:
            _collect_logprobs(meta.get("output_token_logprobs"), total, parsed)
    parsed.tokens.append(UNKNOWN if has_text else 0)


def _has_new_text(event: dict[str, Any], parsed: Parsed) -> bool:
    """Whether an event holds more text, or more ids, than the one before, or another piece of it."""
    text, ids = event.get("text"), event.get("output_ids")
    new = False
    if isinstance(text, str):
        new = text not in ("", parsed.last_text)
        parsed.last_text = text
    if isinstance(ids, list):
        new = new or len(ids) not in (0, parsed.last_ids)
        parsed.last_ids = len(ids)
    return new


def _read_meta(meta: dict[str, Any], parsed: Parsed) -> None:
    if (prompt_tokens := count(meta.get("prompt_tokens"))) is not None:
        parsed.input_tokens = prompt_tokens
    if (cached := count(meta.get("cached_tokens"))) is not None:
        parsed.cached_tokens = cached
    reason = meta.get("finish_reason")
    parsed.finish(reason)
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort":
        said = (
            "aborted by the engine: "
            f"{reason.get('message', '') if isinstance(reason, dict) else ''}"
        )
        refuse({"error": reason}, said, parsed)


def _collect(event: dict[str, Any], parsed: Parsed) -> None:
    """Each event holds the whole reply so far, unless the server streams increments."""
    text, ids = event.get("text"), token_ids(event.get("output_ids"))
    whole = isinstance(text, str) and text.startswith("".join(parsed.texts or []))
    if isinstance(text, str):
        parsed.texts = [text] if whole else [*(parsed.texts or []), text]
        parsed.answer_texts = parsed.texts
    if ids is not None:
        parsed.token_ids = (
            ids if len(ids) == parsed.output_tokens else [*(parsed.token_ids or []), *ids]
        )


def _collect_logprobs(said: Any, total: int, parsed: Parsed) -> None:
    """Each event holds the log-probabilities of all tokens so far, unless the server streams
    increments.
    """
    if not isinstance(said, list):
        return
    new = said if len(said) < total else said[len(parsed.logprobs or ()) :]
    collect_logprobs([one[0] if isinstance(one, list) and one else None for one in new], parsed)


WIRE = SglangGenerate()

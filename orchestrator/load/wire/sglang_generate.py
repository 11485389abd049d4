"""SGLang's own ``POST /generate`` (LMDeploy has one of the same shape): text and counts are
cumulative.
"""

from typing import Any

import numpy as np

from orchestrator.load.wire import (
    Parsed,
    collect_logprobs,
    count,
    decode,
    encode,
    length_fields,
    odd_event,
    refuse,
)
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect


class SglangGenerate:
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

    def count(self, payloads: list[bytes], parsed: Parsed) -> bool:
        return False

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            try:
                meta = event["meta_info"]
                total = count(meta["completion_tokens"])
            except (KeyError, TypeError):
                total = None
            if total is None:
                odd_event(event, parsed)
                continue
            parsed.tokens.append(max(total - (parsed.output_tokens or 0), 0))
            parsed.source = "native"
            parsed.output_tokens = total
            _read_meta(meta, parsed)
            if parsed.texts is not None:
                _collect(event, parsed)
                _collect_logprobs(meta.get("output_token_logprobs"), total, parsed)


def _read_meta(meta: dict[str, Any], parsed: Parsed) -> None:
    if (prompt_tokens := count(meta.get("prompt_tokens"))) is not None:
        parsed.input_tokens = prompt_tokens
    if (cached := count(meta.get("cached_tokens"))) is not None:
        parsed.cached_tokens = cached
    reason = meta.get("finish_reason")
    if not reason:
        return
    kind = reason.get("type") if isinstance(reason, dict) else reason
    parsed.finish_reason = str(kind)
    if kind == "abort":
        said = f"aborted by the engine: {reason.get('message', '') if isinstance(reason, dict) else ''}"
        refuse({"error": reason}, said, parsed)


def _collect(event: dict[str, Any], parsed: Parsed) -> None:
    """Each event holds the whole reply so far, unless the server streams increments."""
    text, ids = event.get("text"), event.get("output_ids")
    whole = isinstance(text, str) and text.startswith("".join(parsed.texts or []))
    if isinstance(text, str):
        parsed.texts = [text] if whole else [*(parsed.texts or []), text]
    if isinstance(ids, list):
        parsed.token_ids = (
            ids if len(ids) == parsed.output_tokens else [*(parsed.token_ids or []), *ids]
        )


def _collect_logprobs(said: Any, total: int, parsed: Parsed) -> None:
    """Each event holds the log-probabilities of all tokens so far, unless the server streams
    increments.
    """
    try:
        said = said or []
        values = [
            one[0] for one in (said if len(said) < total else said[len(parsed.logprobs or ()) :])
        ]
    except (KeyError, TypeError, IndexError):
        parsed.garbage = (
            parsed.garbage or f"not the log-probabilities of this API: {str(said)[:1_000]}"
        )
    else:
        collect_logprobs(values, parsed)


WIRE = SglangGenerate()

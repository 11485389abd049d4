"""TGI: ``POST /generate_stream``, one token per event (LightLLM speaks it too). There is no [DONE]:
the last event carries the details. TGI itself has no way to ignore the end-of-sequence token.
"""

from typing import Any

from orchestrator.load.wire.constraint_fields import with_options
from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_text,
    length_fields,
    read_odd_event,
    refuse,
    text_of,
)
from orchestrator.load.wire.parsed import Parsed, whole_number
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt

# TGI samples where it is asked for one of these, LightLLM only where it has do_sample, too
_SAMPLING = frozenset({"temperature", "top_p", "top_k", "typical_p"})


class Tgi:
    running_source = "native"

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        parameters: dict[str, Any] = {
            "max_new_tokens": output_tokens,
            "do_sample": False,
            "details": True,
        }
        parameters |= length_fields(output_tokens, dialect)
        parameters |= dialect.adapter_fields(prompt.adapter)
        parameters = with_options(parameters, prompt, dialect)
        if parameters.get("temperature") == 0:
            del parameters["temperature"]  # TGI refuses it; without one it is greedy, too
        if "do_sample" not in prompt.fields and not _SAMPLING.isdisjoint(parameters):
            parameters["do_sample"] = True
        return encode({"inputs": prompt.flat(), "parameters": parameters, "stream": True}, dialect)

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            if isinstance(event, dict) and not event.keys().isdisjoint(_FIELDS):
                _read(event, parsed)
            else:
                read_odd_event(event, parsed)


_FIELDS = ("token", "generated_text", "details", "finished")


def _read(event: dict[str, Any], parsed: Parsed) -> None:
    message = error_text(event)
    if message is not None:
        refuse(event, message, parsed)
    if parsed.ended:  # what follows the end is no part of the answer
        parsed.tokens.append(0)
        return
    token = event.get("token")
    if token and not isinstance(token, dict):
        parsed.garbage = parsed.garbage or f"not a token of this API: {str(token)[:1_000]}"
    if not token or not isinstance(token, dict):
        token = {}
    has_whole_text = event.get("generated_text") is not None
    if event.get("details") or event.get("finished") or has_whole_text:
        _read_end(event, token, parsed)
    prompt_tokens = whole_number(token.get("prompt_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    token_id = whole_number(token.get("id"))
    text = text_of(token.get("text"))
    if token_id is None and not text:
        parsed.tokens.append(0)
        return
    parsed.tokens.append(1)
    parsed.source = "native"
    if parsed.texts is None:
        return
    parsed.texts.append(text)
    parsed.answer_texts.append(text)
    if token_id is not None:
        parsed.token_ids = [*(parsed.token_ids or []), token_id]
    if "logprob" in token:
        collect_logprobs([token["logprob"]], parsed)


def _read_end(event: dict[str, Any], token: dict[str, Any], parsed: Parsed) -> None:
    """Reads the details of the last event. LightLLM has its counts in the token instead."""
    parsed.ended = True
    details = event.get("details")
    if not isinstance(details, dict):
        details = {}
    parsed.finish(details.get("finish_reason") or event.get("finish_reason"))
    generated = whole_number(details.get("generated_tokens"))
    if generated is None:
        generated = whole_number(token.get("count_output_tokens"))
    if generated is not None:
        parsed.output_tokens = generated
        parsed.total_event = len(parsed.tokens)
    input_length = whole_number(details.get("input_length"))
    if input_length is not None:
        parsed.input_tokens = input_length


WIRE = Tgi()

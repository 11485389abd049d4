"""TGI: ``POST /generate_stream``, one token per event (LightLLM speaks it too). There is no [DONE]:
the last event carries the details. TGI itself has no way to ignore the end-of-sequence token.
"""

from typing import Any

from orchestrator.load.wire import (
    Parsed,
    collect_logprobs,
    count,
    decode,
    encode,
    length_fields,
    odd_event,
)
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect


class Tgi:
    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        parameters: dict[str, Any] = {
            "max_new_tokens": output_tokens,
            "do_sample": False,
            "details": True,
        }
        parameters |= length_fields(output_tokens, dialect)
        return encode({"inputs": prompt.flat(), "parameters": parameters, "stream": True}, dialect)

    def count(self, payloads: list[bytes], parsed: Parsed) -> bool:
        return False

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            try:
                token = event["token"]
                text, prompt_tokens = token["text"], count(token.get("prompt_tokens"))
                if (
                    event.get("details")
                    or event.get("finished")
                    or event.get("generated_text") is not None
                ):
                    _read_end(event, parsed)
            except (KeyError, TypeError, AttributeError):
                odd_event(event, parsed)
                continue
            parsed.tokens.append(1)
            parsed.source = "native"
            if prompt_tokens is not None:
                parsed.input_tokens = prompt_tokens
            if parsed.texts is not None:
                parsed.texts.append(str(text))
                if (token_id := count(token.get("id"))) is not None:
                    parsed.token_ids = [*(parsed.token_ids or []), token_id]
                if "logprob" in token:
                    collect_logprobs([token["logprob"]], parsed)


def _read_end(event: dict[str, Any], parsed: Parsed) -> None:
    parsed.ended = True
    details = event.get("details") or {}
    reason = details.get("finish_reason") or event.get("finish_reason")
    parsed.finish_reason = str(reason) if reason else None
    generated = count(details.get("generated_tokens"))
    if generated is None:
        generated = count(event["token"].get("count_output_tokens"))
    if generated is not None:
        parsed.output_tokens = generated
    if (input_length := count(details.get("input_length"))) is not None:
        parsed.input_tokens = input_length


WIRE = Tgi()

"""The prompts that every launch answers before its first point, so that answers of engines can be
compared.
"""

from dataclasses import replace

from orchestrator.analysis.broken_output import FEWEST_ALIKE
from orchestrator.load.point import LoadPoint
from orchestrator.spec.load import Lengths, Level
from orchestrator.workloads.drawn import RandomWorkload

# many short prompts, so that an early difference spoils only one answer
PROMPTS = 32
PROMPT_WORDS = 16
ANSWER_TOKENS = 8
# seconds; slower answers are not waited for, because the points show how good so slow an engine is
ANSWERS_WITHIN_S = 60.0


def fixed_prompts(point: LoadPoint, logprobs: bool) -> LoadPoint:
    """A point that sends the same prompts to every engine and model, through the given point's API,
    answered greedily.

    The prompts are text, so that engines that take no token ids get the same ones. More replicas
    get more prompts, so that each replica answers a few.
    """
    prompts = max(PROMPTS, FEWEST_ALIKE * len(point.targets))
    workload = RandomWorkload(
        name="answers",
        api=point.workload.api,
        input_tokens=Lengths(fixed=PROMPT_WORDS),
        output_tokens=Lengths(fixed=ANSWER_TOKENS),
    )
    return LoadPoint(
        targets=point.targets,
        dialect=replace(point.dialect, prompt_token_ids=False, logprobs=logprobs),
        workload=workload,
        level=Level(control="concurrency", value=prompts),
        duration_s=None,
        requests=prompts,
        seed=1,
        request_timeout_s=min(point.request_timeout_s, ANSWERS_WITHIN_S),
        keep_replies=True,
        measurement_id=point.measurement_id,
        attempt_id=point.attempt_id,
    )

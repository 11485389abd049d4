"""Speculative decoding in the model of a rank: how long a step takes that drafts and verifies, and
how many drafts it accepts.

A step computes one token and all drafts of each sequence, and reads the weights and each context
once for them. A draft is accepted only where all before it are, each with the same probability.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.drafts import (
    head_as_model,
    is_head,
    is_own_layers,
    own_layer_as_model,
    settings_of_draft,
)
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.profile import Constants, resolved
from orchestrator.emulator.step_costs import Chunk, Costs, step_costs
from orchestrator.spec.settings import EngineSettings

_HALVINGS = 50  # of the range of a probability


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of one data-parallel rank.

    ``tokens``: drafted for each sequence in a step. ``acceptance``: the probability that a draft is
    accepted if all before it are. ``verifying``: the costs of the model, whose attention is that of
    ``tokens`` + 1 tokens of each sequence. ``drafter``: the costs of the draft model, head or
    layer. It is None where drafts are looked up in earlier tokens, which is taken to cost nothing.
    """

    tokens: int
    acceptance: float
    verifying: Costs
    drafter: Costs | None

    def step_s(self, decodes: int, context: int, windowed: float, chunks: list[Chunk]) -> float:
        """Seconds of a step that verifies the drafts of ``decodes`` sequences and drafts new ones.
        The other arguments are those of ``StepTimes.mixed``.
        """
        drafts = decodes * self.tokens
        verifying_s = self.verifying.mixed(decodes, context, windowed, chunks, drafts)
        if self.drafter is None:
            return verifying_s
        return verifying_s + self._drafting_s(self.drafter, decodes, context, chunks)

    def _drafting_s(self, drafter: Costs, decodes: int, context: int, chunks: list[Chunk]) -> float:
        """Seconds of the draft model's own steps: the first reads the chunks of prompts, too, and
        each of the others drafts one more token of every sequence.
        """
        first_s = drafter.mixed(decodes, context, _windowed(drafter, decodes, context), chunks)
        sequences = decodes + len(chunks)
        context += sum(chunk.start + chunk.tokens for chunk in chunks)
        windowed = _windowed(drafter, sequences, context)
        following = drafter.decode(sequences, context, windowed)
        return first_s + (self.tokens - 1) * following.step_s


def _windowed(costs: Costs, sequences: int, context: int) -> float:
    """Tokens that sequences of equal length read in sliding-window layers."""
    return float(min(context, sequences * costs.window))


def drafts_of(
    settings: EngineSettings,
    facts: ModelFacts,
    draft: ModelFacts | None,
    device: Accelerator,
    constants: Constants,
    accepted_share: float,
) -> Drafts:
    """The drafts of a deployment with ``speculative``.

    ``draft``: facts of the draft model or head. It is None where drafts are looked up, or come from
    the model's own layers. ``accepted_share``: accepted tokens over drafted ones.
    """
    speculative = settings.speculative
    assert speculative is not None
    tokens = speculative.num_speculative_tokens
    constants = resolved(constants, settings.engine, device)
    drafter: Costs | None = None
    # what the host does for each sequence it does once a step: ``verifying`` has it
    drafter_constants = constants.model_copy(update={"sequence_overhead_s": 0.0})
    if is_own_layers(settings):
        # they run on the last pipeline stage alone
        drafter_settings = settings.model_copy(update={"pipeline_parallel_size": 1})
        drafter = step_costs(drafter_settings, own_layer_as_model(facts), device, drafter_constants)
    elif draft is not None:
        if is_head(draft, speculative):
            draft = head_as_model(draft)
        unquantized = {"model": draft.model, "quantization": None}
        drafter_settings = settings_of_draft(settings, speculative).model_copy(update=unquantized)
        drafter = step_costs(drafter_settings, draft, device, drafter_constants)
    return Drafts(
        tokens=tokens,
        acceptance=acceptance_of(accepted_share, tokens),
        verifying=step_costs(settings, facts, device, constants, tokens + 1),
        drafter=drafter,
    )


def acceptance_of(accepted_share: float, tokens: int) -> float:
    """The probability ``a`` that a draft is accepted if all before it are, where a share of all
    drafts is accepted: the solution of ``a + a^2 + ... + a^tokens = accepted_share * tokens``.
    """
    lowest, highest = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (lowest + highest) / 2
        accepted = sum(middle**place for place in range(1, tokens + 1))
        if accepted < accepted_share * tokens:
            lowest = middle
        else:
            highest = middle
    return highest if accepted_share > 0 else 0.0

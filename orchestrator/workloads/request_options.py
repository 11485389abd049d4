"""What the requests of a workload ask for beside their prompts: which of them are constrained, and
to what, and which fields they carry.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from orchestrator.spec.constraint import Constraint, ConstraintKind
from orchestrator.spec.load import Workload
from orchestrator.spec.request_options import Constrain, NamedTool
from orchestrator.workloads.kind import OPTION_STREAM, Prompt, stream
from orchestrator.workloads.recorded_tools import must_call_tool

# The random streams below OPTION_STREAM, by purpose.
_CONSTRAINT = 0


def options_of(workload: Workload, seed: int) -> RequestOptions | None:
    """The options of a workload's requests; None for a workload without any."""
    asks_for_tools = workload.tools is not None or workload.tool_choice is not None
    if workload.constrain is None and not asks_for_tools and not workload.request:
        return None
    return RequestOptions(workload, seed)


class RequestOptions:
    """Adds the options of a workload to its prompts. Which requests are constrained is drawn by
    session and turn, so that every client draws the same.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self._constrain = workload.constrain
        self._seed = seed
        self._fields = dict(workload.request or {})
        if workload.tools is not None:
            self._fields["tools"] = list(workload.tools)
        self._tool_choice = _tool_choice(workload)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """All variants of the constraint."""
        return () if self._constrain is None else variants_of(self._constrain)

    def added(self, prompt: Prompt, session: int, turn: int) -> Prompt:
        """The prompt with the workload's options. The workload's constraint and its choice of tools
        go before those of the prompt, but the prompt's fields go before those of the workload.
        """
        fields = {**self._fields, **prompt.fields}
        if "tools" in fields and self._tool_choice is not None:
            fields["tool_choice"] = self._tool_choice
        constraint = self.constraint(session, turn) or prompt.constraint
        # 0: unknown, because the model reads the tools, too, and each model's template writes them
        tokens = 0 if "tools" in fields else prompt.tokens
        return replace(
            prompt,
            tokens=tokens,
            fields=fields,
            constraint=constraint,
            ends_naturally=constraint is not None or must_call_tool(fields),
        )

    def constraint(self, session: int, turn: int) -> Constraint | None:
        """What the answer to one request must be; None where it is free."""
        constrain = self._constrain
        if constrain is None or constrain.share == 0:
            return None
        if constrain.share == 1 and constrain.variants == 1:
            return self.constraints[0]
        rng = stream(self._seed, OPTION_STREAM, _CONSTRAINT, session, turn)
        chance, which = rng.random(2)
        if chance >= constrain.share:
            return None
        return self.constraints[int(which * len(self.constraints))]


def variants_of(constrain: Constrain) -> tuple[Constraint, ...]:
    """A constraint in all its variants. An engine compiles each anew, because their schemas have
    different descriptions; the same answers are valid for all.
    """
    kind = constrain.kind
    if kind is ConstraintKind.REGEX:
        return (Constraint(kind, regex=constrain.regex or ""),)
    if kind is ConstraintKind.CHOICE:
        return (Constraint(kind, choices=constrain.choice or ()),)
    schema = constrain.schema_content
    if constrain.variants == 1:
        return (Constraint(kind, schema=schema),)
    variants: list[Constraint] = []
    for number in range(1, constrain.variants + 1):
        words = f"{schema.get('description', '')} (variant {number} of {constrain.variants})"
        variants.append(Constraint(kind, schema={**schema, "description": words.strip()}))
    return tuple(variants)


def _tool_choice(workload: Workload) -> Any:
    """The field ``tool_choice`` of the body, as OpenAI's API has it; None: it is not sent."""
    choice = workload.tool_choice
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice

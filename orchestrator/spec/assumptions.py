"""What a simulation may be told in place of what only a running engine knows: ``simulate --assume``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.document import nearest
from orchestrator.spec.settings import Strict


@dataclass(frozen=True, slots=True)
class EngineFact:
    """Something that only a running engine knows.

    ``assumption``: what a simulation may be told in its place, as ``NAME=VALUE``; None: nothing.
    """

    text: str
    assumption: str | None = None


ANSWER_LENGTHS = EngineFact("how long constrained answers are", "constrained_answers=asked")
TOOL_TOKENS = EngineFact("how many tokens the tools in a prompt have")
ADAPTER_COSTS = EngineFact("what LoRA adapters cost", "adapters=free")
IMAGE_TOKENS = EngineFact("how many tokens images have", "image_patch=PIXELS")
# of pictures whose sizes are not known either
OTHER_IMAGE_TOKENS = EngineFact("how many tokens images have")
DRAFTS = EngineFact("how many drafts are accepted", "drafts_accepted=SHARE")

MOST_PATCH = 1024  # pixels

# name of an assumption -> its values, in words
VALUES = {
    "drafts_accepted": "a share from 0 to 1, as 0.6",
    "constrained_answers": "asked",
    "adapters": "free",
    "image_patch": f"a whole number of pixels from 1 to {MOST_PATCH}, as 28",
}


class Assumptions(Strict):
    """What a simulation assumes. A field is None where nothing is assumed.

    ``drafts_accepted``: accepted tokens over drafted ones, as ``spec_accepted_share`` of results.
    ``constrained_answers``: they are as long as is asked, and constraining them costs no time.
    ``adapters``: they cost no time, and no request waits until its adapter is loaded.
    ``image_patch``: side in pixels of the square of a picture that becomes one token. A picture is
    scaled so that its sides are whole squares, and encoding it costs no time beside its tokens.
    """

    drafts_accepted: Annotated[float, Field(ge=0, le=1)] | None = None
    constrained_answers: Literal["asked"] | None = None
    adapters: Literal["free"] | None = None
    image_patch: Annotated[int, Field(ge=1, le=MOST_PATCH)] | None = None

    def covers(self, fact: EngineFact) -> bool:
        """Whether it says what to take in place of a fact."""
        return fact.assumption is not None and self._value_for(fact) is not None

    def needed_for(self, facts: Iterable[EngineFact]) -> Self:
        """Those of its assumptions that stand for one of these facts."""
        covered = [fact for fact in facts if self.covers(fact)]
        return type(self)(**{_name_of(fact): self._value_for(fact) for fact in covered})

    def stated(self) -> dict[str, Any]:
        """What is assumed, by name."""
        return self.model_dump(mode="json", exclude_none=True)

    def _value_for(self, fact: EngineFact) -> Any:
        return getattr(self, _name_of(fact))


NOTHING_ASSUMED = Assumptions()


def _name_of(fact: EngineFact) -> str:
    """The field of ``Assumptions`` that stands for a fact; empty where there is none."""
    return (fact.assumption or "").partition("=")[0]


def with_option(reason: str, fact: EngineFact | None) -> str:
    """A reason not to simulate, with the option that removes it.

    ``fact``: what is not known; None where that is not the reason.
    """
    if fact is None or fact.assumption is None:
        return reason
    return f"{reason}, unless --assume {fact.assumption}"


def parse_assumptions(options: Sequence[str]) -> Assumptions:
    """The assumptions of options such as ``drafts_accepted=0.6``. Raises ProblemsError with
    everything that is wrong with them.
    """
    problems: list[Problem] = []
    values: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in VALUES:
            problems.append(
                Problem(f"--assume {option!r}: unknown name", hint=nearest(name, VALUES))
            )
        elif name in values:
            problems.append(Problem(f"--assume {option}: {name} is given twice"))
        else:
            values[name] = value
    assumptions = NOTHING_ASSUMED
    try:
        assumptions = Assumptions.model_validate(values)
    except ValidationError as error:
        for detail in error.errors():
            name = str(detail["loc"][0])
            text = f"--assume {name}={values[name]}: the value of {name} must be {VALUES[name]}"
            problems.append(Problem(text))
    if problems:
        raise ProblemsError(problems)
    return assumptions

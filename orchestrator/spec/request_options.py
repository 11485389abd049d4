"""What requests ask for besides an answer to their prompt: the LoRA adapter that answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.spec.document import wrong
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.settings import AdapterName, Strict, as_tuple

MOST_ADAPTERS = 10_000
AdapterNames = Annotated[
    tuple[AdapterName, ...],
    BeforeValidator(as_tuple),
    Field(min_length=1, max_length=MOST_ADAPTERS),
]


class Adapters(Strict):
    """The LoRA adapters that the sessions of a workload ask for. All requests of a session ask for
    the same one.
    """

    WANTED: ClassVar[str] = "{names: [sql, law], pick: {zipf: 1.5}, base_share: 0.2}"

    names: AdapterNames = Field(
        description=(
            "Names of the adapters, the most popular first. A deployment serves them by its setting "
            "`lora_modules`."
        )
    )
    pick: Popularity | None = Field(
        default=None,
        description="How popular each is, `{zipf: 1.5}`; without it all are equally popular.",
    )
    base_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of sessions that ask for no adapter but for the model itself.",
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise wrong("names", f"{', '.join(twice)}: named twice", "name each adapter once")
        return self

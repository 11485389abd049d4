"""How often each member of a pool is chosen: of documents, of prefixes, of adapters."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from orchestrator.spec.settings import Strict


class Popularity(Strict):
    """``{zipf: 1.2}``: the k-th most popular is chosen with a probability proportional to
    1 / k**1.2.
    """

    WANTED: ClassVar[str] = "{zipf: 1.2}"

    zipf: float = Field(
        gt=0,
        le=20,
        description="Exponent s of Zipf's law: the k-th most popular is drawn with a probability "
        "proportional to 1/k^s.",
    )

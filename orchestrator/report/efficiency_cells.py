"""The columns about efficiency in the tables of ``results`` and ``best``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.cost import usd_per_million
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.points import StoredPoint
from orchestrator.report.text import Column, FilledColumn, figure


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What the tokens of a point took of its devices; None: not known."""

    efficiency: Efficiency | None
    j_per_output_token: float | None
    usd_per_m_output: float | None


def token_cost(point: StoredPoint) -> TokenCost:
    """What the tokens of a point took, by its figures and those of its repeats."""
    efficiency = point.efficiency
    energy = point.energy
    return TokenCost(
        efficiency=efficiency if isinstance(efficiency, Efficiency) else None,
        j_per_output_token=energy.j_per_output_token if energy is not None else None,
        usd_per_m_output=usd_per_million(point).output,
    )


def efficiency_cells(costs: Sequence[TokenCost]) -> Iterator[FilledColumn]:
    """MBU and MFU, joules and dollars per output token of each point; no column that is known of no
    point.
    """
    efficiencies = [cost.efficiency for cost in costs]
    if any(efficiencies):
        mbu = [f"{each.mbu.estimate:.2f}" if each else "-" for each in efficiencies]
        yield FilledColumn(Column("decode\nMBU", name="decode_mbu"), mbu)
        mfu = [f"{each.mfu:.3f}" if each else "-" for each in efficiencies]
        yield FilledColumn(Column("MFU", name="mfu"), mfu)
    joules = [cost.j_per_output_token for cost in costs]
    if any(each is not None for each in joules):
        texts = [figure(each) for each in joules]
        column = Column("J/output\ntoken", name="j_per_output_token")
        yield FilledColumn(column, texts)
    usd = [cost.usd_per_m_output for cost in costs]
    if any(price is not None for price in usd):
        texts = [figure(price) for price in usd]
        column = Column("USD/M\noutput", name="usd_per_m_output")
        yield FilledColumn(column, texts)

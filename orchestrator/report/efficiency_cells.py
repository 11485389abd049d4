"""The columns about efficiency in the tables of ``results`` and ``best``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.analysis.cost import usd_per_million
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.points import StoredPoint
from orchestrator.report.text import Column, FilledColumn, figure


def efficiency_cells(points: Sequence[StoredPoint]) -> Iterator[FilledColumn]:
    """MBU and MFU, joules and dollars per output token; no column that is known of no point."""
    results = [point.efficiency for point in points]
    efficiencies = [result if isinstance(result, Efficiency) else None for result in results]
    if any(efficiencies):
        mbu = [f"{each.mbu.estimate:.2f}" if each else "-" for each in efficiencies]
        yield FilledColumn(Column("decode\nMBU", name="decode_mbu"), mbu)
        mfu = [f"{each.mfu:.3f}" if each else "-" for each in efficiencies]
        yield FilledColumn(Column("MFU", name="mfu"), mfu)
    energies = [point.energy for point in points]
    joules = [energy.j_per_output_token if energy else None for energy in energies]
    if any(each is not None for each in joules):
        texts = [figure(each) for each in joules]
        column = Column("J/output\ntoken", name="j_per_output_token")
        yield FilledColumn(column, texts)
    usd = [usd_per_million(point).output for point in points]
    if any(price is not None for price in usd):
        texts = [figure(price) for price in usd]
        column = Column("USD/M\noutput", name="usd_per_m_output")
        yield FilledColumn(column, texts)

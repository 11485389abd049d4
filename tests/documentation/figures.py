"""Tables of pages whose figures the commands above them give within seconds: they are compared with
what these commands print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.unit.documentation.pages import ROOT

MEASUREMENTS = "docs/measurements.md"
# row of the table -> how benchmarks/emulator/published.py calls it
GROUPS = {
    "H100, H200, vLLM": "H100, H200, half 1: scored vllm",
    "H100, H200, SGLang": "H100, H200, half 1: scored sglang",
    "B200, vLLM, nothing fitted": "B200, nothing fitted vllm",
    "B200, SGLang, nothing fitted": "B200, nothing fitted sglang",
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def compare_prediction_errors(page: str, printed: str) -> None:
    """Compares the page's table of errors with the errors that the command printed."""
    for row, group in GROUPS.items():
        (in_page,) = re.findall(rf"^\| {row} \|(.*)$", page, re.MULTILINE)
        (in_output,) = re.findall(rf"^{group} (.*)$", printed, re.MULTILINE)
        written = NUMBER.findall(in_page)
        computed = NUMBER.findall(in_output)
        pairs = zip(written, computed, strict=True)
        assert written == [rounded_as(text, number) for text, number in pairs], row


def rounded_as(written: str, number: str) -> str:
    """The number with as many decimals as the page writes."""
    decimals = len(written.partition(".")[2])
    return f"{float(number):.{decimals}f}"


def compare_simulated_hours(page: str, printed: str) -> None:
    """Compares the simulated hours and deployments of the first page with those of its command."""
    (in_page,) = re.findall(r" (\d+) \[deployments\].* (\d+) hours of \[simulated\]", page)
    (hours,) = re.findall(r"^([\d.]+) h of virtual time", printed, re.MULTILINE)
    (deployments,) = re.findall(r"too close to call \(all (\d+)\)", printed)
    assert in_page == (deployments, f"{float(hours):.0f}")


CHECKS: Mapping[str, Callable[[str, str], None]] = {
    MEASUREMENTS: compare_prediction_errors,
    "README.md": compare_simulated_hours,
}


def compare_figures(page_id: str, printed: str) -> None:
    """Fails where a table of the page has other figures than its commands printed."""
    check = CHECKS.get(page_id)
    if check is not None:
        check((ROOT / page_id).read_text(encoding="utf-8"), printed)

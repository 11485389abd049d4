"""The Markdown of a results document."""

from __future__ import annotations

from collections.abc import Callable

from scenarios import SCENARIOS
from tools import TOOLS

Column = tuple[str, Callable[[dict], str]]


def _number(name: str, digits: int, signed: bool = False) -> Callable[[dict], str]:
    def show(cell: dict) -> str:
        value = cell["median"].get(name)
        return "" if value is None else f"{value:{'+' if signed else ''},.{digits}f}"

    return show


def _ratio(cell: dict) -> str:
    return "" if cell["cpu_over_c"] is None else f"{cell['cpu_over_c']:.2f}"


def _failures(cell: dict) -> str:
    said = cell["median"]
    if "failed" not in said:
        return ""
    classes = cell["extra"].get("error_classes")
    detail = (
        f" ({', '.join(f'{name} {count}' for name, count in classes.items())})" if classes else ""
    )
    return f"{said['failed']:.0f} of {said['failed_true']:.0f}{detail}"


COST: list[Column] = [
    ("CPU µs/token", _number("cpu_us_per_token", 2)),
    ("over C", _ratio),
    ("CPU µs/token, whole command", _number("cpu_us_per_token_whole_command", 2)),
]
ERRORS: list[Column] = [
    ("TTFT error mean, ms", _number("ttft_error_mean_ms", 2, True)),
    ("p99", _number("ttft_error_p99_ms", 2, True)),
    ("ITL error mean, ms", _number("itl_error_mean_ms", 3, True)),
    ("p50", _number("itl_error_p50_ms", 2, True)),
    ("p99", _number("itl_error_p99_ms", 2, True)),
]
ACHIEVED: Column = ("achieved/offered", _number("achieved_over_offered", 3))
STREAMS = [*COST, *ERRORS, ACHIEVED, ("tokens/s", _number("tokens_per_s", 0))]
OPEN = [
    ACHIEVED,
    ("dispersion", _number("dispersion", 2)),
    ("p99 sent-scheduled, ms", _number("send_lag_p99_ms", 2)),
    ("CPU µs/request", _number("cpu_us_per_request", 0)),
    *ERRORS[:2],
]
LIMIT: list[Column] = [
    ("requests/s, first request to end of command", _number("requests_per_s_to_end", 0))
]
SLOTS: list[Column] = [
    ("headline mean TTFT, ms", _number("ttft_headline_ms", 0)),
    ("true mean TTFT from schedule, ms", _number("ttft_from_schedule_true_ms", 0)),
]
FAILURES: list[Column] = [("failed rows, reported of true", _failures), ("ok", _number("ok", 0))]
START: list[Column] = [
    ("seconds to first request", _number("start_s", 2)),
    ("whole command, s", _number("wall_s", 2)),
]


def _columns(name: str) -> list[Column]:
    special = {"slots8": SLOTS, "failures": FAILURES, "start": START}
    if name.startswith("limit"):
        return LIMIT
    return special.get(name, OPEN if name.startswith("open") else STREAMS)


def _table(columns: list[Column], cells: dict[str, dict]) -> list[str]:
    lines = [
        "| tool | " + " | ".join(title for title, _ in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, cell in cells.items():
        if cell["repeats"]:
            shown = " | ".join(show(cell) for _, show in columns)
            lines.append(f"| {TOOLS[name].title} | {shown} |")
    return lines


def markdown(document: dict) -> str:
    """All scenarios, each with what could not be measured below its table."""
    titles = {scenario.name: scenario.title for scenario in SCENARIOS}
    lines = [f"{document['date']}: `{document['command']}`", ""]
    for name, cells in document["scenarios"].items():
        lines += [f"### {titles[name]}", "", *_table(_columns(name), cells), ""]
        lines += [
            f"- {TOOLS[tool].title}: {'; '.join(c['notes'])}"
            for tool, c in cells.items()
            if c["notes"]
        ]
        lines.append("")
    return "\n".join(lines)

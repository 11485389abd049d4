"""Counts of a point's requests, made slice by slice before the point is judged (validity.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.load.point import ClientStats, LoadPoint
from orchestrator.load.wire.finish_reasons import is_good_end
from orchestrator.results.columns import NumberColumn, came_in_lumps, or_zero
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import (
    EXACT_SOURCES,
    ErrorClass,
    RequestStatus,
    TokenCounts,
    is_cut_end,
)
from orchestrator.spec.load import Level

MAX_SEND_DELAY_MS = 10.0  # an order of magnitude below the tightest TTFT limits in use
# that a chat template or a BOS token may add to each message of a prompt
MAX_TEMPLATE_TOKENS = 64
REFUSED = (ErrorClass.HTTP_429, ErrorClass.HTTP_4XX)
NUMBERS = (
    "scheduled_ns",
    "sent_ns",
    "done_ns",
    "chunks",
    "coalesced_chunks",
    "turn",
    "input_tokens_asked",
    "input_tokens",
    "cached_tokens",
    "expected_cached_tokens",
    "output_tokens_asked",
    "output_tokens",
    "output_tokens_counted",
    "hidden_tokens",
    "constraint_met",  # 1, 0 or NaN
)
TEXTS = ("status", "error_class", "token_count_source", "finish_reason", "constraint", "part")
QUARTERS = 4  # of the time in which requests are due
INSTANTS_PER_QUARTER = 8  # at which open requests are counted


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Columns of some requests.

    ``numbers``: by column, with NaN for null. ``texts``: by text column, the number that stands for
    each text. ``codes``: by text column, the number of each row's text; -1 for null.
    """

    numbers: dict[str, Floats]
    codes: dict[str, NDArray[np.int32]]
    texts: dict[str, dict[str, int]]

    @classmethod
    def of(cls, rows: Rows) -> RequestColumns:
        numbers = {}
        for name in NUMBERS:
            column = rows[name]
            if column.null_count == rows.num_rows:
                numbers[name] = np.full(rows.num_rows, np.nan)
                continue
            if name == "constraint_met":
                column = column.cast("int8")
            numbers[name] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        codes: dict[str, NDArray[np.int32]] = {}
        texts: dict[str, dict[str, int]] = {}
        for name in TEXTS:
            coded = rows[name].combine_chunks().dictionary_encode()
            indices = coded.indices
            if coded.null_count:
                indices = indices.fill_null(-1)
            codes[name] = indices.to_numpy(zero_copy_only=False)
            texts[name] = {text: code for code, text in enumerate(coded.dictionary.to_pylist())}
        return cls(numbers, codes, texts)

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def has_text(self, name: str, *texts: str) -> Bools:
        """Which rows hold one of these texts."""
        code_of = self.texts[name]
        codes = self.codes[name]
        has = np.zeros(codes.size, np.bool_)
        for text in texts:
            if text in code_of:
                has |= codes == code_of[text]
        return has

    def count_by_text(self, name: str, chosen: Bools) -> Counter[str | None]:
        """How many of the chosen rows hold each text; under None those that hold none."""
        texts = [None, *self.texts[name]]  # in the order of their codes, which begin at -1
        rows_by_code = np.bincount(self.codes[name][chosen] + 1, minlength=len(texts))
        return Counter(dict(zip(texts, rows_by_code.tolist(), strict=True)))

    def where(self, chosen: Bools) -> RequestColumns:
        """The chosen rows."""
        numbers = {name: values[chosen] for name, values in self.numbers.items()}
        codes = {name: codes[chosen] for name, codes in self.codes.items()}
        return RequestColumns(numbers, codes, self.texts)


@dataclass(frozen=True, slots=True)
class EndOfRun:
    """How many requests were due, and over, when the last one was due. ``due_in_last_quarter``: in
    the last quarter of the time until then.
    """

    due_in_last_quarter: int
    due: int
    over: int


class OpenRequestCounts:
    """How many requests were open while a point ran, warm-up included, and how long they took.

    ``from_s``, ``until_s``: the time in which requests of the window are due, from the point's
    start.
    """

    def __init__(self, from_s: float, until_s: float) -> None:
        instants = QUARTERS * INSTANTS_PER_QUARTER
        self._window_s = until_s - from_s
        self._instants_s = np.linspace(from_s, until_s, instants + 1)
        # requests that were due, and over, by each of these instants
        self._due_by: Ints = np.zeros(instants + 1, np.int64)
        self._over_by: Ints = np.zeros(instants + 1, np.int64)
        # the same by the beginning of the last quarter of the run, and by its end
        self._last_quarter_s = np.array([0.75 * until_s, until_s])
        self._due_by_last: Ints = np.zeros(2, np.int64)
        self._over_by_last: Ints = np.zeros(2, np.int64)
        # requests that were answered or timed out: other failures may be instant
        self._waited_due_ns = NumberColumn()
        self._waited_s = NumberColumn()

    def add(self, requests: RequestColumns) -> None:
        due_ns = requests["scheduled_ns"]
        done_ns = requests["done_ns"]
        due_s = np.sort(due_ns) / 1e9
        done_s = np.sort(done_ns) / 1e9
        self._due_by += np.searchsorted(due_s, self._instants_s)
        self._over_by += np.searchsorted(done_s, self._instants_s)
        self._due_by_last += np.searchsorted(due_s, self._last_quarter_s)
        self._over_by_last += np.searchsorted(done_s, self._last_quarter_s)
        is_waited = requests.has_text("status", RequestStatus.OK, RequestStatus.TIMEOUT)
        self._waited_due_ns.add(due_ns[is_waited])
        self._waited_s.add((done_ns - due_ns)[is_waited] / 1e9)

    def by_quarter(self) -> Floats:
        """Mean number of open requests in each quarter of the window."""
        open_requests = (self._due_by - self._over_by)[1:]
        means: Floats = open_requests.reshape(QUARTERS, INSTANTS_PER_QUARTER).mean(axis=1)
        return means

    def ended_per_s(self) -> float:
        """At what rate requests ended in the window; 0 where it has no length."""
        if self._window_s <= 0:
            return 0.0
        return float(self._over_by[-1] - self._over_by[0]) / self._window_s

    def at_the_end(self) -> EndOfRun:
        due_before_quarter, due = self._due_by_last
        over = self._over_by_last[-1]
        return EndOfRun(int(due - due_before_quarter), int(due), int(over))

    def first_and_last_s(self) -> tuple[float, float]:
        """Mean end-to-end time of the first and the last tenth of all requests that were answered
        or timed out; 0 where there are none.
        """
        due_ns = self._waited_due_ns.values()
        if not due_ns.size:
            return 0.0, 0.0
        tenth = max(1, due_ns.size // 10)
        partly_sorted = np.partition(due_ns, [tenth - 1, -tenth])
        is_first = due_ns <= partly_sorted[tenth - 1]
        is_last = due_ns >= partly_sorted[-tenth]
        del due_ns, partly_sorted  # of a long run each takes many MB
        took_s = self._waited_s.values()
        return float(took_s[is_first].mean()), float(took_s[is_last].mean())


class _AlikePrompts(NamedTuple):
    """Prompts to which a chat template adds the same: those of one turn, and of one part of a mix,
    because a system message has tokens of its own.
    """

    part: str | None
    turn: float


class PromptLengths:
    """By how much prompts are longer than asked for, as the engine counts them."""

    def __init__(self) -> None:
        self._asked_tokens: Counter[str | None] = Counter()  # by part
        # how many prompts are longer by each number of tokens
        self._prompts: dict[_AlikePrompts, Counter[float]] = {}

    def add(self, answered: RequestColumns) -> None:
        asked = answered["input_tokens_asked"]
        counted = answered["input_tokens"]
        turns = or_zero(answered["turn"])
        is_counted = ~np.isnan(counted) & (asked > 0)
        parts = answered.codes["part"]
        name_of = {code: name for name, code in answered.texts["part"].items()}
        kinds = zip(parts[is_counted].tolist(), turns[is_counted].tolist(), strict=True)
        for code, turn in sorted(set(kinds)):
            is_alike = is_counted & (parts == code) & (turns == turn)
            values, prompts = np.unique((counted - asked)[is_alike], return_counts=True)
            name = name_of.get(code)
            self._asked_tokens[name] += _sum(asked[is_alike])
            alike = self._prompts.setdefault(_AlikePrompts(name, turn), Counter())
            alike.update(dict(zip(values, prompts.tolist(), strict=True)))

    @property
    def parts(self) -> frozenset[str | None]:
        """The parts of a mix that prompts are of; only None where the workload is none."""
        return frozenset(self._asked_tokens)

    def relative_error(self, parts: Collection[str | None]) -> float:
        """Relative error of the prompt lengths of these parts, without what a chat template or a
        BOS token adds to all that are alike.
        """
        asked_tokens = sum(self._asked_tokens[part] for part in parts)
        if not asked_tokens:
            return 0.0
        wrong_tokens = 0.0
        for alike, prompts_by_more in self._prompts.items():
            if alike.part not in parts:
                continue
            most_template_tokens = MAX_TEMPLATE_TOKENS * (alike.turn + 1)
            template_tokens = np.clip(min(prompts_by_more), 0, most_template_tokens)
            for more_tokens, prompts in prompts_by_more.items():
                wrong_tokens += prompts * abs(more_tokens - template_tokens)
        return float(wrong_tokens / asked_tokens)


class RequestCounts:
    """What is counted of the requests that were due from the beginning of the steady window on.

    ``sums``: how many there are of each kind, and sums of their columns. ``odd_ends``: how many
    answers ended by each unusual finish reason. ``constraint_checked`` and ``constraint_violated``:
    how many constrained answers of each part of a mix were checked, and are not what they had to
    be; only under None where the workload is none. ``send_delay_ms``: how late requests were sent;
    ``e2e_from_due_s``: how long they took from when they were due. ``open`` and the end of the run
    are of all requests, warm-up included.
    """

    def __init__(
        self, requests: Rows, stats: Sequence[ClientStats], point: LoadPoint, start_ns: int
    ) -> None:
        # how late the slowest client sent requests that could be sent
        self.client_delay_ms = max((client.send_lag_p99_ms for client in stats), default=0.0)
        # the time in which requests are due. Throughput has another window, which includes the
        # answers
        self.due_from_s = start_ns / 1e9
        self.due_until_s = _due_until_s(requests, point, start_ns)
        self.open = OpenRequestCounts(self.due_from_s, self.due_until_s)
        self.prompt_lengths = PromptLengths()
        self._over_s = 0.0  # when the last request was over
        # how long each request took after the last one was due, added up
        self._after_last_due_s = 0.0
        self.sums: Counter[str] = Counter()
        self.odd_ends: Counter[str] = Counter()
        self.constraint_checked: Counter[str | None] = Counter()
        self.constraint_violated: Counter[str | None] = Counter()
        self.send_delay_ms = NumberColumn()
        self.e2e_from_due_s = NumberColumn()
        for part in slices(requests):
            columns = RequestColumns.of(part)
            self.open.add(columns)
            self._add_end(columns["done_ns"])
            self._add(columns.where(columns["scheduled_ns"] >= start_ns))

    def _add_end(self, done_ns: Floats) -> None:
        done_s = or_zero(done_ns / 1e9)
        self._over_s = max(self._over_s, done_s.max(initial=0.0))
        self._after_last_due_s += np.clip(done_s - self.due_until_s, 0, None).sum()

    def _add(self, requests: RequestColumns) -> None:
        is_ok = requests.has_text("status", RequestStatus.OK)
        self._count_outcomes(requests, is_ok)
        self._count_delays(requests)
        self._count_tokens(requests, is_ok)
        self._count_odd_ends(requests, is_ok)
        self._count_constraints(requests, is_ok)
        self._count_share_of(requests, is_ok, "hidden_tokens", "output_tokens")
        self._count_hits(requests, is_ok)
        self.prompt_lengths.add(requests.where(is_ok))

    def _count_outcomes(self, requests: RequestColumns, is_ok: Bools) -> None:
        self.sums.update(
            all=len(is_ok),
            ok=_sum(is_ok),
            lost=_sum(requests.has_text("status", RequestStatus.LOST)),
            no_socket=_sum(requests.has_text("error_class", ErrorClass.CLIENT)),
            refused=_sum(requests.has_text("error_class", *REFUSED)),
            cut_off=_sum(requests.has_text("status", RequestStatus.ABORTED)),
            later_turns=_sum(requests["turn"] > 0),
        )

    def _count_delays(self, requests: RequestColumns) -> None:
        sent_s = requests["sent_ns"] / 1e9
        due_s = requests["scheduled_ns"] / 1e9
        delay_ms = (sent_s - due_s) * 1e3
        self.send_delay_ms.add(delay_ms[~np.isnan(delay_ms)])
        self.e2e_from_due_s.add(requests["done_ns"] / 1e9 - due_s)
        self.sums.update(
            in_time=_sum(sent_s <= self.due_until_s + MAX_SEND_DELAY_MS / 1e3),
            # the client was ready, and max_in_flight requests were in flight
            capped=_sum(~(delay_ms <= self.client_delay_ms + MAX_SEND_DELAY_MS)),
        )

    def _count_tokens(self, requests: RequestColumns, is_ok: Bools) -> None:
        chunks = requests["chunks"]
        asked = requests["output_tokens_asked"]
        received = requests["output_tokens"]
        counted = requests["output_tokens_counted"]
        streamed = received - or_zero(requests["hidden_tokens"])
        is_by_chunks = requests.has_text("token_count_source", TokenCounts.CHUNKS)
        is_exact = requests.has_text("token_count_source", *EXACT_SOURCES)
        is_several = is_ok & ((streamed > 1) | (is_by_chunks & (asked > 1)))
        is_in_lumps = came_in_lumps(chunks, streamed, asked, is_exact, is_by_chunks)
        has_length = ~np.isnan(received) & is_ok & ~is_by_chunks
        has_both = ~np.isnan(counted) & ~np.isnan(received)
        is_comparable = is_exact & is_ok & has_both
        # some servers count hidden tokens, some do not
        length_error = np.minimum(np.abs(received - asked), np.abs(streamed - asked))
        # a constrained answer ends where it is complete
        is_constrained = requests.codes["constraint"] >= 0
        has_asked_length = has_length & ~is_constrained
        self.sums.update(
            chunks=_sum(chunks),
            coalesced=_sum(requests["coalesced_chunks"]),
            uncounted=_sum(is_ok & is_by_chunks),
            several=_sum(is_several),
            in_lumps=_sum(is_several & is_in_lumps),
            events=_sum(chunks[has_length]),
            events_tokens=_sum(streamed[has_length]),
            output_asked=_sum(asked[has_asked_length]),
            output_off=_sum(length_error[has_asked_length]),
            exact=_sum(is_comparable),
            mismatched=_sum((counted != streamed)[is_comparable]),
        )

    def _count_constraints(self, requests: RequestColumns, is_ok: Bools) -> None:
        is_constrained = is_ok & (requests.codes["constraint"] >= 0)
        met = requests["constraint_met"]
        is_checked = is_constrained & ~np.isnan(met)
        cut_ends = filter(is_cut_end, requests.texts["finish_reason"])
        is_cut = requests.has_text("finish_reason", *cut_ends)
        is_violated = is_checked & (met == 0)
        is_untold = is_constrained & np.isnan(met)
        self.constraint_checked += requests.count_by_text("part", is_checked)
        self.constraint_violated += requests.count_by_text("part", is_violated)
        self.sums.update(
            constrained=_sum(is_constrained),
            constraint_checked=_sum(is_checked),
            constraint_violated=_sum(is_violated),
            constraint_cut=_sum(is_untold & is_cut),
            constraint_unchecked=_sum(is_untold & ~is_cut),
        )

    def _count_share_of(
        self, requests: RequestColumns, is_ok: Bools, part_name: str, whole_name: str
    ) -> None:
        """Sums a column, and the column that it is a part of, over ok answers that have both."""
        part = requests[part_name]
        whole = requests[whole_name]
        has_both = is_ok & ~np.isnan(part) & ~np.isnan(whole)
        self.sums[part_name] += _sum(part[has_both])
        self.sums[f"{part_name}_of"] += _sum(whole[has_both])

    def _count_hits(self, requests: RequestColumns, is_ok: Bools) -> None:
        """Sums the prefix hits of ok answers, the expected ones, and what a template may have added
        to prompts: all prompts have it in common, and it is not expected.

        Engines leave hits out where there are none, so what is not reported counts as 0.
        """
        prompt = requests["input_tokens"]
        measured = or_zero(requests["cached_tokens"])
        expected = requests["expected_cached_tokens"]
        is_counted = is_ok & ~np.isnan(prompt)
        has_expected = is_counted & ~np.isnan(expected)
        asked = requests["input_tokens_asked"]
        # of a text nobody asked for a length, and what is expected of it has the template
        added = np.where(asked > 0, np.clip(prompt - asked, 0, None), 0)
        self.sums.update(
            reports_of_hits=_sum(is_ok & ~np.isnan(requests["cached_tokens"])),
            cached_tokens=_sum(measured[is_counted]),
            cached_tokens_of=_sum(prompt[is_counted]),
            expected_hits=_sum(expected[has_expected]),
            expected_hits_of=_sum(prompt[has_expected]),
            measured_hits=_sum(measured[has_expected]),
            template_tokens=_sum(added[has_expected]),
        )

    def _count_odd_ends(self, requests: RequestColumns, is_ok: Bools) -> None:
        """Counts the finish reasons of ok answers that are none of the known good ones."""
        for reason in requests.texts["finish_reason"]:
            if is_good_end(reason):
                continue
            answers = _sum(is_ok & requests.has_text("finish_reason", reason))
            if answers:
                self.odd_ends[reason] += answers

    def __len__(self) -> int:
        return self.sums["all"]

    def share(self, part: str, whole: str = "all") -> float:
        """One of the sums over another; 0 where that is 0."""
        if not self.sums[whole]:
            return 0.0
        return float(self.sums[part] / self.sums[whole])

    def lost_at_the_end(self, level: Level) -> float:
        """The share by which the throughput of a window that ends with the last answer is too low,
        because fewer and fewer requests are in flight after the last one was due.
        """
        end_s = self._over_s - self.due_until_s
        window_s = self._over_s - self.due_from_s
        if window_s <= 0 or np.isinf(level.value):
            return 0.0
        # after the last request was due: how long the same work takes with all slots busy
        busy_s = 0.0
        if level.control == "concurrency":
            busy_s = self._after_last_due_s / level.value
        return float((end_s - busy_s) / window_s)


def _due_until_s(requests: Rows, point: LoadPoint, start_ns: int) -> float:
    """When the last request is due: as the point says, or as its requests were."""
    if point.ends_s is not None:
        return point.ends_s
    last_ns = start_ns
    for part in slices(requests):
        last_ns = max(last_ns, int(part["scheduled_ns"].to_numpy().max(initial=start_ns)))
    return last_ns / 1e9


def _sum(values: NDArray[Any]) -> int:
    """The sum of counts, or how many are true."""
    if values.dtype == np.bool_:
        return int(np.count_nonzero(values))
    return int(values.sum())

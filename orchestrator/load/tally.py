"""What is counted of a point's requests, some after the others, before it is judged (validity.py)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.point import ClientStats, LoadPoint
from orchestrator.load.wire.finish_reasons import is_good_end
from orchestrator.results.columns import Column, came_in_lumps, or_zero
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import EXACT_SOURCES, ErrorClass, Status
from orchestrator.spec.load import Level

MAX_SEND_LAG_MS = 10.0  # an order of magnitude below the tightest TTFT limits in use
MAX_TEMPLATE_TOKENS = 64  # that a chat template or a BOS token may add to each message of a prompt
REFUSED = (ErrorClass.HTTP_429, ErrorClass.HTTP_4XX)
NUMBERS = (
    *(
        "scheduled_ns",
        "sent_ns",
        "done_ns",
        "chunks",
        "coalesced_chunks",
        "turn",
        "input_tokens_asked",
        "input_tokens",
    ),
    *(
        "cached_tokens",
        "output_tokens_asked",
        "output_tokens",
        "output_tokens_counted",
        "hidden_tokens",
    ),
)
TEXTS = ("status", "error_class", "token_count_source", "finish_reason")
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Requests:
    """Columns of some requests. ``numbers``: with NaN for null. ``codes``: of each text column, a
    number for each row that says which of its ``texts`` it holds; null is none of them.
    """

    numbers: dict[str, Floats]
    codes: dict[str, NDArray[np.int32]]
    texts: dict[str, dict[str, int]]

    @classmethod
    def of(cls, rows: Rows) -> "_Requests":
        numbers = {
            name: rows[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in NUMBERS
        }
        codes, texts = {}, {}
        for name in TEXTS:
            coded = rows[name].combine_chunks().dictionary_encode()
            at = coded.indices.fill_null(-1) if coded.null_count else coded.indices
            codes[name] = at.to_numpy(zero_copy_only=False)
            texts[name] = {text: code for code, text in enumerate(coded.dictionary.to_pylist())}
        return cls(numbers, codes, texts)

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def says(self, name: str, *texts: str) -> Bools:
        """Whether a row holds one of these texts."""
        known, codes = self.texts[name], self.codes[name]
        found = np.zeros(codes.size, np.bool_)
        for text in texts:
            if text in known:
                found |= codes == known[text]
        return found

    def where(self, chosen: Bools) -> "_Requests":
        """Some of them."""
        numbers = {name: values[chosen] for name, values in self.numbers.items()}
        return _Requests(
            numbers, {name: codes[chosen] for name, codes in self.codes.items()}, self.texts
        )


class Tally:
    """What is counted of the requests that were due from the begin of the steady window on.

    ``sums``: how many there are of each kind, and sums of their columns. ``lag_ms``: how late they
    were sent; ``stay_s``: how long they took from when they were due.
    """

    def __init__(
        self, requests: Rows, stats: Sequence[ClientStats], point: LoadPoint, start_ns: int
    ) -> None:
        self.own_lag_ms = max((s.send_lag_p99_ms for s in stats), default=0.0)
        # the time in which requests are due. Throughput has another window, which includes the
        # answers
        self.due_from_s = start_ns / 1e9
        last_ns = max(
            int(part["scheduled_ns"].to_numpy().max(initial=start_ns)) for part in slices(requests)
        )
        self.due_until_s = last_ns / 1e9 if point.ends_s is None else point.ends_s
        quarters_s = np.linspace(self.due_from_s, self.due_until_s, 33)[1:]
        self._instants_s = np.array([*quarters_s, 0.75 * self.due_until_s, self.due_until_s])
        # when the last one was; how long all took after the last one was due
        self._over_s = self._rest_s = 0.0
        self.sums: Counter[str] = Counter()
        self.odd_ends: Counter[str] = Counter()
        self.lag_ms, self.stay_s = Column(), Column()
        # of all requests, warm-up included: how many were due, and over, by those instants; those
        # that were waited for
        self._due_by, self._over_by = np.zeros((2, self._instants_s.size), np.int64)
        self._waited_due_ns, self._waited_s = Column(), Column()
        # by turn and difference: prompts longer than asked for
        self._off: Counter[tuple[float, float]] = Counter()
        for part in slices(requests):
            every = _Requests.of(part)
            self._count_open(every)
            self._add(every.where(every["scheduled_ns"] >= start_ns))

    def _count_open(self, of: _Requests) -> None:
        due_ns, done_ns = of["scheduled_ns"], of["done_ns"]
        self._due_by += np.searchsorted(np.sort(due_ns) / 1e9, self._instants_s)
        self._over_by += np.searchsorted(np.sort(done_ns) / 1e9, self._instants_s)
        done_s = or_zero(done_ns / 1e9)
        self._over_s = max(self._over_s, done_s.max(initial=0.0))
        self._rest_s += np.clip(done_s - self.due_until_s, 0, None).sum()
        waited = of.says("status", Status.OK, Status.TIMEOUT)  # other failures may be instant
        self._waited_due_ns.add(due_ns[waited])
        self._waited_s.add((done_ns - due_ns)[waited] / 1e9)

    def _add(self, of: _Requests) -> None:
        ok, by_chunks = of.says("status", Status.OK), of.says("token_count_source", "chunks")
        sent_s, due_s = of["sent_ns"] / 1e9, of["scheduled_ns"] / 1e9
        lag_ms = (sent_s - due_s) * 1e3
        self.lag_ms.add(lag_ms[~np.isnan(lag_ms)])
        self.stay_s.add(of["done_ns"] / 1e9 - due_s)
        asked, came = of["output_tokens_asked"], of["output_tokens"]
        lengths = ~np.isnan(came) & ok & ~by_chunks
        both = ~np.isnan(of["output_tokens_counted"]) & ~np.isnan(came)
        exact = of.says("token_count_source", *EXACT_SOURCES) & ok & both
        streamed = came - or_zero(of["hidden_tokens"])
        several = ok & ((streamed > 1) | (by_chunks & (asked > 1)))
        is_exact = of.says("token_count_source", *EXACT_SOURCES)
        in_lumps = came_in_lumps(of["chunks"], streamed, asked, is_exact, by_chunks)
        self._count_ends(of, ok)
        self.sums.update(
            all=len(ok),
            ok=_sum(ok),
            lost=_sum(of.says("status", Status.LOST)),
            no_socket=_sum(of.says("error_class", ErrorClass.CLIENT)),
            refused=_sum(of.says("error_class", *REFUSED)),
            in_time=_sum(sent_s <= self.due_until_s + MAX_SEND_LAG_MS / 1e3),
            capped=_sum(~(lag_ms <= self.own_lag_ms + MAX_SEND_LAG_MS)),
            chunks=_sum(of["chunks"]),
            coalesced=_sum(of["coalesced_chunks"]),
            uncounted=_sum(ok & by_chunks),
            several=_sum(several),
            in_lumps=_sum(several & in_lumps),
            events=_sum(of["chunks"][lengths]),
            events_tokens=_sum(streamed[lengths]),
            output_asked=_sum(asked[lengths]),
            output_off=_sum(np.minimum(np.abs(came - asked), np.abs(streamed - asked))[lengths]),
            exact=_sum(exact),
            mismatched=_sum((of["output_tokens_counted"] != streamed)[exact]),
        )
        for some, whole in (("hidden_tokens", "output_tokens"), ("cached_tokens", "input_tokens")):
            told = ok & ~np.isnan(of[some]) & ~np.isnan(of[whole])  # both
            self.sums.update({some: _sum(of[some][told]), f"{some}_of": _sum(of[whole][told])})
        self._add_prompts(of.where(ok))

    def _count_ends(self, of: _Requests, ok: Bools) -> None:
        """Counts the finish reasons of ok answers that are none of the known good ones."""
        for reason in of.texts["finish_reason"]:
            answers = 0 if is_good_end(reason) else _sum(ok & of.says("finish_reason", reason))
            if answers:
                self.odd_ends[reason] += answers

    def _add_prompts(self, answered: _Requests) -> None:
        asked, seen = answered["input_tokens_asked"], answered["input_tokens"]
        turns = or_zero(answered["turn"])
        known = ~np.isnan(seen) & (asked > 0)
        self.sums.update(input_asked=_sum(asked[known]))
        for turn in np.unique(turns[known]):
            off, counts = np.unique((seen - asked)[known & (turns == turn)], return_counts=True)
            self._off.update(dict(zip(((turn, one) for one in off), counts.tolist(), strict=True)))

    def __len__(self) -> int:
        return self.sums["all"]

    def share(self, some: str, of: str = "all") -> float:
        """One of the sums over another; 0 where that is 0."""
        return float(self.sums[some] / self.sums[of]) if self.sums[of] else 0.0

    def open_by_quarter(self) -> Floats:
        """Mean number of open requests in each quarter of the window."""
        quarters: Floats = (self._due_by - self._over_by)[:-2].reshape(4, 8).mean(axis=1)
        return quarters

    def at_the_end(self) -> tuple[int, int, int]:
        """How many requests were due in the last quarter of the run; due, and over, in all of it."""
        before, due = self._due_by[-2:]
        return int(due - before), int(due), int(self._over_by[-1])

    def first_and_last_s(self) -> tuple[float, float]:
        """Mean end-to-end time of the first and the last tenth of all requests that were answered
        or timed out, warm-up included; 0 where there are none.
        """
        due_ns = self._waited_due_ns.values()
        if not due_ns.size:
            return 0.0, 0.0
        ends = [max(1, due_ns.size // 10) - 1, -max(1, due_ns.size // 10)]
        first_ns, last_ns = np.partition(due_ns, ends)[ends]
        first, last = due_ns <= first_ns, due_ns >= last_ns
        del due_ns
        stays_s = self._waited_s.values()
        return float(stays_s[first].mean()), float(stays_s[last].mean())

    def lost_at_the_end(self, level: Level) -> float:
        """By what share throughput is too low: less is in flight when a window that ends with the
        last answer ends.
        """
        end_s, window_s = self._over_s - self.due_until_s, self._over_s - self.due_from_s
        if window_s <= 0 or np.isinf(level.value):
            return 0.0
        idle_s = end_s - (self._rest_s / level.value if level.control == "concurrency" else 0.0)
        return float(idle_s / window_s)

    def input_error(self) -> float:
        """Relative error of prompt lengths, without what a chat template or a BOS token adds to all
        of a turn.
        """
        least: dict[float, float] = {}
        for turn, off in self._off:
            least[turn] = min(off, least.get(turn, off))
        added = {
            turn: np.clip(off, 0, MAX_TEMPLATE_TOKENS * (turn + 1)) for turn, off in least.items()
        }
        wrong = sum(count * abs(off - added[turn]) for (turn, off), count in self._off.items())
        return float(wrong / self.sums["input_asked"]) if self._off else 0.0


def _sum(values: NDArray[Any]) -> int:
    """Of counts, or how many are true."""
    return int(np.count_nonzero(values) if values.dtype == np.bool_ else values.sum())

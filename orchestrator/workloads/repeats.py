"""How often the prompts of a file were sent: a prefix cache answers a repeated prompt faster."""

from __future__ import annotations

from orchestrator.spec.load import Workload


class PromptRepeats:
    """Counts how often each prompt of a file was sent over the levels of a run and their warm-ups.

    A level begins with the first prompt of the file; a warm-up ends with the last one. ``salted``:
    no level, warm-up included, shares a prefix cache with earlier levels, so counts begin again.
    """

    def __init__(self, workload: Workload, salted: bool = False) -> None:
        self._is_drawn = workload.drawn()
        self._times_sent = [0] * (workload.distinct_requests() or 0)
        self._salted = salted

    def add_warm_up(self, requests: int) -> None:
        """Adds the requests of a warm-up."""
        if self._times_sent:
            times_sent = _times_sent_in_order(requests, len(self._times_sent))
            times_sent.reverse()  # it ends with the last prompt, so the last ones were sent once more
            self._times_sent = self._with_earlier(times_sent)

    def add_level(self, requests: int) -> list[str]:
        """Adds the requests of a level. Returns what a user should know of repeated prompts."""
        prompts = len(self._times_sent)
        if not prompts:
            return []
        was_sent_before = not self._is_drawn and any(self._times_sent)
        times_sent = self._with_earlier(_times_sent_in_order(requests, prompts))
        self._times_sent = [0] * prompts if self._salted else times_sent
        most = max(times_sent)
        if most < 2:
            return []
        also = ", also sent before (warm-up, earlier levels)" if was_sent_before else ""
        return [
            f"{requests} requests of {prompts} prompts{also}: each sent up to {most} times;"
            " a prefix cache answers faster"
        ]

    def _with_earlier(self, times_sent: list[int]) -> list[int]:
        if self._is_drawn:  # each level and warm-up draws other prompts
            return times_sent
        return [earlier + now for earlier, now in zip(self._times_sent, times_sent, strict=True)]


def _times_sent_in_order(requests: int, prompts: int) -> list[int]:
    """How often each prompt is sent if requests take the prompts in order, round after round."""
    whole_rounds, in_last_round = divmod(requests, prompts)
    return [whole_rounds + 1] * in_last_round + [whole_rounds] * (prompts - in_last_round)

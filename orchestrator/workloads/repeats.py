"""How often the prompts of a file were sent: a prefix cache answers a repeated prompt faster."""

from __future__ import annotations

from orchestrator.spec.load import Workload


class PromptRepeats:
    """Counts how often each prompt was sent over the levels of a run and their warm-ups. A level
    begins with the first prompt of the file, and a warm-up ends with the last one.

    ``salted``: a level and its warm-up share no prefix cache with earlier levels.
    """

    def __init__(self, workload: Workload, salted: bool = False) -> None:
        self._is_drawn = workload.drawn()
        self._times_sent = [0] * (workload.distinct_requests() or 0)
        self._salted = salted

    def add_warm_up(self, requests: int) -> None:
        """Adds the requests of a warm-up."""
        if self._times_sent:
            rounds = list(reversed(_rounds(requests, len(self._times_sent))))
            self._times_sent = self._with_earlier(rounds)

    def add_level(self, requests: int) -> list[str]:
        """Adds the requests of a level. Returns what a user should know of repeated prompts."""
        prompts = len(self._times_sent)
        if not prompts:
            return []
        was_sent_before = not self._is_drawn and any(self._times_sent)
        times_sent = self._with_earlier(_rounds(requests, prompts))
        self._times_sent = [0] * prompts if self._salted else times_sent
        most = max(times_sent)
        if most < 2:
            return []
        also = ", also sent before (warm-up, earlier levels)" if was_sent_before else ""
        return [
            f"{requests} requests of {prompts} prompts{also}: each sent up to {most} times;"
            " a prefix cache answers faster"
        ]

    def _with_earlier(self, rounds: list[int]) -> list[int]:
        if self._is_drawn:  # each level and warm-up draws other prompts
            return rounds
        return [earlier + now for earlier, now in zip(self._times_sent, rounds, strict=True)]


def _rounds(requests: int, prompts: int) -> list[int]:
    """How often each prompt is sent when requests go through the prompts in order."""
    rounds, begun = divmod(requests, prompts)
    return [rounds + 1] * begun + [rounds] * (prompts - begun)

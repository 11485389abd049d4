"""Tries calls again that a storage or disk refuses, for a time that the run may extend."""

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orchestrator.base.errors import ResultsError
from orchestrator.base.retry import RetryPolicy, retried
from orchestrator.results.location import hint_of

T = TypeVar("T")
_FINAL = (
    "ACCESS_DENIED",
    "NO_SUCH_BUCKET",
    "INVALID_ACCESS_KEY",
    "SIGNATURE_DOES_NOT_MATCH",
    "PermissionDenied",
)
# The errors of a network file system, on which a folder may be, while its server is away.
_AWAY = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EREMOTEIO,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
}
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}  # errors while a disk is full
SILENT_S = 10.0  # the user is notified after this long without an answer
LONGEST_PAUSE_S = 15.0  # between two tries


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call without an answer yet. At the instant ``late_s`` it counts as refused, and the user is
    shown ``text``.
    """

    late_s: float
    text: str


@dataclass(slots=True)
class Patience:
    """How long refused calls are tried again, and how the user is notified. All threads that use a
    location share it.

    ``of``: what refuses, in words. ``limit_s``: calls are tried again for at least this long after
    the first refusal, however few tries the policy allows. ``now_s``: a monotonic clock. ``wait``
    sleeps; it returns True when the call is no longer wanted. ``tell``: shows the user a sentence.
    ``silent_s``: the user is notified after this long without an answer. ``refusing``: thread ->
    since when its call is refused or unanswered. ``given_up``: why a call was given up after
    ``limit_s``. ``ended_s``: when the last refused call ended.
    """

    of: str = "storage"
    limit_s: float = 0.0
    wait: Callable[[float], bool] | None = None
    now_s: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] | None = None
    silent_s: float = SILENT_S
    refusing: dict[int, float] = field(default_factory=dict)
    given_up: str = ""
    ended_s: float = -math.inf
    _has_notified: bool = False  # the user knows of a refusal that is not over yet
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open_calls: dict[int, _OpenCall] = field(default_factory=dict)  # by thread
    _is_listening: bool = False

    def attach(
        self,
        now_s: Callable[[], float],
        wait: Callable[[float], bool],
        tell: Callable[[str], None],
    ) -> None:
        """Lets a sweep wait for the storage: by the sweep's clock, until its user stops it."""
        self.now_s = now_s
        self.wait = wait
        self.tell = tell
        self.given_up = ""

    @contextmanager
    def lasting(self, limit_s: float) -> Iterator[None]:
        """Inside the block refused calls are tried again for ``limit_s``."""
        self.limit_s = limit_s
        try:
            yield
        finally:
            self.limit_s = 0.0

    def refused(self, caller: int, text: str) -> float:
        """Notes that a thread's call was refused. Returns for how many seconds it has been refused
        by now. Shows the user ``text`` if no other thread has waited longer.
        """
        with self._lock:
            since_s = self.refusing.setdefault(caller, self.now_s())
            is_shown = bool(text) and self._may_notify(caller)
            if is_shown:
                self._has_notified = True
        if is_shown:
            self._say(text)
        return self.now_s() - since_s

    def _may_notify(self, caller: int) -> bool:
        """Whether the user is to hear of this thread's refusal: of all threads whose calls are
        refused, only the one that has waited longest is shown. The caller holds the lock.
        """
        longest_waiting = min(self.refusing, key=self.refusing.__getitem__)
        return self.tell is not None and caller == longest_waiting

    def _say(self, text: str) -> None:
        if self.tell:
            self.tell(text)

    def ended(self, has_answer: bool) -> None:
        """Notes that this thread's call was answered, or was given up."""
        caller = threading.get_ident()
        if caller not in self.refusing:  # it was never refused, like nearly all calls
            return
        with self._lock:
            since_s = self.refusing.pop(caller)
            self.ended_s = self.now_s()
            is_over = self._has_notified and not self.refusing
            if is_over:
                self._has_notified = False
        if is_over and has_answer:
            self._say(f"the {self.of} answers again after {self.ended_s - since_s:.0f} s")

    @contextmanager
    def listening(self, what: str) -> Iterator[None]:
        """Makes a call inside the block count as refused, and notifies the user, when it has had no
        answer for ``silent_s``.
        """
        if self.tell is None:
            yield
            return
        caller = threading.get_ident()
        text = f"the {self.of} has not answered for {self.silent_s:g} s: {what}"
        with self._lock:
            self._open_calls[caller] = _OpenCall(time.monotonic() + self.silent_s, text)
            needs_listener = not self._is_listening
            self._is_listening = True
        # one thread for all calls, because one for each would cost more than a small file
        if needs_listener:
            threading.Thread(target=self._listen, name="storage", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._open_calls.pop(caller, None)

    def _listen(self) -> None:
        """Counts late calls as refused, until no call is open."""
        while True:
            with self._lock:
                now_s = time.monotonic()
                sentences = self._count_late_calls(now_s)
                next_s = min(
                    (call.late_s for call in self._open_calls.values()),
                    default=now_s + self.silent_s,
                )
            for sentence in sentences:
                self._say(sentence)
            # a call that begins meanwhile is late no sooner: it has ``silent_s`` from then on
            time.sleep(max(0.0, next_s - time.monotonic()))
            with self._lock:
                if not self._open_calls:
                    self._is_listening = False
                    return

    def _count_late_calls(self, now_s: float) -> list[str]:
        """Counts calls that are late as refused. Returns the sentences to show. The caller holds
        the lock.
        """
        late = {caller: call for caller, call in self._open_calls.items() if call.late_s <= now_s}
        sentences: list[str] = []
        for caller, call in late.items():
            del self._open_calls[caller]
            self.refusing.setdefault(caller, self.now_s())
            if self._may_notify(caller):
                self._has_notified = True
                sentences.append(call.text)
        return sentences


OBJECT_STORE = RetryPolicy(
    tries=5, first_pause_s=1.0, longest_pause_s=LONGEST_PAUSE_S, least_share=0.5
)
FOLDER = replace(OBJECT_STORE, tries=3)
CHECK = replace(OBJECT_STORE, tries=2)  # few, because a user waits for the verdict
# few, because the record is written again after some seconds anyway
RUN_RECORD = replace(OBJECT_STORE, tries=3, first_pause_s=0.5)


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries of refused calls: as ``policy`` says, or for longer if ``Patience`` allows.

    ``is_local``: for a folder, where only the errors of network file systems are worth another try.
    """

    policy: RetryPolicy = OBJECT_STORE
    sleep: Callable[[float], None] = time.sleep
    is_local: bool = False

    def run(self, what: str, call: Callable[[], T], patience: Patience) -> T:
        """Calls ``call`` until it raises no OSError, and returns its result. Raises ResultsError
        with what failed (``what``), how often and why. FileNotFoundError passes through.
        """
        tries = _Tries(self, what, patience)
        has_answer = True
        try:
            return retried(
                lambda: tries.once(call),
                self.policy,
                is_passing=tries.is_passing,
                is_patient=tries.is_patient,
                sleep=tries.pause,
            )
        except FileNotFoundError:
            raise  # an answer of the storage, not a refusal
        except OSError as error:
            has_answer = False
            tries.note_given_up(error)
            raise ResultsError(tries.text) from error
        except ResultsError:
            has_answer = False
            raise
        finally:
            patience.ended(has_answer)


@dataclass(slots=True)
class _Tries:
    """The tries of one call. ``number``: of the last one. ``refused_s``: for how long the call has
    been refused. ``text``: the last refusal, in words.
    """

    retry: Retry
    what: str
    patience: Patience
    number: int = 0
    refused_s: float = 0.0
    text: str = ""

    def once(self, call: Callable[[], T]) -> T:
        """Makes one try. Counts a refusal, and notifies the user now and then."""
        self.number += 1
        count = f"try {self.number}"
        if self.number <= self.retry.policy.tries:
            count += f" of {self.retry.policy.tries}"
        try:
            with self.patience.listening(f"{self.what} ({count})"):
                return call()
        except FileNotFoundError:
            raise
        except OSError as error:
            self.text = f"{self.what} failed ({count}): {error}"
            self.refused_s = self.patience.refused(threading.get_ident(), self._refusal_sentence())
            raise

    def _refusal_sentence(self) -> str:
        """The sentence that the user is shown about the last refusal; empty for most refusals."""
        # a single refusal is normal; of many, about one every two minutes is shown
        is_shown = self.number in (2, 4) or self.number % 8 == 0
        if not is_shown:
            return ""
        sentence = f"the {self.patience.of} refuses: {self.text}"
        limit_s = self.patience.limit_s
        if limit_s:
            sentence += f"; rows are kept and nothing new starts, for at most {limit_s:g} s"
        return sentence

    def is_passing(self, error: BaseException) -> bool:
        """Whether the error may pass, so that another try is worth it."""
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return False
        if self.retry.is_local:
            if self.patience.limit_s and error.errno in NO_ROOM:
                return True
            return error.errno in _AWAY
        return not any(word in str(error) for word in _FINAL)

    def is_patient(self) -> bool:
        """Whether the run still wants tries beyond the policy's."""
        return self.refused_s < self.patience.limit_s

    def pause(self, pause_s: float) -> None:
        """Waits between two tries. Raises ResultsError when the call is no longer wanted."""
        if self.patience.wait is None:
            self.retry.sleep(pause_s)
        elif self.patience.wait(pause_s):
            raise ResultsError(f"{self.text}; not tried again: the sweep was stopped")

    def note_given_up(self, error: OSError) -> None:
        """Completes ``text`` when the call is not tried again after this error. ``Patience`` gets
        it too where only the time was up: then the whole run ends for this reason.
        """
        hint = None if self.retry.is_local else hint_of(error)
        if hint is not None and not self.is_passing(error):
            self.text = f"{self.what} failed: {error}; {hint}"
            return
        if self.is_passing(error) and self.patience.limit_s:
            self.text = f"the {self.patience.of} refused for {self.refused_s:.0f} s: {self.text}"
            self.patience.given_up = self.text

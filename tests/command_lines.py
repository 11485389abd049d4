"""Command lines compared without regard to the order of their flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence


def by_flag(line: str | Sequence[str]) -> dict[str, list[str]]:
    """Flag -> the words after it; what comes before the first flag stands under ``""``. A flag said
    twice fails.
    """
    found: dict[str, list[str]] = {"": []}
    flag = ""
    for word in shlex.split(line) if isinstance(line, str) else line:
        if re.match(r"--?[A-Za-z]", word):
            assert word not in found, f"{word} twice"
            flag, found[word] = word, []
        else:
            found[flag].append(word)
    return found

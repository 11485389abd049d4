"""A word of the field is linked to its definition where a page first uses it: in the README, in the
first steps, in the guides, and in the definitions of other words.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.documentation.pages import DOCS, FENCE, INLINE_CODE, ROOT

# those that mean nothing, or something else, to somebody who is new to the field
WORDS = (
    *("speculative decoding", "LoRA", "MBU", "MFU"),
    *("TTFT", "TPOT", "ITL", "E2E", "SLO", "goodput", "attainment", "knee", "frontier"),
    *("KV cache", "prefill", "replica", "probe", "open loop", "closed loop", "steady window"),
    *("tensor parallelism", "pipeline parallelism", "quantization", "runner-up", "shortlist"),
    *(
        "deployment",
        "design effect",
        "in flight",
        "percentile",
        "prefix cache",
        "OpenAI-compatible",
    ),
)
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("start/*.md")), *sorted(DOCS.glob("guides/*.md"))]
DEFINITION = re.compile(r"^### ([^\n]+)\n(.+?)(?=^#|\Z)", re.S | re.M)
LEFT_OUT = re.compile(r"<!--.*?-->|<picture>.*?</picture>|!\[[^\]]*\]\([^)]*\)|^#.*?$", re.S | re.M)
LINK = re.compile(r"\[[^\[\]]+\]\([^)]+\)")


def unlinked(text: str) -> list[str]:
    """The words of the field that a page first uses outside of a link."""
    prose = INLINE_CODE.sub("", LEFT_OUT.sub("", FENCE.sub("", text)))
    linked = [range(*link.span()) for link in LINK.finditer(prose)]
    found = []
    for word in WORDS:
        first = re.search(rf"(?<![\w/#-]){word}s?(?![\w-])", prose, re.IGNORECASE)
        if first and not any(first.start() in span for span in linked):
            found.append(word)
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_word_is_linked_where_a_page_first_uses_it(page: Path) -> None:
    assert unlinked(page.read_text(encoding="utf-8")) == []


def test_a_definition_links_the_words_that_it_uses() -> None:
    definitions = DEFINITION.findall((DOCS / "words.md").read_text(encoding="utf-8"))
    assert definitions
    for name, text in definitions:
        others = [word for word in unlinked(text) if word.lower() not in name.lower()]
        assert others == [], name


def test_every_word_has_a_definition() -> None:
    headings = re.findall(r"^### (.+)$", (DOCS / "words.md").read_text(encoding="utf-8"), re.M)
    defined = " ".join(headings).lower()
    assert [word for word in WORDS if word.lower() not in defined] == []


def test_a_word_that_is_linked_too_late_is_found() -> None:
    assert unlinked("`slo: x` The TTFT is [short](a.md), [SLOs](words.md#slo) hold.") == ["TTFT"]
    assert unlinked("Its KV cache, a [KV cache](words.md#kv-cache)") == ["KV cache"]

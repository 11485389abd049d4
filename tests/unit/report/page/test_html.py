import base64
import hashlib
import json
import re
from datetime import UTC, datetime

import pytest

from orchestrator.report.documents.answer import AnswerDocument
from orchestrator.report.page.html import (
    FOLDER,
    SCRIPTS,
    ExperimentSection,
    PageDocument,
    page_html,
)
from orchestrator.report.page.payload import PageDeployment, PageGroup, Payload, RequestBins
from orchestrator.report.page.timelines import Timelines

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def page(name: str) -> str:
    document = PageDocument(
        uri=name,
        created=datetime(2026, 11, 28, tzinfo=UTC),
        answer=AnswerDocument(()),
        experiments=(ExperimentSection(name, points=(), launches=(), notes=(name,)),),
    )
    deployment = PageDeployment(name, 1, None, {"model": name}, disagrees=False)
    group = PageGroup(
        experiment=name,
        workload=name,
        model=name,
        hardware=name,
        emulated=False,
        per="gpu",
        device="GPU",
        searched=False,
        slos=[],
        deployments=[deployment],
        points=[],
    )
    return page_html(document, Payload([group], {}, [], RequestBins({})), Timelines([], 0))


@pytest.fixture(scope="module")
def html() -> str:
    return page("results/")


def test_names_from_results_open_no_tag():
    text = page(HOSTILE)
    assert "<script>alert" not in text
    assert "<img src=x" not in text


def test_the_policy_names_each_script_by_its_hash(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    allowed = policy.group(1).replace("&#39;", "'")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == len(SCRIPTS)
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed


def test_the_policy_allows_nothing_else(html):
    policy = html.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src &#39;none&#39;" in policy or "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_page_without_comparisons_says_so(html):
    assert "No experiment here names limits" in html


def test_the_chart_library_is_the_one_that_was_published():
    lock = json.loads((FOLDER / "vendor" / "LOCK.json").read_text())
    script = (FOLDER / "vendor" / "echarts.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == lock["sha256"]

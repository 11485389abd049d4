import base64
import hashlib
import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from markupsafe import escape

from orchestrator.analysis.deployments import unknown_deployment
from orchestrator.analysis.launches import StoredLaunch, compared
from orchestrator.analysis.output_agreement import Agreement
from orchestrator.analysis.prediction import PredictedStart
from orchestrator.report.documents.answer import AnswerDocument
from orchestrator.report.documents.launch import launch_documents
from orchestrator.report.documents.workload import WorkloadDocument, workload_documents
from orchestrator.report.page.environment import (
    EngineVersions,
    HardwareClass,
    HostDescription,
    MeasuredWith,
)
from orchestrator.report.page.experiment_tables import (
    DeploymentAgreement,
    EfficiencyNoteCount,
    ExperimentSection,
    UnlistedDeployment,
    VerdictCount,
)
from orchestrator.report.page.html import SCRIPTS, PageContent, PageDocument, page_html
from orchestrator.report.page.inlined import FOLDER
from orchestrator.report.page.payload import (
    PageDeployment,
    PageGroup,
    PagePeaks,
    Payload,
    RequestBins,
)
from orchestrator.report.page.texts import DEFINITIONS, explained_columns
from orchestrator.report.page.timelines import Timelines
from orchestrator.results.records import LaunchRow
from orchestrator.spec.load import Workload

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def section(name: str) -> ExperimentSection:
    """An experiment in which everything has this name."""
    row = LaunchRow(
        launch_id="L0",
        deployment_id=name,
        experiment=name,
        status="failed",
        reason=name,
        engine_version=name,
        started_unix_ns=0,
        emulated=False,
    )
    deployment = replace(unknown_deployment(name), engine=name, engine_version=name)
    return ExperimentSection(
        name=name,
        points=(),
        parts=(),
        more_parts=0,
        verdicts=(VerdictCount(name, 1, name),),
        costs=(name,),
        efficient=(),
        efficiency_notes=(EfficiencyNoteCount(name, True, 1),),
        spending=None,
        predicted=(),
        more_predicted=0,
        found="predicted",
        unlisted=(UnlistedDeployment(name, name),),
        more_unlisted=0,
        capacities=(),
        launches=tuple(
            launch_documents([StoredLaunch(row, deployment, compared(PredictedStart(), {}), {})])
        ),
        agreements=(DeploymentAgreement(name, Agreement(0.5, 8, "tokens", name)),),
        environment=MeasuredWith(
            measured_by=(name,),
            planned_by=name,
            engines=(EngineVersions(name, (name,), (name,), 1, 0),),
            hardware=(HardwareClass(name, name, 2.5),),
            hosts=(HostDescription(name, (name,), 2, 1),),
        ),
        notes=(name,),
    )


def page(name: str, workloads: tuple[WorkloadDocument, ...] = ()) -> str:
    document = PageDocument(
        uri=name,
        created=datetime(2026, 11, 28, tzinfo=UTC),
        answer=AnswerDocument(()),
        experiments=(replace(section(name), workloads=workloads),),
    )
    deployment = PageDeployment(
        name, 1, None, {"model": name}, None, PagePeaks(name, name, 1.0, 1.0), 0.0
    )
    group = PageGroup(
        experiment=name,
        ranked_with=name,
        workload=name,
        model=name,
        model_name=name,
        hardware=name,
        emulated=False,
        simulated=False,
        source=name,
        content=name,
        per="gpu",
        device="GPU",
        searched=False,
        parts=[name],
        slos=[],
        deployments=[deployment],
        points=[],
    )
    payload = Payload([group], [], {}, [], RequestBins({}))
    return page_html(PageContent(document, payload, Timelines([], 0), has_answer=False))


@pytest.fixture(scope="module")
def html() -> str:
    return page("results/")


def test_names_from_results_open_no_tag():
    text = page(HOSTILE)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)") >= 20  # it stands everywhere


def test_each_part_of_a_mix_has_its_reuse(tmp_path):
    (tmp_path / "text.txt").write_text("one two three\n" * 20)
    lengths = {"input_tokens": 32, "output_tokens": 8}
    shared = {"name": "shared", "shared_prefix_tokens": 32, **lengths}
    code = {"name": "code", "content": {"text": str(tmp_path / "text.txt")}, **lengths}
    parts = [{"workload": part["name"], "content": part} for part in (shared, code)]
    mix = Workload.model_validate({"name": "office", "kind": "mix", "parts": parts})
    text = page("results/", tuple(workload_documents([mix], seed=0)))
    of_mix, of_shared, of_code = re.findall(r"<tr><th scope=\"row\">(?:office).*?</tr>", text)
    assert "<td>49.9 %</td>" in of_shared
    assert "%</td>" not in of_mix + of_code
    assert "reuse: not known, because prompts hold slices of a text; of the other parts" in text


def test_figures_are_explained(html):
    for definition in DEFINITIONS:
        assert str(escape(definition.meaning)) in html
    for explained in explained_columns():
        assert str(escape(explained.column.description)) in html


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

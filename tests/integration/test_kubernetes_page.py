"""The commands of the page on Kubernetes, with a kubectl, against a server that only keeps objects:
what they create has the names that the cluster files and the next commands ask for. Its jobs are
submitted elsewhere (``tests/cluster/test_jobs_and_s3.py``).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.blocks import blocks_run_by
from tests.harness import ROOT
from tests.integration.kubernetes_api import TOKEN, Objects, kubernetes_api

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="NOT RUN: kubectl is not installed")

# What kubectl creates it writes in a form that the server does not read, but for what is in a file. It
# validates files by schemas that the server does not have (test_cluster_files.py does that), and can
# forward no port.
PRELUDE = """
set -euo pipefail
at_server() { command kubectl --server SERVER "$@"; }
kubectl() {
  case "$*" in
    *--dry-run*) command kubectl "$@" ;;
    create*) command kubectl "$@" --dry-run=client -o json | at_server create --validate=false -f - ;;
    apply*) at_server "$@" --validate=false ;;
    port-forward*) at_server get "$2" ;;
    *) at_server "$@" ;;
  esac
}
orchestrator() { :; }
ray() { echo "$1 $2 with $RAY_AUTH_TOKEN"; }
"""
# what a document calls another object by -> the kind of that object
REFERENCES = {"configMap": "ConfigMap", "secretKeyRef": "Secret"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the cluster files and an experiment."""
    (tmp_path / "clusters").symlink_to(ROOT / "clusters")
    (tmp_path / "sweep.yaml").write_text("version: 1\n")
    return tmp_path


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def server(objects: Objects) -> Iterator[str]:
    with kubernetes_api(objects) as url:
        yield url


def run(number: int, server: str, folder: Path) -> str:
    """What a block of the page prints, which must succeed. ``number``: of the blocks left to this
    file.
    """
    block = blocks_run_by(__file__, "docs/guides/kubernetes.md")[number]
    done = subprocess.run(
        ["bash", "-c", PRELUDE.replace("SERVER", server) + block.text + "wait\n"],
        cwd=folder,
        env={
            "PATH": f"{Path(str(KUBECTL)).parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "HF_TOKEN": "hf",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
    return done.stdout


def missing(document: Any, objects: Objects) -> list[str]:
    """What a document refers to and the server does not have."""
    if isinstance(document, list):
        return [name for entry in document for name in missing(entry, objects)]
    if not isinstance(document, dict):
        return []
    absent = [name for entry in document.values() for name in missing(entry, objects)]
    for key, kind in REFERENCES.items():
        if key in document and document[key]["name"] not in objects.of_kind(kind):
            absent.append(f"{kind} {document[key]['name']}")
    claim = document.get("claimName")
    if claim is not None and claim not in objects.of_kind("PersistentVolumeClaim"):
        absent.append(f"claim {claim}")
    return absent


def test_a_sweep_has_all_that_its_job_refers_to_and_is_made_anew(
    objects: Objects, server: str, checkout: Path
) -> None:
    run(0, server, checkout)
    job = objects.of_kind("RayJob")["sweep"]
    assert missing(job, objects) == []
    run(1, server, checkout)
    assert objects.of_kind("RayJob") == {}
    assert "weights" in objects.of_kind("PersistentVolumeClaim")
    run(2, server, checkout)
    assert objects.of_kind("RayJob")["sweep"]["spec"] == job["spec"]


def test_what_a_job_refers_to_and_nobody_made_is_found() -> None:
    job = {"volumes": [{"configMap": {"name": "sweep"}}, {"claim": {"claimName": "weights"}}]}
    assert missing(job, Objects()) == ["ConfigMap sweep", "claim weights"]


def test_a_cluster_that_stays_has_all_it_refers_to_and_takes_jobs_with_its_token(
    objects: Objects, server: str, checkout: Path
) -> None:
    printed = run(3, server, checkout)
    assert missing(objects.of_kind("RayCluster")["sweeps"], objects) == []
    assert printed.count(f"job submit with {TOKEN}") == 2

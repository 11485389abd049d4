"""``ray up`` of the page on spot nodes, with a server of EC2's API that only keeps what it is asked
for, and with an ssh that only records commands: Ray makes the head node and what runs on it. The
page's job is submitted elsewhere (``tests/cluster/test_jobs_and_s3.py``).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import yaml

from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT, environment, free_port, wait_for

PROGRAMS = Path(sys.executable).parent
PAGE = "docs/guides/spot.md"
ACCOUNT = "123456789012"  # whose API the server is
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
# The nodes have docker, and the image sets no variables.
SSH = """#!/bin/sh
echo "$*" >> {commands}
case "$*" in
  *'command -v docker'*) echo /usr/bin/docker ;;
  *.Config.Env*) echo '[]' ;;
esac
"""


@pytest.fixture
def ec2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of AWS's API with the roles that the cluster file names, which all clients of this
    process and of its children ask.
    """
    port = free_port()
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(answers, 60, "moto_server answers")
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name in ("SWEEP_HEAD", "SWEEP_WORKER"):
            boto3.client("iam").create_instance_profile(InstanceProfileName=name)
        yield
    finally:
        server.terminate()
        server.wait(10)


def programs_in(folder: Path, commands: Path) -> Path:
    """A folder with an ssh and an rsync that write what they are asked for into ``commands``."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("ssh", "rsync"):
        program = programs / name
        program.write_text(SSH.format(commands=commands))
        program.chmod(0o755)
    return programs


def test_ray_up_of_the_page_makes_the_head_and_starts_ray_there(ec2: None, tmp_path: Path) -> None:
    (block,) = blocks_run_by(__file__, PAGE)
    token, up, _ = command_lines(block)  # the last is the job
    *_, file = up
    cluster_file = tmp_path / file
    cluster_file.parent.mkdir()
    content = (ROOT / file).read_text(encoding="utf-8").replace("ACCOUNT", ACCOUNT)
    cluster_file.write_text(content)
    commands = tmp_path / "commands"
    path = f"{programs_in(tmp_path, commands)}:{PROGRAMS}:{os.environ['PATH']}"
    (tmp_path / "home").mkdir()
    variables = environment(PATH=path, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path))
    for words in (token, [*up, "--yes"]):  # nobody can be asked here
        done = subprocess.run(
            words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    wanted = yaml.safe_load(content)
    node = wanted["available_node_types"]["head"]["node_config"]
    (reservation,) = boto3.client("ec2").describe_instances()["Reservations"]
    (head,) = reservation["Instances"]
    assert head["InstanceType"] == node["InstanceType"]
    assert head["IamInstanceProfile"]["Arn"] == node["IamInstanceProfile"]["Arn"]

    on_head = commands.read_text()
    _, start = wanted["head_start_ray_commands"]
    start = start.partition("~")[0]  # for which Ray writes the image's home folder
    for expected in (start, wanted["docker"]["head_image"], "/.ray/auth_token"):
        assert expected in on_head

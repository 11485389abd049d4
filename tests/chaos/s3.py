"""An S3 server behind a faulty way to it (``results_fault_proxy.py``) that can stand still, be
gone, and come back.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import boto3

from tests.harness import ROOT, free_port, wait_for

BUCKET = "sweeps"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}
PROXY = ROOT / "tests" / "integration" / "results_fault_proxy.py"


class FaultyS3:
    """Every third request through ``uri`` is answered with 503. A context manager."""

    def __init__(self) -> None:
        self._server_port, self._port = free_port(), free_port()
        command = [
            str(Path(sys.executable).parent / "moto_server"),
            "-H",
            "127.0.0.1",
            "-p",
            str(self._server_port),
        ]
        self._server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._way: subprocess.Popen[bytes] | None = None
        self.uri = f"s3://{BUCKET}/root?endpoint_override=127.0.0.1:{self._port}&scheme=http&region=us-east-1"

    def __enter__(self) -> FaultyS3:
        wait_for(lambda: answers(self._server_port), 60, "moto_server answers")
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self._server_port}", **keys
        ).create_bucket(Bucket=BUCKET)
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._way, self._server):
            if process is not None:
                process.kill()
                process.wait(10)

    def hang(self) -> None:
        """Connections are taken and nothing comes of them."""
        self._way.send_signal(signal.SIGSTOP)

    def vanish(self) -> None:
        """Connections are refused."""
        self._way.kill()
        self._way.wait(10)

    def come_back(self) -> None:
        self._way = subprocess.Popen(
            [sys.executable, str(PROXY), str(self._server_port), "third_503", str(self._port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: answers(self._port), 30, "the way to the S3 server is open")


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

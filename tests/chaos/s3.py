"""An S3 server behind a faulty proxy (``results_fault_proxy.py``), which can hang, vanish and come
back.
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
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}
PROXY = ROOT / "tests" / "integration" / "results_fault_proxy.py"


class FaultyS3:
    """A context manager. The proxy at ``uri`` answers every third request with 503."""

    def __init__(self) -> None:
        self._server_port = free_port()
        self._proxy_port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._proxy: subprocess.Popen[bytes] | None = None
        endpoint = f"endpoint_override=127.0.0.1:{self._proxy_port}&scheme=http&region={REGION}"
        self.uri = f"s3://{BUCKET}/root?{endpoint}"

    def __enter__(self) -> FaultyS3:
        moto_server = str(Path(sys.executable).parent / "moto_server")
        self._server = started([moto_server, "-H", "127.0.0.1", "-p", str(self._server_port)])
        wait_for(lambda: answers(self._server_port), 60, "moto_server answers")
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self._server_port}",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )
        client.create_bucket(Bucket=BUCKET)
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._proxy, self._server):
            if process is not None:
                process.kill()
                process.wait(10)

    def hang(self) -> None:
        """The proxy takes connections and does nothing with them."""
        self._proxy.send_signal(signal.SIGSTOP)

    def vanish(self) -> None:
        """Connections are refused."""
        self._proxy.kill()
        self._proxy.wait(10)

    def come_back(self) -> None:
        """Starts the proxy, and waits until it answers."""
        arguments = (str(self._server_port), "third_503", str(self._proxy_port))
        self._proxy = started([sys.executable, str(PROXY), *arguments])
        wait_for(lambda: answers(self._proxy_port), 30, "the proxy answers")


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""TLS, IPv6, and proxies that are not asked."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orchestrator.load import transport
from orchestrator.load.point import Target
from orchestrator.spec.load import Lengths
from orchestrator.workloads.drawn import RandomWorkload
from tests.integration.load_server import (
    END,
    HEAD,
    Request,
    answer_openai,
    answer_well,
    chunk,
    serving,
    stream,
)
from tests.integration.test_load_cli import QUICK, load
from tests.integration.test_load_hostile import only_outcome, point, run


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def context(certificate: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate)
    return made


def test_a_handshake_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without TLS that waits for a request."""
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_NS", 300_000_000)
    with serving(answer_well) as server:
        target = Target(f"https://127.0.0.1:{server.port}", "m")
        found = run(
            point(server.port, 1, targets=(target,), request_timeout_s=20.0)
        ).requests.to_pylist()
    assert only_outcome(found) == ("error", "connect")
    assert "the TLS handshake was not over" in found[0]["error"]


async def in_small_writes(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    for part in (HEAD, *map(chunk, stream(request)), END):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.001)


async def in_one_write(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await answer_well(request, reader, writer)


@pytest.mark.parametrize("behave", [in_small_writes, in_one_write])
def test_streams_over_tls(
    behave: object, context: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(behave, tls=context) as server:  # type: ignore[arg-type]
        target = (Target(f"https://127.0.0.1:{server.port}", "m"),)
        result = run(
            point(
                server.port,
                12,
                concurrency=3,
                targets=target,
                tokens=2000 if behave is in_one_write else 4,
            )
        )
        assert server.connections == 3
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_a_large_request_over_tls(
    context: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    big = RandomWorkload(
        name="w", input_tokens=Lengths(fixed=300_000), output_tokens=Lengths(fixed=4)
    )
    with serving(answer_well, tls=context) as server:
        target = (Target(f"https://127.0.0.1:{server.port}", "m"),)
        result = run(point(server.port, 2, targets=target, workload=big))
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_a_certificate_nobody_trusts_is_a_connect_error_that_says_why(
    context: ssl.SSLContext,
) -> None:
    with serving(answer_well, tls=context) as server:
        target = (Target(f"https://127.0.0.1:{server.port}", "m"),)
        rows = run(point(server.port, 2, targets=target)).requests.to_pylist()
    assert only_outcome(rows) == ("error", "connect")
    assert "certificate" in rows[0]["error"].lower()


def test_plain_http_to_a_tls_server_is_a_row(context: ssl.SSLContext) -> None:
    with serving(answer_well, tls=context) as server:
        rows = run(point(server.port, 2)).requests.to_pylist()
    assert {row["status"] for row in rows} <= {"error", "invalid"}


def test_ipv6() -> None:
    with serving(answer_well, host="::1") as server:
        result = run(point(server.port, 4, targets=(Target(f"http://[::1]:{server.port}", "m"),)))
        assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0].head
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_a_name_with_several_addresses_is_tried_until_one_answers() -> None:
    """localhost is ::1 and 127.0.0.1 on many machines; the server listens on one of them only."""
    with serving(answer_well) as server:
        result = run(
            point(server.port, 4, targets=(Target(f"http://localhost:{server.port}", "m"),))
        )
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(answer_well) as server:
        result = run(point(server.port, 4))
        assert len(server.requests) == 4
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_load_believes_a_certificate_that_nobody_signed_only_where_it_is_told_to(
    context: ssl.SSLContext,
) -> None:
    args = ("--concurrency", "1", "--requests", "2", *QUICK)
    with serving(answer_openai, tls=context) as server:
        url = f"https://127.0.0.1:{server.port}"
        refused, done = load(url, *args), load(url, *args, "--insecure")
    assert refused.returncode == 2
    assert "its certificate is not trusted" in refused.stderr
    assert "--insecure" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "note: nobody checked the certificate" in done.stdout

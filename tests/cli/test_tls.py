"""HTTPS of `lengthwise serve`."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from tests.cli.test_serve import serving
from tests.gateway.engine import StandIn, served, wait_for
from tests.gateway.helpers import limited_gateway

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [*new, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def status(url: str, trusted: Path) -> int | None:
    """The status of /health; None if the certificate is not the trusted one."""
    context = ssl.create_default_context(cafile=trusted)
    try:
        with urllib.request.urlopen(url + "/health", timeout=20, context=context) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            return None
        raise


def test_https_is_served_and_a_new_certificate_is_used_after_a_reload(tmp_path: Path) -> None:
    first, key = make_certificate(tmp_path, "first")
    second, second_key = make_certificate(tmp_path, "second")
    used, used_key = tmp_path / "used.pem", tmp_path / "used.key"
    shutil.copy(first, used)
    shutil.copy(key, used_key)
    options = ("--tls-certificate", str(used), "--tls-key", str(used_key), "--predictor", "none")
    with served(StandIn().app()) as engine, serving("--engine", engine, *options) as (process, url):
        assert url.startswith("https://")
        assert status(url, first) == 200
        shutil.copy(second, used)
        shutil.copy(second_key, used_key)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: status(url, second) == 200)
        assert status(url, first) is None


def test_a_client_that_does_not_complete_its_handshake_is_disconnected(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key), "--predictor", "none")
    with (
        served(StandIn().app()) as engine,
        serving("--engine", engine, *options, "--header-timeout-s", "1") as (_, url),
    ):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as silent:
            assert silent.recv(1) == b""
        assert status(url, certificate) == 200


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_connections_count_before_their_handshake(tmp_path: Path, limit: str) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    with (
        served(StandIn().app()) as engine,
        limited_gateway(engine, tls_certificate=certificate, tls_key=key, header_timeout_s=60.0, **{limit: 4}) as url,
        ExitStack() as stack,
    ):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(12)]
        for refused in silent[4:]:
            with suppress(ConnectionResetError):
                assert refused.recv(1) == b"", "closed without a handshake"
        for held in silent[:4]:
            held.setblocking(False)
            with pytest.raises(BlockingIOError):
                held.recv(1)
            held.close()
        wait_for(lambda: answers(url, certificate))


def answers(url: str, trusted: Path) -> bool:
    """Whether a connection is admitted."""
    try:
        return status(url, trusted) == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def test_heads_are_limited_under_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    limits: dict[str, Any] = {"max_header_bytes": 4096, "header_timeout_s": 1.0}
    context = ssl.create_default_context(cafile=certificate)
    with (
        served(StandIn().app()) as engine,
        limited_gateway(engine, tls_certificate=certificate, tls_key=key, **limits) as url,
    ):
        for sent, status_line in [
            (b"GET / HTTP/1.1\r\nx: " + b"x" * 8192, b"HTTP/1.1 431"),
            (b"GET / HTTP/1.1\r\n", b"HTTP/1.1 408"),
        ]:
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            with context.wrap_socket(socket.create_connection(address, timeout=20), server_hostname=address[0]) as sock:
                sock.sendall(sent)
                assert sock.recv(65536).startswith(status_line)


def test_a_certificate_without_its_key_is_an_error(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, "first")
    _, other = make_certificate(tmp_path, "second")
    for options in (
        ["--tls-certificate", str(certificate), "--tls-key", str(other)],
        ["--tls-certificate", str(certificate)],
        ["--tls-certificate", str(tmp_path / "none.pem")],
    ):
        result = CliRunner().invoke(app, ["serve", "--check", *options])
        assert result.exit_code == 2
        assert "certificate and key cannot be used" in result.stderr
        assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, ["serve", "--check", "--tls-key", str(other)])
    assert "tls_key is given without tls_certificate" in result.stderr

"""HTTPS of `lengthwise serve`."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from tests.cli.test_serve import serving
from tests.gateway.engine import StandIn, served, wait_for

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

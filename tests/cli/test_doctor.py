from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.cli.doctor import PARTS, Part, check_engine, check_port, check_vllm
from lengthwise.errors import InputError

MODELS = {"data": [{"id": "llama", "owned_by": "vllm"}]}
GATEWAY = {"status": "ok", "policy": "sjf", "predictions_from": "predictor"}


@contextmanager
def server(answers: dict[str, tuple[int, object]]) -> Iterator[int]:
    """Serve JSON by path, anything else with 404, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = answers.get(self.path, (404, {}))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()
            thread.join()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def doctor_arguments(*arguments: str) -> list[str]:
    """Return arguments whose check of the port passes, whatever runs on this machine."""
    return ["doctor", "--port", str(free_port()), *arguments]


def test_doctor_names_the_command_that_installs_a_missing_part() -> None:
    result = CliRunner().invoke(app, doctor_arguments(), env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "prediction ready" in result.stdout
    assert any(part.version for part in PARTS)
    for part in PARTS:
        assert (part.how in result.stdout) or part.version


def test_doctor_prints_json() -> None:
    result = CliRunner().invoke(app, doctor_arguments("--json"))
    report = json.loads(result.stdout)
    assert {part["package"]: part for part in report["parts"]}["huggingface-hub"]["version"]
    assert [check["found"] for check in report["checks"] if check["name"].startswith("port")] == ["free"]


def test_doctor_prints_the_data_folder(tmp_path: Path) -> None:
    environment = {"LENGTHWISE_DATA": str(tmp_path), "COLUMNS": "400"}
    result = CliRunner().invoke(app, doctor_arguments(), env=environment)
    assert str(tmp_path) in result.stdout


def test_a_data_folder_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "/nowhere/at/all")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 2
    assert "LENGTHWISE_DATA=/nowhere/at/all" in result.stderr


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout.startswith("lengthwise ")


@dataclass(frozen=True)
class InstalledPart(Part):
    installed: str = ""

    @property
    def version(self) -> str | None:
        return self.installed


@pytest.mark.parametrize(("installed", "fine"), [("0.30.0", True), ("0.33.4", True), ("0.34.1", False), ("0.3", False)])
def test_an_untested_release_of_vllm_that_lacks_names_fails_the_check_which_says_what_is_off(
    installed: str, fine: bool, tmp_path: Path
) -> None:
    (check,) = check_vllm((InstalledPart("vllm", "", "", installed),), sources=tmp_path)
    assert installed in check.name
    assert (check.fix is None) == fine
    assert fine or f"make test-vllm RELEASE={installed}" in str(check.fix)
    assert fine or "`order` is off (no RequestQueue.__bool__" in check.found


def test_an_untested_release_of_vllm_with_every_name_passes_and_the_test_to_run_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lengthwise.cli.doctor.problems", lambda _: {})
    (check,) = check_vllm((InstalledPart("vllm", "", "", "0.34.0"),), sources=tmp_path)
    assert check.fix is None
    assert "make test-vllm RELEASE=0.34.0" in check.found


def test_a_missing_vllm_is_not_checked() -> None:
    assert check_vllm((Part("lengthwise-nothing", "", ""),)) == []


def test_a_free_port_is_fine_and_an_occupied_one_names_the_option() -> None:
    assert check_port(free_port()).fix is None
    with server({}) as port:
        check = check_port(port)
    assert check.found == "in use by another program"
    assert "--port" in str(check.fix)


def test_a_running_gateway_on_the_port_is_recognised() -> None:
    with server({"/health": (200, GATEWAY)}) as port:
        check = check_port(port)
    assert check.fix is None
    assert check.found == "a Lengthwise gateway is running, policy sjf"


def test_an_engine_that_answers_is_named_with_its_models() -> None:
    answers = {"/v1/models": (200, MODELS), "/version": (200, {"version": "0.32.0"})}
    with server(answers) as port:
        check = check_engine(f"http://127.0.0.1:{port}/v1")
    assert check.fix is None
    assert check.found == "vLLM 0.32.0, serves llama"


@pytest.mark.parametrize(
    ("status", "content", "fix"),
    [
        (401, {"error": "no key"}, "api_key"),
        (404, {}, "URL of an OpenAI server"),
        (500, {}, "log"),
        (200, {"no": "models"}, "log"),
    ],
)
def test_a_server_that_cannot_be_used_names_its_fix(status: int, content: object, fix: str) -> None:
    with server({"/v1/models": (status, content)}) as port:
        check = check_engine(f"http://127.0.0.1:{port}")
    assert fix in str(check.fix)


def test_an_engine_that_refuses_connections_names_the_port_to_check() -> None:
    check = check_engine(f"http://127.0.0.1:{free_port()}")
    assert check.found == "nothing listens there"
    assert "8000" in str(check.fix)


def test_the_fix_for_a_url_without_a_port_is_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    assert check_engine("http://gpu-1").fix == "give the port, as in http://gpu-1:8000"


def test_a_host_that_does_not_resolve_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert "'gpu-1' cannot be resolved" in check_engine("http://gpu-1:8000").found


def test_credentials_in_a_url_are_not_printed() -> None:
    check = check_engine(f"http://user:secret@127.0.0.1:{free_port()}")
    assert "secret" not in f"{check}"


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(InputError, match="is not the URL of an engine"):
        check_engine("gpu-1")


def test_a_failed_check_ends_with_exit_code_1_and_prints_the_fix() -> None:
    arguments = doctor_arguments("--engine", f"http://127.0.0.1:{free_port()}")
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "fix: start the engine" in result.stdout

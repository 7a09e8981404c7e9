from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import StandIn, free_port, served, wait_for

COMMAND = [sys.executable, "-c", "from lengthwise.cli import main; main()"]


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a process and yield it with the URL that it prints."""
    command = [*COMMAND, "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def complete(url: str) -> int:
    request = urllib.request.Request(url + "/v1/completions", b'{"prompt": "x", "max_tokens": 3}')  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
        return int(response.status)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_finishes_running_requests_on_sigint_and_sigterm(stop: signal.Signals) -> None:
    engine = StandIn(token_s=0.2)
    with served(engine.app()) as engine_url, serving("--engine", engine_url) as (process, url):
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(complete, url)
            wait_for(lambda: engine.running)
            process.send_signal(stop)
            assert asked.result(20) == 200, "running requests finish"
        assert process.wait(60) == 0
    assert (engine.finished, engine.aborted) == (1, 0)


def test_a_second_ctrl_c_ends_serve_at_once_and_prints_no_traceback() -> None:
    engine = StandIn(token_s=30.0)
    with served(engine.app()) as engine_url, ThreadPoolExecutor() as pool:
        command = [*COMMAND, "serve", "--port", "0", "--engine", engine_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2]
            asked = pool.submit(complete, url)
            wait_for(lambda: engine.running)
            process.send_signal(signal.SIGINT)
            wait_for(lambda: not listens(url))
            process.send_signal(signal.SIGINT)
            _, shown = process.communicate(timeout=120)
        assert asked.exception(20) is not None, "its answer would have taken 90 s"
    assert "Traceback" not in shown
    assert "KeyboardInterrupt" not in shown


def listens(url: str) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def change_policy(url: str, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(url + "/lengthwise/v1/policy", b'{"policy": "fcfs"}', headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_serve_without_keys_prints_the_dashboard_with_a_token_that_admits_changes(tmp_path: Path) -> None:
    with served(StandIn().app()) as engine_url:
        with serving("--engine", engine_url) as (process, url):
            assert process.stdout is not None
            shown, _, token = process.stdout.readline().strip().partition("/#token=")
            assert shown == f"dashboard with the admin token of this run: {url}"
            assert len(token) >= 32
            assert [change_policy(url, given) for given in ("x" * 32, token)] == [403, 200]
        add_key(tmp_path / "keys.json", "ops", {"admin": True})
        with serving("--engine", engine_url, "--keys", str(tmp_path / "keys.json")) as (process, url):
            assert process.stdout is not None
            assert "token" not in process.stdout.readline()
            assert change_policy(url, token) == 401


def test_a_dead_engine_is_an_error_that_names_the_fix() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, ["serve", "--engine", dead, "--port", "0"])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: engine {dead} does not answer; start it, correct the URL, or give it time with --wait SECONDS\n"
    )


def test_serve_starts_with_one_of_two_engines_down() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with served(StandIn().app()) as alive, serving("--engine", dead, "--engine", alive) as (_, url):
        with urllib.request.urlopen(url + "/health", timeout=20) as response:  # noqa: S310
            assert [engine["up"] for engine in json.load(response)["engines"]] == [False, True]
        assert complete(url) == 200


def test_after_the_shutdown_timeout_streams_end_with_an_error_event_and_others_with_503() -> None:
    engine = StandIn()

    def answer(url: str, stream: bool) -> tuple[int, bytes]:
        body = json.dumps({"prompt": "x", "max_tokens": 9, "stream": stream}).encode()
        request = urllib.request.Request(url + "/v1/completions", body)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    options = ("--shutdown-timeout-s", "1", "--predictor", "none")
    with served(engine.app()) as engine_url, serving("--engine", engine_url, *options) as (process, url):
        engine.hang_after = 2
        with ThreadPoolExecutor() as pool:
            streamed, whole = pool.submit(answer, url, True), pool.submit(answer, url, False)
            wait_for(lambda: engine.running == engine.hanging == 2)
            process.send_signal(signal.SIGTERM)
            status, events = streamed.result(20)
            *tokens, last = events.strip().split(b"\n\n")
            assert (status, len(tokens)) == (200, 2)
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
            status, body = whole.result(20)
            assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
        assert process.wait(60) == 0


def test_with_wait_serve_waits_for_its_engine() -> None:
    port = free_port()
    command = [*COMMAND, "serve", "--port", "0", "--engine", f"http://127.0.0.1:{port}", "--wait", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            with served(StandIn().app(), port):
                assert process.stdout is not None
                assert process.stdout.readline().startswith("serving on http://127.0.0.1:")
        finally:
            process.kill()


def test_an_occupied_port_is_an_error_before_any_engine_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # No engine is given: without an early check of the port the embedded engine would start.
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: port {port} of 127.0.0.1 is taken; stop the process that listens there, or choose "
        "another with --port\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "sjff"], "there is no policy 'sjff'; did you mean sjf?"),
        (["--router", "lengthwize"], "there is no router 'lengthwize'; did you mean lengthwise?"),
        (["--predictor", "fats"], "there is no predictor 'fats'; did you mean fast?"),
        (["--predictor", "missing.lw"], "missing.lw: is not a file"),
        (["--engine", "nonsense"], "'nonsense' is not the URL of an engine"),
        (["--host", "no.such.host.invalid"], "there is no address 'no.such.host.invalid'"),
        (["--admission-quantile", "1.5"], "--admission-quantile: '1.5' is not valid"),
        (["--in-flight", "0"], "--in-flight: '0' is not valid"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_serve_starts_simulated_engines_and_stops_them() -> None:
    with serving("--engine", "simulated:2*llama-3-8b@a100?speed=50") as (process, url):
        assert complete(url) == 200
        with urllib.request.urlopen(url + "/health", timeout=20) as response:  # noqa: S310
            assert len(json.load(response)["engines"]) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_fleet_that_cannot_be_simulated_is_refused() -> None:
    result = CliRunner().invoke(app, ["serve", "--engine", "simulated:2*llama-9", "--port", "0"])
    assert result.exit_code == 2
    assert "no engine is called 'llama-9'" in result.stderr


def check(*options: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--check", *options], env=environment)


def test_check_validates_a_file_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("engines: [{url: 'http://gpu-1:8000', name: gpu-1}, http://gpu-2:8000]\npolicy: sjf\n")
    result = check("--config", str(file))
    assert (result.exit_code, result.stdout) == (
        0,
        "valid: gpu-1 http://gpu-1:8000, engine-1 http://gpu-2:8000, policy sjf, router lengthwise, predictor fast\n",
    )
    file.write_text("engines: [{url: 'http://gpu-1:8000', nam: gpu-1}]")
    result = check("--config", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"error: {file}, field 'engines.0.nam': there is no field 'nam'; did you mean name?"
    )


def test_a_tenant_without_a_key_is_a_warning(tmp_path: Path) -> None:
    file, keys = tmp_path / "fleet.yaml", tmp_path / "keys.json"
    file.write_text("engines: [http://gpu-1:8000]\ntenants: {team-a: {}, team-b: {}, default: {}}\n")
    add_key(keys, "team-a", {})
    result = check("--config", str(file), "--keys", str(keys))
    assert (result.exit_code, result.stderr) == (0, "warning: without a key no request belongs to team-b\n")
    assert "policy fair(lengthwise)" in result.stdout


def test_options_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("engines: [http://gpu-1:8000]\npolicy: sjf\n")
    environment = {"LENGTHWISE_SERVE_CONFIG": str(file)}
    assert "policy sjf" in check(**environment).stdout
    environment["LENGTHWISE_SERVE_POLICY"] = "fcfs"
    assert "policy fcfs" in check(**environment).stdout
    assert "policy tie" in check("--policy", "tie", **environment).stdout
    assert "http://gpu-9:8000, policy" in check("--engine", "http://gpu-9:8000", **environment).stdout


def test_a_bad_option_beside_a_file_is_named_as_an_option(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("engines: [http://gpu-1:8000]\n")
    assert check("--config", str(file), "--in-flight", "0").stderr.startswith("error: --in-flight: '0' is not valid")
    assert check("--config", str(tmp_path / "none.yaml")).stderr == f"error: {tmp_path}/none.yaml: no such file\n"


@pytest.mark.parametrize("name", ["breaker", "drain", "write-timeout", "shutdown-timeout"])
def test_the_old_spelling_of_a_time_is_an_error_that_names_the_new_one(name: str) -> None:
    refused = check(f"--{name}", "2")
    assert (refused.exit_code, refused.stderr) == (2, f"error: --{name}: is now --{name}-s\n")
    variable = f"LENGTHWISE_SERVE_{name.upper().replace('-', '_')}"
    refused = check(**{variable: "2"})
    assert (refused.exit_code, refused.stderr) == (2, f"error: {variable}: is now {variable}_S\n")
    assert check(f"--{name}-s", "2", **{f"{variable}_S": "3"}).exit_code == 0


@pytest.mark.parametrize(("old", "new"), [("learn", "log"), ("learn_bytes", "log_bytes")])
def test_a_renamed_setting_is_an_error_that_names_the_new_one(old: str, new: str, tmp_path: Path) -> None:
    option, file = "--" + old.replace("_", "-"), tmp_path / "fleet.yaml"
    assert check(option, "x").stderr == f"error: {option}: is now --{new.replace('_', '-')}\n"
    variable = f"LENGTHWISE_SERVE_{old.upper()}"
    assert check(**{variable: "x"}).stderr == f"error: {variable}: is now LENGTHWISE_SERVE_{new.upper()}\n"
    file.write_text(f"engines: [http://gpu-1:8000]\n{old}: x\n")
    refused = check("--config", str(file))
    assert (refused.exit_code, refused.stderr) == (2, f"error: {file}, field '{old}': is now `{new}`\n")


def test_the_old_setting_of_prefix_memory_names_learning_and_state(tmp_path: Path) -> None:
    refused = check("--memory", "off")
    part = "is gone: prefix memory is part of"
    assert (refused.exit_code, refused.stderr) == (2, f"error: --memory: {part} --learning, and is kept in --state\n")
    file = tmp_path / "fleet.yaml"
    file.write_text("engines: [http://gpu-1:8000]\nmemory: off\n")
    refused = check("--config", str(file))
    assert refused.stderr == f"error: {file}, field 'memory': {part} `learning`, and is kept in `state`\n"
    assert check("--no-learning", "--state", str(tmp_path / "new")).exit_code == 0
    assert not (tmp_path / "new").exists(), "a check writes nothing"
    assert "give cache, off, or a folder" in check("--state", str(file)).stderr


def test_a_retired_option_or_variable_is_an_error_that_says_what_to_do_instead() -> None:
    instead = "run several gateways behind a load balancer, or Ray Serve (docs/guides/cluster.md)"
    refused = check("--workers", "2")
    assert (refused.exit_code, refused.stderr) == (2, f"error: --workers: is gone; {instead}\n")
    refused = check(LENGTHWISE_SERVE_WORKERS="2")
    assert (refused.exit_code, refused.stderr) == (2, f"error: LENGTHWISE_SERVE_WORKERS: is gone; {instead}\n")


def test_engines_have_the_names_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    with served(StandIn().app()) as engine_url:
        file.write_text(f"engines: [{{url: '{engine_url}', name: gpu-1}}]\npredictor: none\n")
        with serving("--config", str(file)) as (_, url):
            assert complete(url) == 200
            with urllib.request.urlopen(url + "/health", timeout=20) as response:  # noqa: S310
                assert [engine["name"] for engine in json.load(response)["engines"]] == ["gpu-1"]


def test_what_is_seldom_meant_is_warned_about(tmp_path: Path) -> None:
    def warnings(*options: str) -> str:
        shown = CliRunner().invoke(app, ["serve", "--engine", "http://127.0.0.1:1", "--check", *options])
        assert shown.exit_code == 0, shown.stderr
        return shown.stderr

    assert "is open to other machines and no key is needed" in warnings("--host", "0.0.0.0")  # noqa: S104
    assert "needs streamed answers" in warnings("--observe", "--log", str(tmp_path))
    assert warnings("--host", "localhost") == warnings("--host", "127.0.0.2") == ""


def test_a_keys_file_without_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{}")
    refused = CliRunner().invoke(app, ["serve", "--engine", "http://127.0.0.1:1", "--check", "--keys", str(path)])
    assert refused.exit_code == 2
    assert refused.stderr == f"error: {path}: holds no key; run: lengthwise keys add TENANT --keys {path}\n"

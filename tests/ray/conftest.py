"""One local cluster for all tests of a module: a head with the gateway and two nodes with an engine each.

Engine nodes have a GPU for Ray's scheduler alone, so that each holds exactly one replica and the gateway none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.gateway.engine import free_port

NODES = 2
SPEED = 20
ENGINE = f"simulated:1*llama-3-8b@a100?speed={SPEED}&max_num_seqs=8"

# Processes that the tests have no use for, each of which takes seconds of CPU time to start, are off. On a busy machine
# a replica may take long to state its queue, and Ray Serve would then choose another one.
os.environ |= {
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "60",
    "RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "60",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


@dataclass
class LocalCluster:
    """A Ray cluster of several nodes on this machine; `url` is that of the application."""

    cluster: Any
    nodes: list[Any]
    url: str


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[LocalCluster]:
    import ray
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 0, **small})
    try:
        nodes = [cluster.add_node(wait=False, num_cpus=1, num_gpus=1, **small) for _ in range(NODES)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield LocalCluster(cluster, nodes, f"http://127.0.0.1:{free_port()}")
    finally:
        with suppress(Exception):
            ray.shutdown()
        for node in [*cluster.worker_nodes, cluster.head_node]:
            cluster.remove_node(node, allow_graceful=False)
        cluster.shutdown()  # forgets the address, which later programs would connect to


@pytest.fixture(scope="module")
def application(ray_cluster: LocalCluster) -> LocalCluster:
    """The application on the cluster, ready."""
    from ray import serve

    from lengthwise.ray import app

    port = int(ray_cluster.url.rpartition(":")[2])
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    arguments = {"engine": ENGINE, "replicas": NODES, "cpus": 0, "gpus": 1, "ingress_cpus": 2, "in_flight": 16}
    serve.run(app({**arguments, "gateway": {"health_interval_s": 0.2}}), name="lengthwise")
    return ray_cluster

"""The Ray cluster of `deploy/kubernetes/`: what Ray, Kubernetes and our runs find in its description."""

from __future__ import annotations

import pytest

from mm_assets.pool.ray import _TASK_MEMORY
from mm_assets.settings import ray_host_and_port
from mm_assets_tests.deploy import cluster


def test_runs_reach_the_head_of_the_ray_cluster() -> None:
    ray = cluster.of_kind(cluster.RAY, "RayCluster")
    settings = cluster.of_kind(cluster.RAY, "ConfigMap")["data"]
    address = settings["MM_RAY_ADDRESS"]
    assert address.startswith("ray://"), "a pod of a run is no node of the cluster"
    ports = {
        each["name"]: each["containerPort"] for each in cluster.container(cluster.ray_pods()["head"])["ports"]
    }
    assert ray_host_and_port(address) == (f"{ray['metadata']['name']}-head-svc", ports["client"])
    assert ray["spec"]["authOptions"]["mode"] == settings["RAY_AUTH_MODE"] == "token"


def test_ray_reads_its_cluster_as_it_is_meant() -> None:
    """With the part of Ray that reads the description of a cluster on Kubernetes."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    ray = cluster.of_kind(cluster.RAY, "RayCluster")
    ray["metadata"]["namespace"] = "mm-assets"
    read = _derive_autoscaling_config_from_ray_cr(ray)
    head, nodes = (read["available_node_types"][name] for name in ("headgroup", "shards"))
    assert head["resources"]["CPU"] == 0
    assert (nodes["min_workers"], nodes["max_workers"], nodes["resources"]["CPU"]) == (2, 2, 4)
    assert nodes["resources"]["memory"] >= nodes["resources"]["CPU"] * _TASK_MEMORY


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within Ray
def test_options_of_ray_start_exist_and_probes_ask_the_ports_they_set() -> None:
    from ray.scripts.scripts import start

    known = {option.removeprefix("--") for parameter in start.params for option in parameter.opts}
    spec = cluster.of_kind(cluster.RAY, "RayCluster")["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        given = group["rayStartParams"]
        assert given.keys() <= known and all(isinstance(value, str) for value in given.values())
        node = cluster.container(group["template"]["spec"])
        ports = {given["node-manager-port"], *(str(each["containerPort"]) for each in node.get("ports", []))}
        for probe in ("readinessProbe", "livenessProbe"):  # KubeRay's own need ray[default]
            assert str(node[probe]["tcpSocket"]["port"]) in ports


def test_no_field_of_the_ray_cluster_is_misspelt() -> None:
    """Its own fields, which the schemas of Kubernetes have not; those of pods are looked at above."""
    spec = cluster.of_kind(cluster.RAY, "RayCluster")["spec"]
    assert spec.keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert spec["headGroupSpec"].keys() == {"rayStartParams", "template"}
    (group,) = spec["workerGroupSpecs"]
    assert group.keys() == {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    }
    cluster.validate(cluster.of_kind(cluster.RAY, "ConfigMap"))
    cluster.validate(cluster.of_kind(cluster.SETTINGS, "ConfigMap"))

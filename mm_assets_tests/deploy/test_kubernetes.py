"""The files of `deploy/kubernetes/`, as far as they can be checked without a cluster and without the chart.

Neither Dagster's chart nor KubeRay is in a package registry. So the values are read by the classes that they
end up at, and what those make of them by the schemas of Kubernetes.
"""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dagster import DagsterInvalidConfigError
from dagster._config import resolve_to_config_type, validate_config
from dagster._core.instance.ref import InstanceRef
from dagster_aws.s3 import S3ComputeLogManager
from dagster_k8s import K8sRunLauncher
from dagster_postgres.run_storage import PostgresRunStorage
from dagster_postgres.schedule_storage import PostgresScheduleStorage

from mm_assets.event_log.postgres import BatchedPostgresEventLogStorage
from mm_assets.settings import Settings
from mm_assets_tests.deploy import cluster
from mm_assets_tests.deploy.recipe import DAGSTER_YAML, DOCKERFILE, ROOT, variables_of


def job(folder: Path) -> Any:
    return cluster.launched_job(cluster.launcher(), cluster.image(cluster.services()["location"]), folder)


def instance_of(values: Any, folder: Path) -> InstanceRef:
    (folder / "dagster.yaml").write_text(cluster.dagster_yaml(values))
    return InstanceRef.from_dir(str(folder))


def errors(values: Any, folder: Path) -> str:
    """What Dagster says against values."""
    try:
        found = instance_of(values, folder)
    except DagsterInvalidConfigError as error:
        return str(error)
    results = [
        validate_config(resolve_to_config_type(kind.config_type()), data.config_dict)
        for kind, data in (
            (K8sRunLauncher, found.run_launcher_data),
            (S3ComputeLogManager, found.compute_logs_data),
            (PostgresRunStorage, found.run_storage_data),
            (PostgresScheduleStorage, found.schedule_storage_data),
            (BatchedPostgresEventLogStorage, found.event_storage_data),
        )
    ]
    return "\n".join(error.message for result in results for error in result.errors or ())


def test_dagster_takes_the_values(tmp_path: Path) -> None:
    assert errors(cluster.values(), tmp_path) == ""


@pytest.mark.parametrize(
    "path",
    [
        "concurrency",
        "concurrency/runs",
        "concurrency/pools",
        "dagsterDaemon/runMonitoring",
        "dagsterDaemon/runRetries",
        "runLauncher/config/k8sRunLauncher",
        "runLauncher/config/k8sRunLauncher/runK8sConfig",
        "computeLogManager/config/s3ComputeLogManager",
        "additionalInstanceConfig",
        "additionalInstanceConfig/event_log_storage/config/postgres_db",
    ],
)
def test_a_value_that_dagster_does_not_know_is_found(path: str, tmp_path: Path) -> None:
    given = part = copy.deepcopy(cluster.values())
    for key in path.split("/"):
        part = part[key]
    part["noSuchValue"] = 4
    assert re.search("no_?such_?value", errors(given, tmp_path), re.IGNORECASE)


def test_no_other_value_is_misspelt() -> None:
    """Those that the chart itself reads; the names are in its sources, which no package registry has."""
    given = cluster.values()
    assert given.keys() == {
        *("global", "generatePostgresqlPasswordSecret", "postgresql", "additionalInstanceConfig"),
        *("dagster-user-deployments", "runLauncher", "computeLogManager", "concurrency", "telemetry"),
        *("dagsterDaemon", "dagsterWebserver"),
    }
    of_pods = {"image", "envConfigMaps", "envSecrets", "resources", "podSecurityContext", "securityContext"}
    services = cluster.services()
    assert services["dagsterWebserver"].keys() - of_pods == {"service", "readinessProbe"}
    assert services["dagsterDaemon"].keys() - of_pods == {"runMonitoring", "runRetries"}
    own = {"name", "dagsterApiGrpcArgs", "port", "includeConfigInLaunchedRuns"}
    assert services["location"].keys() - of_pods == own
    assert given["postgresql"].keys() == {
        *("enabled", "postgresqlHost", "postgresqlUsername", "postgresqlDatabase", "postgresqlScheme"),
        "service",
    }
    assert given["global"].keys() == {"dagsterHome", "postgresqlSecretName"}


def test_limits_retries_logs_and_storages_are_those_of_the_postgres_profile() -> None:
    ours = yaml.safe_load(cluster.dagster_yaml(cluster.values()))
    profile = yaml.safe_load(DAGSTER_YAML.read_text())
    for part in ("concurrency", "run_retries", "compute_logs", "telemetry", "nux"):
        assert ours[part] == profile[part], part
    assert ours["run_monitoring"].items() >= profile["run_monitoring"].items()
    for part in ("run_storage", "schedule_storage", "event_log_storage"):
        assert [ours[part][key] for key in ("module", "class")] == [
            profile[part][key] for key in ("module", "class")
        ]
        assert ours[part]["config"]["postgres_db"].keys() == profile[part]["config"]["postgres_db"].keys()
    assert ours.keys() - profile.keys() == {"run_launcher"}


def test_of_two_event_logs_in_one_file_dagster_takes_the_last(tmp_path: Path) -> None:
    """The chart has named the stock one before, and takes no other name."""
    given = cluster.values()
    text = cluster.dagster_yaml(given)
    assert text.count("event_log_storage:") == 2
    assert instance_of(given, tmp_path).event_storage_data.class_name == "BatchedPostgresEventLogStorage"
    storages = yaml.safe_load(text)
    assert storages["event_log_storage"]["config"] == storages["run_storage"]["config"], "one database"
    del given["additionalInstanceConfig"]["event_log_storage"]
    assert instance_of(given, tmp_path).event_storage_data.class_name == "PostgresEventLogStorage"


def test_the_job_of_a_run_is_valid_and_has_what_a_run_needs(tmp_path: Path) -> None:
    found = job(tmp_path)
    cluster.validate(found)
    pod = found["spec"]["template"]["spec"]
    run = cluster.container(pod)
    assert run["image"] == cluster.image(cluster.services()["location"])
    assert pod["terminationGracePeriodSeconds"] == 120
    names = [next(iter(each.values()))["name"] for each in run["envFrom"]]
    assert names == ["mm-assets-settings", "mm-assets-store", "mm-assets-ray"], "the last one wins"
    assert run["envFrom"][-1]["configMapRef"]["optional"] is True
    variables = {each["name"]: each for each in run["env"]}
    assert variables["DAGSTER_PG_PASSWORD"]["valueFrom"]["secretKeyRef"] == {
        "name": "mm-assets-postgres",
        "key": "postgresql-password",
    }
    token = variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": "mm-assets-ray", "key": "auth_token", "optional": True}
    workers = cluster.of_kind(cluster.SETTINGS, "ConfigMap")["data"]["MM_WORKERS"]
    assert run["resources"]["requests"]["cpu"] == workers
    (location,) = cluster.values()["dagster-user-deployments"]["deployments"]
    assert location["includeConfigInLaunchedRuns"] == {"enabled": False}, "else its resources come first"


def test_pods_are_valid_and_no_root() -> None:
    pods = {name: cluster.pod_of_service(given)["spec"] for name, given in cluster.services().items()}
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE.read_text(), re.MULTILINE)
    for name, spec in {**pods, **cluster.ray_pods()}.items():
        cluster.validate(cluster.pod(spec))
        assert spec["securityContext"]["runAsUser"] == int(user), name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert cluster.container(spec)["securityContext"]["allowPrivilegeEscalation"] is False, name
    unknown = copy.deepcopy(pods["dagsterDaemon"])
    cluster.container(unknown)["resource"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="'resource' was unexpected"):
        cluster.validate(cluster.pod(unknown))


def test_ports_of_the_services() -> None:
    web = cluster.values()["dagsterWebserver"]
    assert web["service"]["port"] == web["readinessProbe"]["httpGet"]["port"] > 1024
    (location,) = cluster.values()["dagster-user-deployments"]["deployments"]
    assert location["dagsterApiGrpcArgs"] == ["-m", "mm_assets.definitions"] and location["port"] > 1024
    assert f"port-forward service/dagster-dagster-webserver 3000:{web['service']['port']}" in (
        cluster.README.read_text()
    )


def test_one_image_which_has_ray_the_run_launcher_and_s3() -> None:
    images = {cluster.container(spec)["image"] for spec in cluster.ray_pods().values()}
    images |= {cluster.image(given) for given in cluster.services().values()}
    assert len(images) == 1
    assert f"docker build -f deploy/postgres/Dockerfile -t {images.pop()} ." in cluster.README.read_text()
    assert cluster.values()["global"]["dagsterHome"] == "/opt/dagster"
    assert "install -d -o dagster -g dagster /opt/dagster" in DOCKERFILE.read_text()
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "postgres/build.in" in line]
    extras = set(re.findall(r"--extra (\w+)", line))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"ray", "s3", "k8s", "postgres"} <= extras <= set(project["optional-dependencies"])
    assert all(cluster.locked(package) for package in ("ray", "s3fs", "dagster-k8s", "dagster-postgres"))


def test_versions_are_those_of_the_image() -> None:
    readme = cluster.README.read_text()
    assert f"dagster/dagster --version {cluster.locked('dagster')} -f values.yaml" in readme
    assert f"version {cluster.locked('dagster')}." in cluster.VALUES.read_text()
    assert cluster.of_kind(cluster.RAY, "RayCluster")["spec"]["rayVersion"] == cluster.locked("ray")


def test_settings_are_known_and_all_that_is_asked_for_is_given() -> None:
    settings = cluster.of_kind(cluster.SETTINGS, "ConfigMap")["data"]
    assert all(isinstance(value, str) for value in settings.values())
    local = Settings.load(settings)
    assert (local.engine, local.workers) == ("local", 4)
    assert local.raw_shards.startswith("s3://") and local.storage.startswith("s3://")
    on_ray = Settings.load({**settings, **cluster.of_kind(cluster.RAY, "ConfigMap")["data"]})
    assert (on_ray.engine, on_ray.workers) == ("ray", 0)
    instance = yaml.safe_load(cluster.dagster_yaml(cluster.values()))
    asked = set(re.findall(r"'env': '(\w+)'", str(instance)))
    assert asked == {"DAGSTER_PG_PASSWORD", "DAGSTER_LOGS_BUCKET"}
    assert "DAGSTER_LOGS_BUCKET" in settings and "DAGSTER_LOGS_BUCKET" in variables_of(DAGSTER_YAML)


def test_what_pods_refer_to_is_made() -> None:
    """By a file, by a command of the README, or by KubeRay: its Secret is named as the cluster."""
    text = cluster.README.read_text()
    made = {
        ("configMapRef", cluster.of_kind(path, "ConfigMap")["metadata"]["name"])
        for path in (cluster.SETTINGS, cluster.RAY)
    }
    made |= {("secretRef", name) for name in re.findall(r"create secret generic (\S+)", text)}
    asked = {
        (kind, reference["name"])
        for spec in [
            *(cluster.pod_of_service(given)["spec"] for given in cluster.services().values()),
            *cluster.ray_pods().values(),
            {"containers": [cluster.launcher()["run_k8s_config"]["container_config"]]},
        ]
        for each in cluster.container(spec).get("envFrom", [])
        for kind, reference in each.items()
    }
    asked |= {("secretRef", cluster.values()["global"]["postgresqlSecretName"])}
    assert asked == made
    for name in re.findall(r"(?:-f|apply -f|delete -f) (\w+\.yaml)", text):
        assert (cluster.FOLDER / name).is_file(), name


def test_no_secret_is_in_the_files() -> None:
    for path in (cluster.VALUES, cluster.SETTINGS, cluster.RAY):
        assert not re.search(
            r"(?i)^\s*[\w-]*(password|secret_access_key|token): *[^{\s]", path.read_text(), re.M
        )
        assert "Secret" not in {each.get("kind") for each in yaml.safe_load_all(path.read_text())}

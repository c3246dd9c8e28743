"""The files of `deploy/kubernetes/`, and what Dagster makes of them without a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import dagster as dg
import kubernetes
import kubernetes_validate
import yaml
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.launcher import LaunchRunContext
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster_k8s import K8sRunLauncher

from mm_assets_tests.deploy.recipe import LOCK, ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VALUES, SETTINGS, RAY, README = (
    FOLDER / name for name in ("values.yaml", "settings.yaml", "raycluster.yaml", "README.md")
)
KUBERNETES = "1.37"  # its schemas are in kubernetes-validate

_STORAGES = {
    "run_storage": ("dagster_postgres.run_storage", "PostgresRunStorage"),
    "schedule_storage": ("dagster_postgres.schedule_storage", "PostgresScheduleStorage"),
    "event_log_storage": ("dagster_postgres.event_log", "PostgresEventLogStorage"),
}


def values() -> Any:
    return yaml.safe_load(VALUES.read_text())


def of_kind(path: Path, kind: str) -> Any:
    """The one document of a kind in a file."""
    (found,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == kind]
    return found


def validate(document: dict[str, Any]) -> None:
    """Raise an error for what is no valid object of Kubernetes; unknown fields are none."""
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def pod_of_service(given: dict[str, Any]) -> dict[str, Any]:
    """The pod of a service of the chart, with what the values say of it."""
    return pod(
        {
            "securityContext": given["podSecurityContext"],
            "containers": [
                {
                    "name": "service",
                    "image": image(given),
                    "imagePullPolicy": given["image"]["pullPolicy"],
                    "resources": given["resources"],
                    "securityContext": given["securityContext"],
                    "envFrom": [
                        *({"configMapRef": each} for each in given["envConfigMaps"]),
                        *({"secretRef": each} for each in given["envSecrets"]),
                    ],
                }
            ],
        }
    )


def image(given: dict[str, Any]) -> str:
    return f"{given['image']['repository']}:{given['image']['tag']}"


def dagster_yaml(given: dict[str, Any]) -> str:
    """What the chart makes of values: each key in the words of Dagster, the additional part at the end.

    A key that the chart does not know has a name that Dagster does not know.
    """
    database = given["postgresql"]
    postgres = {
        "hostname": database["postgresqlHost"],
        "username": database["postgresqlUsername"],
        "password": {"env": "DAGSTER_PG_PASSWORD"},
        "db_name": database["postgresqlDatabase"],
        "port": database["service"]["port"],
        "scheme": database["postgresqlScheme"],
    }
    logs = given["computeLogManager"]
    daemon, concurrency = given["dagsterDaemon"], dict(given["concurrency"])
    assert concurrency.pop("enabled")
    instance = {
        **{
            key: {"module": module, "class": name, "config": {"postgres_db": postgres}}
            for key, (module, name) in _STORAGES.items()
        },
        "run_launcher": {
            "module": "dagster_k8s",
            "class": given["runLauncher"]["type"],
            "config": _launcher(given),
        },
        "compute_logs": {
            "module": "dagster_aws.s3.compute_log_manager",
            "class": logs["type"],
            "config": _snake(logs["config"]["s3ComputeLogManager"]),
        },
        "concurrency": _snake(concurrency),
        "run_monitoring": _snake(daemon["runMonitoring"]),
        "run_retries": _snake(daemon["runRetries"]),
        "telemetry": given["telemetry"],
    }
    return yaml.safe_dump(instance) + yaml.safe_dump(given["additionalInstanceConfig"])


def launched_job(config: dict[str, Any], container_image: str, folder: Path) -> Any:
    """The Job that Dagster's run launcher asks the cluster for."""
    batch_api = Mock()
    with (
        patch("dagster_k8s.launcher.load_kubernetes_config"),
        dg.instance_for_test(temp_dir=str(folder)) as instance,
    ):
        launcher = K8sRunLauncher.from_config_value(None, {**config, "k8s_client_batch_api": batch_api})
        launcher.register_instance(instance)
        location = RepositoryPythonOrigin(
            executable_path="python",
            code_pointer=ModuleCodePointer("mm_assets.definitions", "defs"),
            container_image=container_image,
        )
        run = dg.DagsterRun("all_assets", "1" * 36, job_code_origin=JobPythonOrigin("all_assets", location))
        instance.add_run(run)
        launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    job = batch_api.create_namespaced_job.call_args.kwargs["body"]
    return kubernetes.client.ApiClient().sanitize_for_serialization(job)


def services() -> dict[str, dict[str, Any]]:
    given = values()
    (location,) = given["dagster-user-deployments"]["deployments"]
    return {"location": location, **{name: given[name] for name in ("dagsterWebserver", "dagsterDaemon")}}


def launcher() -> dict[str, Any]:
    return yaml.safe_load(dagster_yaml(values()))["run_launcher"]["config"]


def ray_pods() -> dict[str, dict[str, Any]]:
    """The pod specifications of the Ray cluster."""
    spec = of_kind(RAY, "RayCluster")["spec"]
    groups = {"head": spec["headGroupSpec"], **{each["groupName"]: each for each in spec["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return found


def locked(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert found is not None, f"{package} is not in the image"
    return found[1]


def _launcher(given: dict[str, Any]) -> dict[str, Any]:
    own = dict(given["runLauncher"]["config"]["k8sRunLauncher"])
    names = {key: [each["name"] for each in own.pop(key)] for key in ("envConfigMaps", "envSecrets")}
    raw = {key: own.pop(key) for key in ("resources", "securityContext")}
    pods = {_snake_word(key): value for key, value in own.pop("runK8sConfig").items()}
    return {
        **_snake({**own, **names}),
        **{_snake_word(key): value for key, value in raw.items()},
        "run_k8s_config": pods,
        "dagster_home": given["global"]["dagsterHome"],
        "postgres_password_secret": given["global"]["postgresqlSecretName"],
        # What the chart fills in by itself, for a release named `dagster`.
        "service_account_name": "dagster",
        "instance_config_map": "dagster-instance",
        "job_namespace": "mm-assets",
    }


def _snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {_snake_word(key): _snake(inner) for key, inner in value.items()}
    return [_snake(inner) for inner in value] if isinstance(value, list) else value


def _snake_word(word: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", word).lower()

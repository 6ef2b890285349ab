"""The compose file: valid, complete, safe by default, and in agreement with the settings of the service."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.deploy.repository import DASHBOARD, DEPLOY, ROOT, load_yaml

from loopwarden_streams.settings import Settings

COMPOSE: dict[str, Any] = load_yaml(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LONG_RUNNING = ("kafka", "worker", "prometheus", "grafana")
_VARIABLE = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")


def environment(service: str, **shell: str) -> dict[str, str]:
    """Return a service's environment with `${NAME:-default}` resolved from `shell`."""
    found: dict[str, str] = SERVICES[service]["environment"]
    return {
        name: _VARIABLE.sub(lambda match: shell.get(match["name"], match["default"]), text)
        for name, text in found.items()
    }


def mounts(service: str) -> dict[str, str]:
    """Return source by target."""
    parts = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    return {part[1]: part[0] for part in parts}


def test_it_is_valid_by_the_compose_specification() -> None:
    """The published schema, from a package that ships it. Without the package the structural tests must do."""
    # Its file is read, not its code: importing it needs a newer click than Faust allows.
    try:
        shipped = metadata.files("check-jsonschema") or []
    except metadata.PackageNotFoundError:
        pytest.skip("the package that ships the schema is not there: pip install check-jsonschema")
    path = next(file for file in shipped if file.name == "compose-spec.json").locate()
    validator = jsonschema.Draft7Validator(json.loads(Path(str(path)).read_text(encoding="utf-8")))

    assert [error.message for error in validator.iter_errors(COMPOSE)] == []


def test_versions_are_pinned() -> None:
    """`latest` is another program every day. What we build ourselves is not pulled."""
    for name, service in SERVICES.items():
        if "build" in service:
            assert service["image"] == "loopwarden:local"
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name


def test_every_file_and_volume_that_it_names_exists() -> None:
    """A bind mount of a file that is missing becomes an empty folder, without a word."""
    for name, service in SERVICES.items():
        for source in mounts(name).values():
            if source.startswith("."):
                assert (ROOT / source).is_dir(), source
            else:
                assert source in COMPOSE["volumes"], source
        if "build" in service:
            assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    used = {source for name in SERVICES for source in mounts(name).values()}
    assert set(COMPOSE["volumes"]) <= used


def test_nothing_is_open_to_the_network() -> None:
    """None of the services asks for a password."""
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_everything_that_runs_is_watched_bounded_and_comes_back() -> None:
    """A health check, a limit of memory and a restart for each long-running service."""
    for name in LONG_RUNNING:
        service = SERVICES[name]
        assert {"test", "interval", "timeout", "start_period", "retries"} <= service["healthcheck"].keys(), name
        assert service["restart"] == "unless-stopped", name
        assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys(), name
    assert set(SERVICES) == {*LONG_RUNNING, "topics"}
    assert SERVICES["topics"]["restart"] == "no"


def test_a_worker_starts_when_the_topics_are_there() -> None:
    """Without them it would create nothing and read nothing."""
    assert SERVICES["topics"]["command"] == ["topics"]
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["command"] == ["worker"]
    assert SERVICES["worker"]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("service", ["topics", "worker"])
def test_every_variable_is_a_setting(service: str) -> None:
    """An unknown one ends the worker, so a slip here would be an endless restart."""
    settings = Settings.from_env(environment(service))

    assert all(name.startswith("LOOPWARDEN_") for name in SERVICES[service]["environment"])
    assert settings.brokers == "kafka:29092"
    assert settings.replication == 1


def test_both_services_agree_on_what_cannot_be_changed_later() -> None:
    """Topics that were created with other counts or names than the worker reads."""
    topics, worker = (Settings.from_env(environment(service)) for service in ("topics", "worker"))

    for name in ("app_id", "topic_prefix", "partitions", "control_partitions"):
        assert getattr(topics, name) == getattr(worker, name)


def test_nobody_is_ended_before_an_operator_says_so() -> None:
    """The mode is `warn` unless the shell says otherwise, and the shell's word arrives."""
    assert Settings.from_env(environment("worker")).mode == "warn"
    assert Settings.from_env(environment("worker", LOOPWARDEN_MODE="enforce")).mode == "enforce"


def test_the_health_port_is_one_number_everywhere() -> None:
    """Setting, published port, health check, scrape configuration."""
    settings = Settings.from_env(environment("worker"))
    port = settings.port
    assert port == Settings().port
    assert settings.host == "0.0.0.0"  # noqa: S104 - inside the container; published on the loopback address alone
    assert SERVICES["worker"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/livez" in SERVICES["worker"]["healthcheck"]["test"][-1]

    scrape = load_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    workers = next(job for job in scrape if job["job_name"] == "loopwarden")
    assert workers["dns_sd_configs"][0]["names"] == ["worker"]
    assert workers["dns_sd_configs"][0]["port"] == port


def test_the_endpoints_are_those_that_the_service_has() -> None:
    """Health checks of a path that is not served would restart a healthy worker for ever."""
    source = (ROOT / "streams" / "loopwarden_streams" / "health.py").read_text(encoding="utf-8")
    for path in ("/livez", "/readyz", "/metrics"):
        assert f'"{path}"' in source


def test_kafka_tells_each_client_an_address_that_it_can_reach() -> None:
    """A client goes on with the advertised address: by name from containers, by the published port from the host."""
    kafka = environment("kafka")
    listeners = dict(part.split("://") for part in kafka["KAFKA_LISTENERS"].split(","))
    advertised = dict(part.split("://") for part in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(part.split(":") for part in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))

    assert advertised["INSIDE"] == Settings.from_env(environment("worker")).brokers
    assert SERVICES["kafka"]["ports"] == [f"{advertised['OUTSIDE']}:{listeners['OUTSIDE'].lstrip(':')}"]
    assert set(listeners) == set(protocols)
    assert set(advertised) == set(listeners) - {kafka["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert kafka["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    voter = kafka["KAFKA_NODE_ID"] + "@kafka" + listeners[kafka["KAFKA_CONTROLLER_LISTENER_NAMES"]]
    assert kafka["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voter
    assert kafka["KAFKA_LOG_DIRS"] in mounts("kafka")
    assert kafka["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_prometheus_finds_its_configuration_and_its_rules() -> None:
    """Paths inside the container, against what is mounted."""
    target, source = next((t, s) for t, s in mounts("prometheus").items() if s.startswith("."))
    arguments = dict(argument.split("=", 1) for argument in SERVICES["prometheus"]["command"])
    config = ROOT / source / arguments["--config.file"].removeprefix(target + "/")

    assert config.is_file()
    for name in load_yaml(config)["rule_files"]:
        assert (config.parent / name).is_file()
    assert arguments["--storage.tsdb.path"] in mounts("prometheus")


def test_grafana_finds_its_data_source_and_its_dashboards() -> None:
    """Provisioning paths, the address of Prometheus, the home dashboard; and nobody can log in or change anything."""
    grafana = environment("grafana")
    folders = {target: ROOT / source for target, source in mounts("grafana").items() if source.startswith(".")}
    provisioning = folders["/etc/grafana/provisioning"]
    (source,) = load_yaml(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    (provider,) = load_yaml(provisioning / "dashboards" / "loopwarden.yaml")["providers"]

    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    home, name = grafana["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].rsplit("/", 1)
    assert provider["options"]["path"] == home
    assert folders[home] / name == DASHBOARD
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"


def test_our_containers_have_no_more_rights_than_they_need() -> None:
    """No capabilities, nothing writable but a temporary directory."""
    for name in ("topics", "worker"):
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - the container's own
        assert "no-new-privileges:true" in service["security_opt"]

"""The parts of a release that `make dist` makes (`scripts/dist.py`) agree with each other and with Warren."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from warren import __version__
from warren.mgmt_plugin.follower_api import HEALTH as OF_FOLLOWERS
from warren.mgmt_plugin.plugin import all_routes
from warren.mgmt_plugin.routes import Access
from warren.server.application import STOP_DEADLINE_S
from warren.server.cli import maybe_serve_options
from warren.server.message_store import EXIT_CODE
from warren.server.process import STOP_GRACE_S
from warren.server.settings import KEYS, Settings
from warren.server.settings_reader import load_settings
from warren.server.start_errors import SettingsError

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- what is new

## [2.0.0] - {date}

- what was new

## [1.0.0] - 2026-01-01

- what is old
"""


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("dist", monkeypatch)


# --- the pieces of the script -----------------------------------------------------------------------------------------


def test_the_notes_of_a_release_are_its_section_of_the_changelog(dist: Any) -> None:
    notes = dist.release_notes(CHANGELOG.format(date="2026-11-23"), "2.0.0")
    assert notes == "# Warren 2.0.0, 2026-11-23\n\n- what was new\n"


def test_before_a_release_its_notes_have_what_is_not_released_yet(dist: Any) -> None:
    notes = dist.release_notes(CHANGELOG.format(date="unreleased"), "2.0.0")
    assert notes == "# Warren 2.0.0\n\n### Added\n\n- what is new\n\n- what was new\n"


def test_a_version_without_a_section_has_no_notes(dist: Any) -> None:
    with pytest.raises(dist.DistError, match="no section"):
        dist.release_notes(CHANGELOG, "3.0.0")


def test_this_version_has_a_section(dist: Any) -> None:
    assert dist.version() == __version__
    assert dist.release_notes((ROOT / "CHANGELOG.md").read_text(), __version__)


def command(path: Path, prints: str, exit_code: int = 0) -> str:
    """Write what stands for an interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {exit_code}\n")
    path.chmod(0o755)
    return str(path)


def test_of_each_series_the_newest_interpreter_is_taken(dist: Any, tmp_path: Path) -> None:
    commands = [
        command(tmp_path / "a", "3.12.9 /first"),
        command(tmp_path / "b", "3.12.10 /second"),
        command(tmp_path / "c", "3.12.1 /third"),
        command(tmp_path / "d", "3.13.0 /fourth"),
        command(tmp_path / "old", "3.9.1 /old"),
        command(tmp_path / "candidate", "3.14.0rc1 /candidate"),
        command(tmp_path / "pypy", ""),
        command(tmp_path / "broken", "3.11.1 /broken", 1),
        str(tmp_path / "missing"),
    ]
    found = dist.installed_series(commands)
    assert found == {"3.12": ((3, 12, 10), "/second"), "3.13": ((3, 13, 0), "/fourth")}


def test_this_interpreter_is_found(dist: Any) -> None:
    series = f"{sys.version_info[0]}.{sys.version_info[1]}"
    release, path = dist.installed_series([sys.executable])[series]
    assert release == sys.version_info[:3]
    assert Path(path).samefile(sys.executable)


def test_interpreters_are_looked_for_on_the_path_and_with_pyenv(dist: Any, tmp_path: Path) -> None:
    command(tmp_path / "pyenv/versions/3.13.0/bin/python3", "")
    environment = {"PATH": f"{tmp_path}/bin:{tmp_path}/pyenv/shims", "PYENV_ROOT": str(tmp_path / "pyenv")}
    found = list(dist.candidates(environment))
    assert found[0] == sys.executable
    assert f"{tmp_path}/bin/python3.12" in found
    assert found[-1] == f"{tmp_path}/pyenv/versions/3.13.0/bin/python3"
    assert not any("shims" in each for each in found)


def test_a_wheel_is_made_for_the_python_that_runs_this_unless_others_are_named(
    dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "DIST", tmp_path)
    monkeypatch.setattr(dist, "PARTS", {"wheels": lambda release: made.append(release.series)})
    for words in ([], ["--python", "3.12", "--python", "3.13"], ["--python", "all"]):
        assert dist.main(["wheels", *words]) == 0
    assert made == [[f"{sys.version_info[0]}.{sys.version_info[1]}"], ["3.12", "3.13"], None]


def test_a_python_that_is_not_installed_is_named(dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "warren_broker-1.tar.gz").touch()
    monkeypatch.setattr(dist, "DIST", tmp_path)
    monkeypatch.setattr(
        dist, "installed_series", lambda commands: {"3.11": ((3, 11, 1), "/a"), "3.13": ((3, 13, 1), "/b")}
    )
    monkeypatch.setenv("CC", "sh")
    with pytest.raises(dist.DistError, match=r"CPython 3\.12 is not installed.* there is 3\.11, 3\.13"):
        dist.make_wheels(dist.Release("1", 0, ["3.12"]))


def test_what_does_not_belong_into_a_wheel_is_found(dist: Any) -> None:
    ours = [
        "warren/",
        "warren_broker-1.0.0.dist-info/",
        "pyspark_warren.py",
        "warren/__init__.py",
        "warren/queues/queue.cpython-311-x86_64-linux-gnu.so",
        "warren/mgmt_plugin/static/js/app.js",
        "warren_engine__mypyc.cpython-311-x86_64-linux-gnu.so",
        "warren_broker-1.0.0.dist-info/licenses/LICENSE",
    ]
    others = [
        "tests/unit/test_queue.py",
        "setup.py",
        "engine_build.py",
        "build/__native_warren_engine.c",
        "warren/queues/queue.c",
        "warren/__pycache__/names.cpython-311.pyc",
        "warren/.mypy_cache/x.json",
        "warren_broker.egg-info/PKG-INFO",
    ]
    assert dist.strangers(ours + others) == others


def wheel_of(path: Path, metadata: str, *names: str) -> Path:
    """Write a wheel of empty files."""
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("warren_broker-1.0.0.dist-info/METADATA", metadata)
        for name in names:
            opened.writestr(name, "")
    return path


def test_a_wheel_with_a_stranger_or_with_bad_metadata_ends_the_release(
    dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "tools", lambda: Path(sys.prefix))
    good = "Metadata-Version: 2.4\nName: warren-broker\nVersion: 1.0.0\n"
    dist.check_wheel(wheel_of(tmp_path / "good.whl", good, "warren/names.py"))
    with pytest.raises(dist.DistError, match=r"not of the package: setup\.py"):
        dist.check_wheel(wheel_of(tmp_path / "stranger.whl", good, "setup.py"))
    with pytest.raises(dist.DistError, match=r"(?s)no index takes.*version"):
        dist.check_wheel(wheel_of(tmp_path / "bad.whl", good.replace("1.0.0", "one")))


def test_the_image_takes_a_wheel_for_its_c_library_and_compiles_nothing(
    dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "DIST", tmp_path)
    wheel = tmp_path / "warren_broker-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    wheel.write_bytes(b"wheel")
    (tmp_path / "warren_broker-1-cp313-cp313-manylinux_2_39_x86_64.whl").touch()
    (tmp_path / "warren_broker-1-cp311-cp311-linux_x86_64.whl").touch()
    release = dist.Release("1", 0)
    dist.make_image(release)
    assert release.left_out == []
    with tarfile.open(tmp_path / "warren-1-image.tar.gz") as tar:
        wanted = {"Dockerfile", wheel.name, "requirements/run.txt", "requirements/postgresql.txt"}
        assert set(tar.getnames()) == wanted
        text = (tar.extractfile("Dockerfile") or io.BytesIO()).read().decode()
    assert "\nARG PYTHON=3.12\n" in f"\n{text}" and "\nARG WHEEL=released\n" in text


def test_the_image_has_the_sources_where_there_is_no_wheel_for_it(
    dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "DIST", tmp_path)
    release = dist.Release("1", 0)
    dist.make_image(release)
    assert ["wheel of the image" in each for each in release.left_out] == [True]
    with tarfile.open(tmp_path / "warren-1-image.tar.gz") as tar:
        assert {"Dockerfile", "setup.py", "warren/__init__.py"} < set(tar.getnames())
        assert (tar.extractfile("Dockerfile") or io.BytesIO()).read().decode() == dockerfile()


def test_the_metadata_name_the_supported_pythons_and_invent_no_address(dist: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"] and project["classifiers"] == sorted(project["classifiers"], key=str.lower)
    assert "urls" not in project
    pythons = {each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each}
    assert pythons == set(dist.SERIES)


def test_the_same_files_make_the_same_archive(dist: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("text")
    command(second, "x")
    members = {"b": first, "a/c": second}
    dist.write_tar(tmp_path / "one.tar.gz", members, 1_700_000_000)
    first.touch()
    dist.write_tar(tmp_path / "two.tar.gz", dict(reversed(members.items())), 1_700_000_000)
    one, two = ((tmp_path / f"{name}.tar.gz").read_bytes() for name in ("one", "two"))
    # gzip's header has the name of the file.
    assert one.replace(b"one.tar", b"two.tar") == two
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        assert [(member.name, member.mode) for member in tar] == [("a/c", 0o755), ("b", 0o644)]


def test_the_sums_are_those_of_the_files(dist: Any, tmp_path: Path) -> None:
    for name in ("a.whl", "b.deb"):
        (tmp_path / name).write_text(name)
    dist.write_sums(tmp_path)
    dist.write_sums(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=True).stdout == b"a.whl: OK\nb.deb: OK\n"
    (tmp_path / "a.whl").write_text("other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_the_list_of_components_says_what_they_are_of(dist: Any) -> None:
    components = [{"bom-ref": "b"}, {"bom-ref": "a"}]
    document = {"metadata": {"component": {"bom-ref": "root", "name": "warren-broker"}}, "components": components}
    document["dependencies"] = [{"ref": "a"}, {"ref": "b"}, {"ref": "root"}]
    made = dist.completed_sbom(document, "1.2.3")
    root = {"bom-ref": "root", "name": "warren-broker", "version": "1.2.3", "purl": "pkg:pypi/warren-broker@1.2.3"}
    assert made["metadata"]["component"] == root
    assert made["dependencies"] == [{"ref": "root", "dependsOn": ["a", "b"]}, {"ref": "a"}, {"ref": "b"}]
    assert made["components"] == components


def test_a_part_that_does_not_exist_is_named(dist: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert dist.main(["whels"]) == 2
    assert "no such part: whels" in capsys.readouterr().err


def test_everything_that_is_installed_has_the_locked_hashes() -> None:
    """But what was just made."""
    installing = {
        ROOT / "scripts/dist.py": r'pip\(\w+, "install".*',
        PACKAGING / "debian/build": r"(?m)^ *install_exactly .*",
        PACKAGING / "container/Dockerfile": r"pip (?:--python \S+ )?install [^&\n]*",
    }
    for file, pattern in installing.items():
        calls = re.findall(pattern, file.read_text().replace("\\\n", ""))
        ours = [call for call in calls if re.search(r", wheel\)|\$wheel|\.whl", call)]
        assert len(calls) > len(ours) == 1, file.name
        assert [call for call in calls if call not in ours and "--require-hashes" not in call] == []
        assert not re.search(r"(?<!no-)deps", " ".join(calls))


# --- what the parts say ----------------------------------------------------------------------------------------------


def dockerfile() -> str:
    return (PACKAGING / "container/Dockerfile").read_text()


def dockerfile_environment() -> dict[str, str]:
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", dockerfile(), re.MULTILINE)
    assert block is not None
    return dict(word.split("=", 1) for word in block[1].replace("\\\n", " ").split())


def manifests(file: str) -> list[Any]:
    return list(yaml.safe_load_all((PACKAGING / "kubernetes" / file).read_text()))


def named(kind: str, name: str, file: str = "warren-cluster.yaml") -> Any:
    (found,) = (each for each in manifests(file) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def statefulset() -> Any:
    return named("StatefulSet", "warren", "warren.yaml")


def compose() -> Any:
    return yaml.safe_load((PACKAGING / "container/compose.yaml").read_text())


def settings_of(environment: dict[str, str], tmp_path: Path) -> Settings:
    """Return the settings that a broker with these variables has; the image's are there, too."""
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    given = {name: str(password) if name.endswith("_FILE") else value for name, value in environment.items()}
    return load_settings({}, dockerfile_environment() | given)


def test_the_version_is_the_same_everywhere(dist: Any) -> None:
    """What `make manifests` writes is written already."""
    for name, places in dist.PLACES.items():
        text = (ROOT / name).read_text()
        assert dist.with_version(text, places, __version__) == text, f"{name}: run make manifests"
    chart = yaml.safe_load((PACKAGING / "helm/warren/Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert compose()["services"]["warren"]["image"] == f"warren:{__version__}"
    (container,) = statefulset()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"warren:{__version__}"


def test_a_release_candidate_has_a_version_of_each_kind(dist: Any) -> None:
    def of(name: str, version: str) -> str:
        return str(dist.with_version((ROOT / name).read_text(), dist.PLACES[name], version))

    chart = yaml.safe_load(of("packaging/helm/warren/Chart.yaml", "1.0.0rc1"))
    assert (chart["version"], chart["appVersion"]) == ("1.0.0-rc1", "1.0.0rc1")
    assert "/warren_1.0.0~rc1_amd64.deb" in of("packaging/cloud-init/three-machines.yaml", "1.0.0rc1")
    assert "image: warren:1.0.0rc1\n" in of("packaging/container/compose.yaml", "1.0.0rc1")
    assert "dist/warren-1.0.0rc1-image.tar.gz" in of("docs/releases.md", "1.0.0rc1")
    for name, places in dist.PLACES.items():
        candidate = of(name, "1.0.0rc1")
        assert dist.with_version(candidate, places, __version__) == (ROOT / name).read_text()
    with pytest.raises(dist.DistError, match="nothing like"):
        dist.with_version("", dist.PLACES["docs/comparison.md"], "1.0.0")


def test_the_image_is_built_of_files_that_are_there_and_let_through(dist: Any) -> None:
    members = dist.context_members(dockerfile())
    assert [name for name in members if not (ROOT / name).exists()] == []
    kept = re.findall(r"(?m)^!(.+)$", (ROOT / ".dockerignore").read_text())
    assert set(kept) == {name.partition("/")[0] for name in members}
    # The parts of the project that setuptools reads.
    project = (ROOT / "pyproject.toml").read_text()
    named = {
        *re.findall(r'(?m)^readme = "(.+)"$', project),
        "pyproject.toml",
        "setup.py",
        "scripts/engine_build.py",
        "pyspark_warren.py",
        "warren",
    }
    assert named <= set(members)


def test_the_image_listens_where_it_says(tmp_path: Path) -> None:
    settings = settings_of({}, tmp_path)
    ports = [
        place.port for place in (settings.endpoint("amqp"), settings.http, settings.prometheus) if place is not None
    ]
    assert f"EXPOSE {' '.join(map(str, ports))}\n" in dockerfile()
    assert f"127.0.0.1:{settings.http.port if settings.http else 0}/health" in dockerfile()
    (volume,) = re.findall(r"(?m)^VOLUME (.+)$", dockerfile())
    # The root of a volume may be somebody else's, and then cannot be made private.
    assert settings.data_dir.parent == Path(volume)


def test_the_healthcheck_and_the_command_need_no_shell() -> None:
    for instruction in ("CMD", "ENTRYPOINT"):
        for words in re.findall(rf"(?m)^\s*{instruction} (.+)$", dockerfile()):
            assert all(isinstance(word, str) for word in json.loads(words))


def test_compose_gives_the_broker_what_it_writes_to_and_settings_that_exist(tmp_path: Path) -> None:
    service = compose()["services"]["warren"]
    assert settings_of(service["environment"], tmp_path).default_pass == "hunter2"
    assert service["read_only"] is True
    assert [place.partition(":")[2] for place in service["volumes"]] == re.findall(r"(?m)^VOLUME (.+)$", dockerfile())
    inside = {int(port.rpartition(":")[2]) for port in service["ports"]}
    assert inside == {int(port) for line in re.findall(r"(?m)^EXPOSE (.+)$", dockerfile()) for port in line.split()}


def test_kubernetes_runs_one_broker_as_the_user_of_the_image_with_settings_that_exist(tmp_path: Path) -> None:
    spec = statefulset()["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}\n" in dockerfile()
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    settings = settings_of({each["name"]: each["value"] for each in container["env"]}, tmp_path)
    assert (settings.default_user, settings.default_pass) == ("admin", "hunter2")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == str(settings.data_dir.parent)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        name: place.port
        for name, place in (
            ("amqp", settings.endpoint("amqp")),
            ("http", settings.http),
            ("prometheus", settings.prometheus),
        )
        if place is not None
    }


def test_a_cluster_on_kubernetes_is_pods_of_settings_that_exist_and_addresses_of_services(tmp_path: Path) -> None:
    spec = named("StatefulSet", "warren")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pod = f"warren-{spec['replicas'] - 1}"

    def expanded(text: str, name: str) -> str:
        return text.replace("$(POD_NAME)", name).replace("$(POD_NAMESPACE)", "shop")

    given = {each["name"]: expanded(each["value"], pod) for each in container["env"] if "value" in each}
    settings = settings_of(given, tmp_path)
    assert settings.cluster_name == "shop-warren"
    assert (settings.node_name, settings.cluster_first_node) == (f"rabbit@{pod}", "rabbit@warren-0")
    headless = named("Service", spec["serviceName"])["spec"]
    # Nodes that are not ready yet have to find each other, and all at once after an outage.
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert spec["podManagementPolicy"] == "Parallel"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for address, port in ((settings.cluster_advertise, "cluster"), (settings.http_advertise, "http")):
        assert str(address) == f"{pod}.{spec['serviceName']}.shop.svc:{ports[port]}"
    assert settings.cluster_listen is not None and settings.cluster_listen.port == ports["cluster"]
    etcd = named("StatefulSet", "warren-etcd")["spec"]
    (member,) = etcd["template"]["spec"]["containers"]
    listens = next(flag for flag in member["command"] if flag.startswith("--advertise-client-urls="))
    pods = [f"warren-etcd-{number}" for number in range(etcd["replicas"])]
    assert settings.etcd.split(",") == [expanded(listens.partition("=")[2], pod) for pod in pods]
    assert settings.replicas >= spec["replicas"]
    assert named("PodDisruptionBudget", "warren")["spec"]["maxUnavailable"] == 1


def test_the_probes_of_kubernetes_ask_what_leaders_and_followers_answer_without_a_login() -> None:
    public = {route.template for route in all_routes() if route.access is Access.PUBLIC and route.method == "GET"}
    for file in ("warren.yaml", "warren-cluster.yaml"):
        (container,) = named("StatefulSet", "warren", file)["spec"]["template"]["spec"]["containers"]
        asked = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
        assert asked == {"startup": "/health/live", "readiness": "/health/ready", "liveness": "/health/live"}
        assert public.union(asked.values()) == public
        assert set(asked.values()) <= set(OF_FOLLOWERS)


def test_a_pod_has_the_time_that_a_clean_stop_takes() -> None:
    spec = named("StatefulSet", "warren")["spec"]["template"]["spec"]
    waits_s = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] >= waits_s + 2 * (STOP_DEADLINE_S + STOP_GRACE_S)


def test_every_pod_is_of_a_user_without_rights_on_a_root_that_is_read_only() -> None:
    sets = [each for file in ("warren.yaml", "warren-cluster.yaml") for each in manifests(file)]
    pods = [each["spec"]["template"]["spec"] for each in sets if each["kind"] == "StatefulSet"]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_variables_that_others_are_made_of_are_those_of_the_pod_and_come_first() -> None:
    """Kubernetes leaves a reference as it is when its variable is not there, or comes later."""
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    for name in ("warren", "warren-etcd"):
        (container,) = named("StatefulSet", name)["spec"]["template"]["spec"]["containers"]
        known: set[str] = set()
        for each in container["env"]:
            assert set(re.findall(r"\$\((\w+)\)", each.get("value", ""))) <= known, each["name"]
            if "valueFrom" in each:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": fields[each["name"]]}}
            known.add(each["name"])
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container.get("command", ())))) <= known


def test_the_schema_of_the_chart_knows_the_settings_and_no_others() -> None:
    """A secret may be in a file, too: the name of its variable ends with ``_FILE`` then."""
    settings = json.loads((PACKAGING / "helm/warren/values.schema.json").read_text())["properties"]["settings"]
    secrets = [f"{key.key}_file" for key in KEYS.values() if key.secret]
    assert settings["propertyNames"]["enum"] == sorted([*KEYS, *secrets])


def test_every_value_of_the_chart_has_a_place_in_its_schema() -> None:
    def check(values: Any, schema: Any, where: str) -> None:
        schema = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(values, dict) and "properties" in schema:
            assert set(values) <= set(schema["properties"]), where
            assert schema["additionalProperties"] is False, where
            for name, value in values.items():
                check(value, schema["properties"][name], f"{where}.{name}")

    schema = json.loads((PACKAGING / "helm/warren/values.schema.json").read_text())
    definitions = schema["definitions"]
    values = yaml.safe_load((PACKAGING / "helm/warren/values.yaml").read_text())
    check(values, schema, "values")
    assert set(schema["properties"]) - set(values) == {"global"}


@pytest.mark.parametrize("name", ["warren-overview.json", "warren-alerts.yml"])
def test_the_charts_dashboard_and_alerts_are_those_of_the_documentation(name: str) -> None:
    """Links in a checkout, which become files in a sdist."""
    assert (PACKAGING / "helm/warren/files" / name).read_bytes() == (ROOT / "docs/grafana" / name).read_bytes()


def unit(name: str) -> list[str]:
    """Return the values that systemd's unit has under a name."""
    return re.findall(rf"(?m)^{name}=(.*)$", (PACKAGING / "debian/warren.service").read_text())


def test_the_unit_starts_the_broker_as_its_command_is() -> None:
    (line,) = unit("ExecStart")
    assert maybe_serve_options(line.split()[1:]) == {"--config": "/etc/warren/warren.toml"}
    assert unit("Type") == ["notify"]


def test_the_drop_ins_for_three_machines_are_settings_that_exist_and_those_of_the_page(tmp_path: Path) -> None:
    user_data = yaml.safe_load((PACKAGING / "cloud-init/three-machines.yaml").read_text())
    written = {each["path"]: each["content"] for each in user_data["write_files"]}
    page = (ROOT / "docs/clustering.md").read_text()
    for service in ("etcd", "warren"):
        path = f"/etc/systemd/system/{service}.service.d/cluster.conf"
        assert f"cat > {path} <<'END'\n{written[path]}END\n" in page
    words = re.findall(r"(?m)^Environment=(.+)$", written[path])
    given = dict(word.split("=", 1) for line in words for word in line.split())
    for name, credential in re.findall(r"(?m)^LoadCredential=(\w+):(.+)$", written[path]):
        (tmp_path / name).write_text(written[credential])
    settings = load_settings(
        {}, {name: value.replace("%H", "one").replace("%d", str(tmp_path)) for name, value in given.items()}
    )
    assert str(settings.cluster_advertise) == "one:25672"
    assert settings.default_pass == written["/etc/warren-password.secret"].splitlines()[0]
    assert settings.cluster_secret_file is not None and len(settings.cluster_secret_file.read_bytes()) >= 16


def test_the_unit_waits_for_the_clock_to_be_set_where_something_waits_for_that() -> None:
    """As systemd.special(7) says: a unit that needs the time is ordered after the target, and does not pull it in."""
    assert "time-sync.target" in unit("After")[0].split()
    assert "time-sync.target" not in unit("Wants")[0].split()


def test_the_unit_does_not_repeat_what_fails_again() -> None:
    assert unit("RestartPreventExitStatus") == [f"{SettingsError.exit_code} {EXIT_CODE}"]


def test_the_variables_that_the_debian_package_suggests_are_settings() -> None:
    variables = re.findall(r"(?m)^#(WARREN_\w+)=", (PACKAGING / "debian/default").read_text())
    assert variables
    load_settings({}, dict.fromkeys(variables, "x"))


# --- the manual pages -------------------------------------------------------------------------------------------------


def test_every_command_and_every_setting_has_its_place_in_the_manual(monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.ctl.command_table import GROUPS
    from warren.server.settings import KEYS

    pages = script("man_pages", monkeypatch).pages()
    assert {"warren.1", "warren.toml.5"} <= set(pages)
    commands = {"serve", "config", "ctl", "store", "perf", "export", "import", "lake", "sql", "hash-password"}
    assert {name.removesuffix(".1").removeprefix("warren-") for name in pages if "-" in name} == commands
    for name in commands:
        assert f"warren\\-{name.replace('-', chr(92) + '-')}" in pages["warren.1"]
    in_ctl = set(re.findall(r"(?m)^\.SS (\w+)$", pages["warren-ctl.1"]))
    assert in_ctl == {name for group in GROUPS for name in group.names.split()}
    assert set(re.findall(r"(?m)^\.B ([\w.]+)$", pages["warren.toml.5"])) == set(KEYS)
    # The options that help shows, with what they mean.
    assert "\\-\\-data\\-dir DIR\nDirectory of all persistent data" in pages["warren-serve.1"]
    assert "\\-\\-persistent" in pages["warren-perf.1"]
    for name in commands - {"config"}:
        assert f".nf\nwarren {name.replace('-', chr(92) + '-')}" in pages[f"warren-{name}.1"]
    assert "\\-\\-to DIR" in pages["warren-export.1"]


@pytest.mark.parametrize("name", ["man_pages", "python_api"])
def test_a_script_that_writes_pages_does_not_take_an_option_for_its_place(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / f"scripts/{name}.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    helped = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert helped.stdout.startswith("usage:")
    assert not list(tmp_path.iterdir())


def test_a_line_of_a_page_is_an_instruction_only_when_it_is_meant_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = script("man_pages", monkeypatch)
    assert module._escaped(".TH a\n'quoted' back\\slash -x") == "\\&.TH a\n\\&'quoted' back\\eslash \\-x"
    known = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".br", ".nf", ".fi"}
    for text in module.pages().values():
        assert {line.split()[0] for line in text.splitlines() if line.startswith(".")} <= known
        assert not any(line.startswith("'") for line in text.splitlines())

"""Render the Helm chart, check what comes out, and write the files of packaging/kubernetes from it.

    scripts/manifests.py            write the manifests
    scripts/manifests.py --check    fail when they are not what the chart renders
    scripts/manifests.py --render   print the documents that the values in JSON on standard input make, as JSON

Checked are the chart by Helm's linter, and what it renders with each set of values of `CASES` by the schemas of the
oldest Kubernetes that the chart is for and of the newest that is known. The manifests must be the same for every
namespace, since nobody renders them for another one. Needs what requirements/dist.txt installs:
`make dist` and `make manifests` run it there.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "packaging/helm/warren"
MANIFESTS: Final = ROOT / "packaging/kubernetes"
# Of each file: its values, and what its first line calls it.
FILES: Final = {
    "warren.yaml": ("values.yaml", "One broker"),
    "warren-cluster.yaml": ("cluster-values.yaml", "Three nodes and their etcd"),
}
HEAD: Final = (
    "# {} on Kubernetes, made of the Helm chart by `make manifests`: docs/kubernetes.md says how it is used.\n"
)
OLDEST: Final = "1.25"
# Kinds of other people's, of which the schemas know nothing.
FOREIGN: Final = {"PrometheusRule", "ServiceMonitor"}
CASES: Final[dict[str, dict[str, Any]]] = {
    "nothing set": {},
    "everything on": {
        "auth": {"username": "ops", "password": "hunter2"},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": {
            "limits.connections_max": 1_000_000,
            "limits.memory_high_watermark": 0.5,
            "definitions_skip_if_unchanged": True,
            "store.vhosts": {"telemetry": "os"},
            "log_format": "json",
        },
        "tls": {"existingSecret": "tls"},
        "persistence": {"storageClass": "fast"},
        "service": {"annotations": {"a": "b"}},
        "podDisruptionBudget": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
        "dashboard": {"enabled": True},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "A", "value": "b"}],
    },
    "a volume that is there": {"persistence": {"existingClaim": "old"}},
    "no volume": {"persistence": {"enabled": False}},
    "three nodes and their etcd": {"replicas": 3, "etcd": {"install": True}, "networkPolicy": {"enabled": True}},
    "five nodes, and all that is not theirs by reference": {
        "replicas": 5,
        "auth": {"existingSecret": "password"},
        "tls": {"existingSecret": "tls"},
        "etcd": {
            "endpoints": "https://etcd1:2379,https://etcd2:2379",
            "tls": {"existingSecret": "etcd-tls", "clientCertificate": True},
            "user": "warren",
            "existingSecret": "etcd-password",
        },
        "cluster": {
            "name": "orders",
            "minInSync": 2,
            "existingSecret": "cluster",
            "tls": {"existingSecret": "cluster-tls"},
            "antiAffinity": "required",
            "topologySpread": {"whenUnsatisfiable": "DoNotSchedule"},
        },
        "podDisruptionBudget": {"maxUnavailable": "40%"},
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
    "a cluster of one node": {
        "etcd": {"endpoints": "http://etcd:2379"},
        "cluster": {"antiAffinity": "off", "preStopSeconds": 0, "topologySpread": {"enabled": False}},
        "podDisruptionBudget": {"enabled": False},
    },
}
# Values that the chart refuses, each with a piece of the reason.
REFUSED: Final[dict[str, dict[str, Any]]] = {
    "more than one node needs etcd": {"replicas": 3},
    "is more than cluster.maxNodes": {"replicas": 5, "etcd": {"install": True}, "cluster": {"maxNodes": 3}},
    "one of them is the etcd": {"etcd": {"install": True, "endpoints": "http://etcd:2379"}},
    "nodes of a cluster cannot share": {"etcd": {"install": True}, "persistence": {"existingClaim": "old"}},
    "the secret with the password of etcd.user": {"etcd": {"endpoints": "http://etcd:2379", "user": "warren"}},
    "replicas": {"replicas": 4, "etcd": {"install": True}},
    "endpoints": {"etcd": {"endpoints": "etcd:2379"}},
    "replica": {"replica": 3},
    "nosuch": {"settings": {"nosuch": 1}},
}
NAMESPACE: Final = "default"
ANOTHER_NAMESPACE: Final = "elsewhere"


def rendered(values: dict[str, Any], namespace: str = NAMESPACE) -> Iterator[str]:
    """Yield the documents of the chart."""
    with chart_without_links() as path, Chart.load(path) as chart:
        files = chart.render(values, name="warren", namespace=namespace)
    for name, text in sorted(files.items()):
        if name.endswith(".yaml"):
            yield from (document.strip() for document in f"\n{text}".split("\n---") if document.strip())


@contextmanager
def chart_without_links() -> Iterator[Path]:
    """Copy the chart, for Helm has a remark on each link in it."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(shutil.copytree(CHART, Path(directory) / "warren"))


def problems_of(values: dict[str, Any]) -> Iterator[str]:
    """Yield the errors in the manifests that the chart renders with these values."""
    with chart_without_links() as path:
        report = lint(path, values, strict=True)
    yield from (str(message) for message in report["messages"] if message["severity"] > 1)
    for document in rendered(values):
        resource = yaml.safe_load(document)
        if resource is None or resource["kind"] in FOREIGN:
            continue
        if resource["kind"] == "StatefulSet" and not resource["metadata"]["name"].endswith("-etcd"):
            yield from unset(values.get("settings", {}), resource["spec"]["template"]["spec"]["containers"][0]["env"])
        for version in (OLDEST, kubernetes_validate.latest_version()):
            try:
                kubernetes_validate.validate(resource, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                what, why = f"{resource['kind']} {resource['metadata']['name']}", str(error).splitlines()[0]
                yield f"{what}, Kubernetes {version}: {why}"


def not_refused() -> Iterator[str]:
    """Yield the values of `REFUSED` that the chart takes, or refuses for another reason."""
    for reason, values in REFUSED.items():
        try:
            list(rendered(values))
        except HelmError as error:
            if reason not in str(error):
                yield f"refused for another reason than {reason!r}: {error}"
        else:
            yield f"not refused: {reason}"


def unset(settings: dict[str, Any], variables: list[dict[str, str]]) -> Iterator[str]:
    """Yield the settings that do not come out as a variable with their value, as text or JSON."""
    found = {each["name"]: each.get("value", "") for each in variables}
    for key, value in settings.items():
        text = found.get("WARREN_" + key.replace(".", "_").upper(), "null")
        if (text if isinstance(value, str) else json.loads(text)) != value:
            yield f"{key} is {text!r} in the environment"


def manifests(values: str, what: str, namespace: str = NAMESPACE) -> str:
    """Return the text of a file of manifests: the chart without a word of Helm."""
    documents = list(rendered(yaml.safe_load((MANIFESTS / values).read_text()), namespace))
    lines = [line for line in "\n---\n".join(documents).splitlines() if "helm.sh/chart" not in line]
    return (
        HEAD.format(what) + "\n".join(line.replace("managed-by: Helm", "managed-by: kubectl") for line in lines) + "\n"
    )


def main(arguments: list[str]) -> int:
    if arguments == ["--render"]:
        print(json.dumps([yaml.safe_load(document) for document in rendered(json.load(sys.stdin))]))
        return 0
    wrong = [f"{case}: {problem}" for case, values in CASES.items() for problem in problems_of(values)]
    wrong += not_refused()
    for name, (values, what) in FILES.items():
        path, text = MANIFESTS / name, manifests(values, what)
        if text != manifests(values, what, ANOTHER_NAMESPACE):
            wrong.append(f"{path.relative_to(ROOT)} is for the namespace {NAMESPACE} only")
        if arguments != ["--check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(f"{path.relative_to(ROOT)} is not what the chart renders: run make manifests")
    print("\n".join(wrong) or f"the chart is right, with {len(CASES)} sets of values")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

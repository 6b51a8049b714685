"""Render the Helm chart, check what comes out, and write packaging/kubernetes/warren.yaml from it.

    scripts/manifests.py            write the manifests
    scripts/manifests.py --check    fail when they are not what the chart renders

Checked are the chart by Helm's linter, and what it renders with each set of values of `CASES` by the schemas of the
oldest Kubernetes that the chart is for and of the newest that is known. Needs what requirements/dist.txt installs:
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

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "packaging/helm/warren"
MANIFESTS: Final = ROOT / "packaging/kubernetes/warren.yaml"
VALUES: Final = ROOT / "packaging/kubernetes/values.yaml"
HEAD: Final = (
    "# One broker on Kubernetes, made of the Helm chart by `make manifests`: docs/releases.md says how it is used.\n"
)
OLDEST: Final = "1.25"
# Kinds of other people's, of which the schemas know nothing.
FOREIGN: Final = {"ServiceMonitor"}
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
}


def rendered(values: dict[str, Any]) -> Iterator[str]:
    """Yield the documents of the chart."""
    with chart_without_links() as path, Chart.load(path) as chart:
        files = chart.render(values, name="warren", namespace="default")
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
        if resource["kind"] == "StatefulSet":
            yield from unset(values.get("settings", {}), resource["spec"]["template"]["spec"]["containers"][0]["env"])
        for version in (OLDEST, kubernetes_validate.latest_version()):
            try:
                kubernetes_validate.validate(resource, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                what, why = f"{resource['kind']} {resource['metadata']['name']}", str(error).splitlines()[0]
                yield f"{what}, Kubernetes {version}: {why}"


def unset(settings: dict[str, Any], variables: list[dict[str, str]]) -> Iterator[str]:
    """Yield the settings that do not come out as a variable with their value, as text or JSON."""
    found = {each["name"]: each["value"] for each in variables}
    for key, value in settings.items():
        text = found.get("WARREN_" + key.replace(".", "_").upper(), "null")
        if (text if isinstance(value, str) else json.loads(text)) != value:
            yield f"{key} is {text!r} in the environment"


def manifests() -> str:
    """Return the text of the manifests: the chart without a word of Helm."""
    documents = list(rendered(yaml.safe_load(VALUES.read_text())))
    lines = [line for line in "\n---\n".join(documents).splitlines() if "helm.sh/chart" not in line]
    return HEAD + "\n".join(line.replace("managed-by: Helm", "managed-by: kubectl") for line in lines) + "\n"


def main(arguments: list[str]) -> int:
    wrong = [f"{case}: {problem}" for case, values in CASES.items() for problem in problems_of(values)]
    if arguments == ["--check"]:
        if not MANIFESTS.exists() or MANIFESTS.read_text() != manifests():
            wrong.append(f"{MANIFESTS.relative_to(ROOT)} is not what the chart renders: run make manifests")
    else:
        MANIFESTS.write_text(manifests())
    print("\n".join(wrong) or f"the chart is right, with {len(CASES)} sets of values")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

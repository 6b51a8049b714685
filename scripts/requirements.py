"""Print the requirements of Warren and of the extras named on the command line, a line each."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
print("\n".join(project["dependencies"]))
for extra in sys.argv[1:]:
    print("\n".join(project["optional-dependencies"][extra]))

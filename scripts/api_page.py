"""Write docs/api.md: a line for each route of the management API, from the table of routes.

PYTHONPATH=. .venv/bin/python scripts/api_page.py
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from warren.mgmt_plugin.plugin import all_routes
from warren.mgmt_plugin.routes import Access, Route

PAGE: Final = Path(__file__).parent.parent / "docs" / "api.md"
COMMAND: Final = "PYTHONPATH=. .venv/bin/python scripts/api_page.py"
WHO: Final = {
    Access.PUBLIC: "anybody",
    Access.CLIENT: "permissions in the vhost",
    Access.USER: "`management`",
    Access.VHOST: "`management`, and permissions in the vhost",
    Access.VHOST_VISIBLE: "`management`, and permissions in the vhost or `monitoring`",
    Access.POLICYMAKER: "`policymaker`, and permissions in the vhost",
    Access.MONITORING: "`monitoring`",
    Access.ADMINISTRATOR: "`administrator`",
}
HEAD: Final = f"""# The management API, route by route

Bodies and answers are described at [`/api/docs`](http://127.0.0.1:15672/api/docs) of a running broker, for programs as
OpenAPI at [`/api/openapi.json`](http://127.0.0.1:15672/api/openapi.json); Warren's own with requests to try in
[management.md](management.md), which also says what the tags allow: `policymaker` and `monitoring` include
`management`, `administrator` includes all. This page is written by `{COMMAND}`.
"""


def page(routes: Iterable[Route]) -> str:
    """Return the page."""
    sections: dict[str, list[Route]] = {"RabbitMQ's": [], "Only Warren's": [], "Outside of `/api`": []}
    for route in sorted(routes, key=lambda route: (route.template, route.method)):
        if not route.template.startswith("/api/"):
            sections["Outside of `/api`"].append(route)
        elif route.template.startswith("/api/warren/"):
            sections["Only Warren's"].append(route)
        else:
            sections["RabbitMQ's"].append(route)
    text = HEAD
    for title, found in sections.items():
        text += f"\n## {title}\n\n| Route | What it does | Who may |\n| --- | --- | --- |\n"
        text += "".join(f"| {line(route)} |\n" for route in found)
    return text


def line(route: Route) -> str:
    """Return the cells of a row."""
    return f"`{route.method} {route.template}` | {route.summary} | {WHO[route.access]}"


if __name__ == "__main__":
    PAGE.write_text(page(all_routes()))
    print(f"wrote {PAGE.name}")

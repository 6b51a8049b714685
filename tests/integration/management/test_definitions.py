"""Definitions of a broker process: exported, imported, planned, and loaded when it starts.

The files of RabbitMQ 3.10.8 were exported by one; that of 4.x is written by hand in its form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess

from warren.vhosts.metadata import LABEL_BYTES_MAX, TEXTS_MAX

from .api import Api

FILES = Path(__file__).parent / "definition_files"
OF_3 = "rabbitmq_3_10_8.json"
OF_3_VHOST = "rabbitmq_3_10_8_vhost.json"
OF_4 = "rabbitmq_4.json"
ORDERS = "/definitions/orders"
DRY_RUN = "/warren/definitions/dry-run"


def file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / name).read_text())
    return found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a broker for tests that change nothing in it."""
    with WarrenProcess(tmp_path_factory.mktemp("unchanged")) as running:
        yield Api(running)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path / "one") as running:
        yield running


@pytest.fixture
def api(process: WarrenProcess) -> Api:
    return Api(process)


def start(tmp_path: Path, name: str, document: object, **settings: object) -> WarrenProcess:
    """Return a broker, not started, that loads `document`."""
    path = tmp_path / f"{name}.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return WarrenProcess(tmp_path / name, settings={"load_definitions": path, **settings})


def in_order(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item with its keys sorted."""
    return {key: in_order(item[key]) if isinstance(item[key], dict) else item[key] for key in sorted(item)}


def counts(plan: dict[str, Any]) -> dict[str, int]:
    """Return how many changes of a plan have each action."""
    found: dict[str, int] = {}
    for change in plan["changes"]:
        found[change["action"]] = found.get(change["action"], 0) + 1
    return found


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OF_3, OF_4])
def test_what_is_exported_makes_another_broker_the_same(tmp_path: Path, api: Api, name: str) -> None:
    assert api.post("/definitions", file(name)).status == 204
    exported = api.get("/definitions")
    with start(tmp_path, "two", exported) as other:
        again = Api(other)
        assert again.get("/definitions") == exported
        plan = again.post(DRY_RUN, exported).value
        assert set(counts(plan)) == {"same"}
        other.stop()
        other.start()
        assert again.get("/definitions") == exported


def test_the_largest_objects_that_can_be_made_are_exported_and_imported_again(process: WarrenProcess, api: Api) -> None:
    """They are larger in a file: a vhost has its texts twice, and JSON may write a number in another form."""
    floats = [1e15] * 19_900
    label, tags = "\x01" * LABEL_BYTES_MAX, ",".join(f"tag{at}" for at in range(TEXTS_MAX))
    api.put("/vhosts/large", {"description": label, "tags": tags})
    api.put("/users/large", {"password": "x", "tags": tags})
    api.put("/global-parameters/floats", {"value": floats})
    api.put("/global-parameters/long", {"value": "x" * ((1 << 20) - 20)})
    channel = pika.BlockingConnection(pika.ConnectionParameters(port=process.amqp_port)).channel()
    large: list[dict[str, Any]] = [{"k": "\x01" * 130_000}, {f"k{at}": [None] for at in range(2000)}]
    for number, arguments in enumerate(large):
        channel.queue_declare(f"q{number}", durable=True, arguments=arguments)
    exported = api.get("/definitions")
    assert len(exported["queues"]) == 2
    assert api.post("/definitions", exported).status == 204
    assert api.get("/definitions") == exported


def test_a_file_of_rabbitmq_3_is_imported(process: WarrenProcess, api: Api) -> None:
    assert api.post("/definitions", file(OF_3)).status == 204
    exported = api.get("/definitions")
    given = file(OF_3)
    for section in ("permissions", "topic_permissions", "policies", "parameters", "exchanges", "bindings"):
        imported = [item for item in exported[section] if item["vhost"] == "orders"]
        if section == "permissions":
            imported.remove({"user": "guest", "vhost": "orders", "configure": ".*", "write": ".*", "read": ".*"})
        assert sorted(map(json.dumps, map(in_order, imported))) == sorted(
            map(json.dumps, map(in_order, given[section]))
        )
    queues = {queue["name"]: queue for queue in exported["queues"]}
    assert set(queues) == {queue["name"] for queue in given["queues"] if not queue["name"].startswith("amq.")}
    assert queues["q1"]["arguments"] == {"x-max-length": 5, "x-message-ttl": 60000}
    user = next(user for user in exported["users"] if user["name"] == "clerk")
    assert user == given["users"][0]
    assert exported["global_parameters"] == [{"name": "cluster_name", "value": "rabbits"}]
    # The hash is that of a password, which logs in.
    assert Api(process, "clerk", "p").get("/whoami")["name"] == "clerk"


def test_a_file_of_rabbitmq_4_is_imported(process: WarrenProcess, api: Api) -> None:
    assert api.post("/definitions", file(OF_4)).status == 204
    vhosts = {vhost["name"]: vhost for vhost in api.get("/vhosts")}
    assert vhosts["sales"]["description"] == "All that is sold"
    assert vhosts["sales"]["tags"] == ["sales", "eu"]
    assert vhosts["sales"]["default_queue_type"] == "quorum"
    assert vhosts["sales"]["protected_from_deletion"] is True
    assert vhosts["stock"]["description"] == "flat"
    limits = {each["vhost"]: each["value"] for each in api.get("/vhost-limits")}
    assert limits == {"sales": {"max-connections": 100}, "stock": {"max-queues": 50}}
    types = {queue["name"]: (queue["type"], queue["policy"]) for queue in api.get("/queues/sales")}
    assert types == {"orders": ("quorum", "limits"), "old": ("classic", None), "named": ("quorum", None)}
    assert api.get("/user-limits/reader") == [{"user": "reader", "value": {"max-channels": 7}}]
    reader = Api(process, "reader", "in plain text")
    assert reader.get("/whoami")["tags"] == ["monitoring", "of-the-night"]
    assert reader.ask("GET", "/definitions").status == 401


def test_a_vhost_is_exported_without_its_name_and_imported_into_another(api: Api) -> None:
    for vhost in ("orders", "copy"):
        api.put(f"/vhosts/{vhost}", {})
    assert api.post(ORDERS, file(OF_3_VHOST)).status == 204
    exported = api.get(ORDERS)
    assert list(exported) == list(file(OF_3_VHOST))
    assert all("vhost" not in item for section in ("queues", "exchanges", "bindings") for item in exported[section])
    assert api.post("/definitions/copy", exported).status == 204
    copied = api.get("/definitions/copy")
    for section in ("parameters", "policies"):
        assert {item["vhost"] for item in copied[section]} == {"copy"}
        for item in copied[section]:
            item["vhost"] = "orders"
    assert copied == exported
    assert api.ask("GET", "/definitions/nowhere").status == 404
    assert api.post("/definitions/nowhere", exported).status == 404


def test_a_download_has_a_name_that_fits_into_a_header(unchanged: Api) -> None:
    assert "Content-Disposition" not in unchanged.ask("GET", "/definitions").headers
    answer = unchanged.ask("GET", "/definitions?download=warren_1-2.json")
    assert answer.headers["Content-Disposition"] == "attachment; filename=warren_1-2.json"
    answer = unchanged.ask("GET", "/definitions/%2F?download=a%22%0d%0aX-Own:%20b")
    assert answer.headers["Content-Disposition"] == "attachment; filename=a___X-Own__b"
    assert "X-Own" not in answer.headers


# --- imports that do not, or not quite --------------------------------------------------------------------------------


def test_a_file_with_mistakes_names_all_of_them_and_changes_nothing(unchanged: Api) -> None:
    before = unchanged.get("/definitions")
    document = file(OF_3)
    document["queues"].append({"name": "bad", "vhost": "orders", "arguments": {"x-max-length": "long"}})
    document["policies"].append({"vhost": "orders", "name": "bad", "pattern": "(", "definition": {"max-length": 1}})
    for path in ("/definitions", DRY_RUN):
        answer = unchanged.post(path, document)
        assert answer.status == 400
        assert answer.value["error"] == "bad_request"
        lines = answer.value["reason"].splitlines()
        assert [line.partition(":")[0] for line in lines] == ["policies[1] 'bad'", "queues[4] 'bad'"]
    assert unchanged.get("/definitions") == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b" \r\n", b'{"queues": 1}'])
def test_a_body_that_is_no_file_of_definitions_is_refused(unchanged: Api, body: bytes) -> None:
    assert unchanged.post("/definitions", body).status == 400


def test_conflicts_are_told_and_the_rest_is_imported(api: Api) -> None:
    api.put("/queues/%2F/q", {"arguments": {"x-max-length": 1}})
    document = {
        "queues": [{"name": "q", "arguments": {"x-max-length": 2}}, {"name": "new"}],
        "bindings": [{"source": "amq.fanout", "destination": "new"}, {"source": "lost", "destination": "new"}],
    }
    planned = api.post(f"{DRY_RUN}/%2F", document).value
    assert planned["conflicts"] == 2
    assert [queue["name"] for queue in api.get("/queues")] == ["q"]
    answer = api.post("/definitions/%2F", document)
    assert answer.status == 200
    assert answer.value["conflicts"] == [change for change in planned["changes"] if change["action"] == "conflict"]
    assert [(each["kind"], each["name"]) for each in answer.value["conflicts"]] == [
        ("queue", "q"),
        ("binding", "lost -> new"),
    ]
    assert "x-max-length" in answer.value["conflicts"][0]["detail"]
    assert api.get("/queues/%2F/q")["arguments"] == {"x-max-length": 1}
    assert len(api.get("/bindings/%2F/e/amq.fanout/q/new")) == 1


def test_who_imports_is_not_locked_out_unless_that_was_asked_for(process: WarrenProcess, api: Api) -> None:
    clerk = file(OF_3)["users"][0]
    document = {"users": [{**clerk, "name": "guest"}, {**clerk, "tags": "administrator"}]}
    answer = api.post("/definitions", document)
    assert answer.status == 200
    assert [(each["kind"], each["name"]) for each in answer.value["conflicts"]] == [("user", "guest")]
    assert api.get("/whoami")["tags"] == ["administrator"]
    # The login upgraded the hash of the clerk. The hash in the file is of the same password.
    planned = Api(process, "clerk", "p").post(DRY_RUN, document).value["changes"]
    assert [(each["action"], each["name"]) for each in planned if each["kind"] == "user"] == [
        ("update", "guest"),
        ("same", "clerk"),
    ]
    assert api.post("/definitions?overwrite_own=true", document).status == 204
    assert api.ask("GET", "/whoami").status == 401
    assert Api(process, "guest", "p").get("/whoami")["tags"] == ["management"]


def test_a_file_that_names_who_imports_lets_them_into_the_vhosts_that_it_makes(api: Api) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "users": [
            {"name": "guest", "password_hash": file(OF_3)["users"][0]["password_hash"], "tags": ["administrator"]}
        ],
        "vhosts": [{"name": "made"}],
        "permissions": [{"user": "guest", "vhost": name, **everything} for name in ("/", "made")],
        "queues": [{"name": "q", "vhost": "made", "durable": True, "auto_delete": False, "arguments": {}}],
    }
    answer = api.post("/definitions", document)
    assert [(each["kind"], each["name"]) for each in answer.value["conflicts"]] == [("user", "guest")]
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.post("/queues/made/q/get", wanted).value == []
    api.ask("DELETE", "/vhosts/made")


def test_a_file_may_come_in_a_form(api: Api) -> None:
    head = 'Content-Disposition: form-data; name="file"; filename="d.json"\r\nContent-Type: application/json'
    text = json.dumps(file(OF_3), indent=1)
    form = f"--limit\r\n{head}\r\n\r\n{text}\r\n--limit--\r\n".encode()
    assert api.ask("POST", "/definitions", form, "multipart/form-data; boundary=limit").status == 204
    assert len(api.get("/queues/orders")) == 3
    answer = api.ask("POST", "/definitions", form.replace(b'"file"', b'"fire"'), "multipart/form-data; boundary=limit")
    assert (answer.status, answer.value["reason"]) == (400, "the form has no field file")


def test_only_administrators_see_and_import_definitions(process: WarrenProcess, api: Api) -> None:
    for name, tags in (("m", "monitoring"), ("p", "policymaker")):
        api.put(f"/users/{name}", {"password": name, "tags": tags})
        api.put(f"/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
        user = Api(process, name, name)
        for path in ("/definitions", "/definitions/%2F"):
            assert user.ask("GET", path).status == 401
        for path in ("/definitions", "/definitions/%2F", DRY_RUN, f"{DRY_RUN}/%2F"):
            assert user.post(path, {"queues": []}).status == 401


def test_thousands_of_queues_are_there_after_a_crash(process: WarrenProcess, api: Api) -> None:
    names = [f"q{number}" for number in range(2000)]
    document = {
        "queues": [{"name": name} for name in names],
        "bindings": [{"source": "amq.topic", "destination": name, "routing_key": name} for name in names],
    }
    assert api.post("/definitions/%2F", document).status == 204
    process.kill()
    process.start()
    exported = api.get("/definitions/%2F")
    assert len(exported["queues"]) == len(exported["bindings"]) == len(names)


# --- at the start -----------------------------------------------------------------------------------------------------


def test_on_an_empty_data_directory_the_file_is_all_there_is(tmp_path: Path) -> None:
    document = file(OF_4)
    document["users"][1]["tags"] = "administrator"
    with start(tmp_path, "one", document) as process:
        api = Api(process, "reader", "in plain text")
        assert [vhost["name"] for vhost in api.get("/vhosts")] == ["sales", "stock"]
        assert [user["name"] for user in api.get("/users")] == ["reader", "root"]
        assert Api(process).ask("GET", "/whoami").status == 401
        assert [queue["name"] for queue in api.get("/queues")] == ["named", "old", "orders"]
        # The next start resets what was changed since, and keeps what was added.
        api.put("/permissions/stock/reader", {"configure": ".*", "write": ".*", "read": ".*"})
        api.put("/vhosts/mine", {})
        process.stop()
        process.start()
        assert api.get("/permissions/stock/reader")["configure"] == ""
        assert [vhost["name"] for vhost in api.get("/vhosts")] == ["mine", "sales", "stock"]
        names = [each["name"] for each in api.get("/definitions")["global_parameters"]]
        assert names == ["cluster_tags"]


def test_a_file_that_has_not_changed_can_be_skipped(tmp_path: Path) -> None:
    document = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "vhosts": [{"name": "v", "description": "of the file"}],
    }
    with start(tmp_path, "one", document, definitions_skip_if_unchanged="true") as process:
        api = Api(process)
        api.put("/vhosts/v", {"description": "changed"})
        process.stop()
        process.start()
        assert api.get("/vhosts/v")["description"] == "changed"
        assert "definitions are unchanged" in process.log()
        process.stop()
        document["vhosts"][0]["description"] = "of another file"
        (tmp_path / "one.json").write_text(json.dumps(document))
        process.start()
        assert api.get("/vhosts/v")["description"] == "of another file"


def test_parameters_of_links_are_imported_at_the_start_and_checked(tmp_path: Path) -> None:
    shovel = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "r"}
    document = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": shovel}],
    }
    with start(tmp_path, "one", document) as process:
        exported = Api(process).get("/definitions")
        assert exported["parameters"] == document["parameters"]
        del shovel["dest-uri"]
        answer = Api(process).post("/definitions", document)
        assert answer.status == 400
        assert answer.value["reason"].startswith("parameters[0] 's': ")


def test_transient_queues_of_the_file_are_there_after_each_start(tmp_path: Path) -> None:
    document = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "vhosts": [{"name": "/"}],
        "queues": [{"name": "t", "vhost": "/", "durable": False}],
    }
    with start(tmp_path, "one", document) as process:
        for _ in range(2):
            assert [queue["name"] for queue in Api(process).get("/queues")] == ["t"]
            process.stop()
            process.start()


def test_conflicts_at_the_start_are_log_lines(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path / "one") as process:
        Api(process).put("/queues/%2F/q", {"arguments": {"x-max-length": 1}})
    document = {"queues": [{"name": "q", "vhost": "/"}, {"name": "r", "vhost": "/"}]}
    with start(tmp_path, "one", document) as process:
        assert "definition not imported" in process.log()
        assert [queue["name"] for queue in Api(process).get("/queues")] == ["q", "r"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a JSON object"),
        (
            '{"vhosts":[{"name":"v"},{}],"queues":[{},{},{}]}',
            "vhosts[1]: name is missing; queues[0]: name is missing; ",
        ),
        ('{"vhosts":[{"name":"v","default_queue_type":"odd"}]}', "default queue type 'odd'"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_and_leaves_nothing(tmp_path: Path, text: str, said: str) -> None:
    process = start(tmp_path, "one", text)
    process.spawn()
    assert process.wait() == 1
    assert process.out() == ""
    line = process.log().splitlines()[-1]
    assert line.startswith(f"warren: load_definitions {tmp_path / 'one.json'}: ")
    assert said in line
    assert "Traceback" not in process.log()
    # Without the file it is a new broker, with the vhost and the user of one.
    with WarrenProcess(tmp_path / "one") as again:
        assert [vhost["name"] for vhost in Api(again).get("/vhosts")] == ["/"]


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    process = WarrenProcess(tmp_path / "one", settings={"load_definitions": tmp_path / "none.json"})
    process.spawn()
    assert process.wait() == 1
    assert process.log().splitlines()[-1].endswith("none.json: No such file or directory")


def test_links_may_name_a_vhost_of_the_same_file(api: Api) -> None:
    shovel = {"src-uri": "amqp:///new", "src-queue": "q", "dest-uri": "amqp:///new", "dest-queue": "r"}
    document = {
        "vhosts": [{"name": "new"}],
        "parameters": [
            {"vhost": "new", "component": "shovel", "name": "s", "value": shovel},
            {"vhost": "new", "component": "federation-upstream", "name": "u", "value": {"uri": "amqp:///new"}},
        ],
    }
    assert api.post("/definitions", document).status == 204
    assert [each["name"] for each in api.get("/parameters/shovel/new")] == ["s"]
    assert {"user": "guest", "vhost": "new", "configure": ".*", "write": ".*", "read": ".*"} in api.get("/permissions")
    exported = api.get("/definitions")
    api.ask("DELETE", "/vhosts/new")
    assert api.post("/definitions", exported).status == 204
    api.ask("DELETE", "/vhosts/new")

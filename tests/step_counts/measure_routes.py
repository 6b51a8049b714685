"""Measure all routes, or those whose name contains the argument, and print a line of JSON for each case.

cd tests && PYTHONPATH=.. ../.venv/bin/python -m step_counts.measure_routes [NAME]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from step_counts import step_counter

step_counter.install()

import trio  # noqa: E402 - the broker must be imported with the hook
from engine_harness import basic_consume, publish_frames, queue_declare  # noqa: E402

from step_counts.route_cases import CASES, SIZE, Case  # noqa: E402
from step_counts.route_host import Engine, Host, Stretches, temporary_directory  # noqa: E402
from warren.amqp import methods as m  # noqa: E402
from warren.amqp.codec import method_frame  # noqa: E402
from warren.amqp.field_table import encode_table  # noqa: E402
from warren.mqtt.sessions import sessions_of  # noqa: E402
from warren.vhosts.metadata import (  # noqa: E402
    GlobalParameterPut,
    ParameterPut,
    PermissionPut,
    PolicyPut,
    TopicPermissionPut,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
)
from warren.vhosts.retained import Retained  # noqa: E402

EMPTY = encode_table({})
VHOST_SHARE = 10  # each has predeclared exchanges


def world(n: int, *, policies: bool) -> Engine:
    """Return an engine with n of everything but policies, or with n policies and nothing that they could be for."""
    engine = Engine()
    broker = engine.broker
    broker.node = "rabbit@test"
    broker.administer(UserPut("guest", "", "", ("administrator",)))
    broker.administer(UserPut("busy", "", "", ()))
    engine.permit("busy")
    engine.passwords["busy"] = b"busy"
    broker.parameters.validators["thing"] = lambda *_: []
    broker.parameters.validators["shovel"] = lambda *_: []
    broker.parameters.validators["lake"] = lambda *_: []
    broker.administer(ParameterPut("/", "lake", "shovel0", "{}"))
    for at in range(0 if policies else n):
        broker.administer(UserPut(f"u{at}", "", "", ()))
        broker.administer(PermissionPut(f"u{at}", "/", ".*", ".*", ".*"))
        broker.administer(TopicPermissionPut(f"u{at}", "/", "amq.topic", ".*", ".*"))
        broker.administer(UserLimitsPut(f"u{at}", '{"max-channels":10}'))
        broker.administer(ParameterPut("/", "thing", f"t{at}", "1"))
        broker.administer(ParameterPut("/", "shovel", f"shovel{at}", "{}"))
        broker.administer(GlobalParameterPut(f"g{at}", "1"))
    for at in range(0 if policies else n // VHOST_SHARE):
        broker.administer(VhostPut(f"v{at}"))
        broker.administer(VhostLimitsPut(f"v{at}", '{"max-queues":10}'))
    for at in range(n if policies else 1):
        broker.administer(PolicyPut("/", f"p{at}", f"^nosuch{at}$", "all", 0, '{"max-length":10}'))
        broker.administer(PolicyPut("/", f"p{at}", f"^nosuch{at}$", "queues", 0, '{"max-length":10}', True))
    engine.settle()
    if policies:
        return engine
    client = engine.channel()
    calls: list[Any] = []
    for at in range(max(n, 3)):
        calls.append(queue_declare(f"q{at}", durable=True))
        calls.append(m.ExchangeDeclare(0, f"e{at}", "topic", False, True, False, False, False, EMPTY))
        calls.append(m.QueueBind(0, f"q{at}", "amq.fanout", "", False, EMPTY))
    calls.append(m.ExchangeDeclare(0, "hub", "topic", False, True, False, False, False, EMPTY))
    for at in range(n):
        calls.append(m.QueueBind(0, "q0", "e0", f"k{at}", False, EMPTY))
        calls.append(m.QueueBind(0, f"q{at}", "hub", "x", False, EMPTY))
        calls.append(m.ExchangeBind(0, "hub", f"e{at}", "x", False, EMPTY))
    client.send(1, *calls)
    client.take_bytes()
    declared: list[tuple[str, dict[str, object]]] = [
        ("full", {}),
        ("owed", {}),
        ("many", {}),
        ("late", {"x-delayed-retry-type": "all"}),
        ("unique", {"x-message-deduplication": True, "x-cache-size": 10_000}),
        ("s", {"x-queue-type": "stream"}),
    ]
    # Of MQTT clients that are away; the first has many subscriptions.
    declared += [(f"mqtt-subscription-c{at}qos1", {}) for at in range(2)]
    for name, arguments in declared:
        client.declare(name, durable=True, arguments=arguments)
    client.send(
        1, *[m.QueueBind(0, "mqtt-subscription-c0qos1", "amq.topic", f"f.{at}", False, EMPTY) for at in range(n)]
    )
    sessions = sessions_of(broker, engine.vhost)
    for at in range(max(n, 2)):
        session = sessions.take_up(f"c{at}", "guest")
        sessions.keep(session, 3600, b"")
        sessions.leave(session)
    for at in range(max(n, 1)):
        engine.vhost.retained().put(f"t/{at}", Retained("guest", 0, 0, b"\0\0", b"x"))
    client.take_bytes()
    frames: list[bytes] = []
    for name in ("full", "owed", "q2", "s"):
        frames += [publish_frames("", name, b"x", properties={"delivery_mode": 2})] * n
    frames += [publish_frames("", "late", b"x", properties={"headers": encode_table({"x-delay": 3_600_000})})] * n
    for at in range(n):
        keys = encode_table({"x-deduplication-header": f"{at}", "x-producer": f"p{at}", "x-seq": 1})
        frames.append(publish_frames("", "unique", b"x", properties={"delivery_mode": 2, "headers": keys}))
    client.feed(b"".join(frames))
    broker.log.force()
    engine.settle()
    client.send(1, *[m.BasicGet(0, "owed", False)] * n)
    client.take_bytes()
    groups = engine.vhost.queues["s"].need_groups()  # type: ignore[attr-defined]
    for at in range(n):
        groups.reset(f"g{at}", 0)
        one = engine.channel()
        one.send(1, basic_consume(f"q{at}", "c"))
        one.take_bytes()
    busy = engine.client("busy")
    busy.feed(b"".join(method_frame(1 + at, m.ChannelOpen("")) for at in range(n)))
    busy.feed(b"".join(method_frame(1 + at, basic_consume("many", f"c{at}")) for at in range(n)))
    for _ in range(n):
        engine.client("busy")
    broker.log.force()
    engine.settle()
    return engine


def _body(case: Case, n: int, names: dict[str, str]) -> bytes:
    given = case.body(n)
    if case.raw is not None:
        return case.raw
    if given is None:
        return b""
    text = json.dumps(given).replace('"{epoch}"', names.get("epoch", ""))
    return text.replace("{claims}", names.get("claims", "")).encode()


async def measured(n: int, cases: list[Case], policies: bool) -> list[tuple[int, int, int, str]]:
    """Return the longest stretch, the whole, the status and a refusal's text of each case, with n of everything."""
    engine = world(n, policies=policies)
    figures: list[tuple[int, int, int, str]] = []
    with temporary_directory() as directory:
        async with trio.open_nursery() as nursery:
            host = Host(engine, n, nursery, directory)
            await host.services.statistics.sample()
            for at in range(0 if policies else n):
                await host.ask("POST", f"/api/warren/drains/%2F/q{at}/d/open", b"{}")
            names = {"n": str(n)}
            for case in cases:
                target = case.target
                for name, value in names.items():
                    target = target.replace(f"{{{name}}}", value)
                await host.write()  # writes that others have left for the log are theirs
                stretches = Stretches()
                trio.lowlevel.add_instrument(stretches)
                body = _body(case, n, names)
                answer = await host.ask(case.route.partition(" ")[0], target, body, headers_of(names))
                trio.lowlevel.remove_instrument(stretches)
                found = answer.body if answer.status < 300 else b""
                if case.route.startswith("POST /api/warren/snapshots/"):
                    names["snapshot"] = json.loads(found)["snapshot"]
                if case.route == "POST /api/warren/backups":
                    names["backup"] = json.loads(found)["backup"]
                if case.target.endswith("/open"):
                    opened = json.loads(found)
                    names |= {"epoch": str(opened["epoch"]), "claims": opened["id"]}
                for header, value in answer.headers:
                    if header == "Set-Cookie":
                        names["cookie"] = value.partition(";")[0]
                if case.route == "POST /api/warren/session":
                    names["csrf"] = json.loads(found)["csrf_token"]
                text = "" if answer.status < 300 else answer.body.decode("utf-8", "replace")[:300]
                figures.append((max(stretches.all), stretches.whole(), answer.status, text))
            nursery.cancel_scope.cancel()
    return figures


def headers_of(names: dict[str, str]) -> dict[str, str]:
    """Return the headers of a browser that has logged in."""
    if "cookie" not in names:
        return {}
    return {"cookie": names["cookie"], "x-csrf-token": names.get("csrf", "")}


def main() -> None:
    """Measure."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for policies in (False, True):
        cases = [case for case in CASES if wanted in case.name and case.policies == policies]
        found = [trio.run(measured, n, cases, policies) for n in (1, SIZE, 2 * SIZE)]
        for case, *figures in zip(cases, *found, strict=True):
            print(json.dumps({"name": case.name, "growth": case.growth, "figures": figures}), flush=True)


main()

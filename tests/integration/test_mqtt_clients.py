"""Clients that others have written against the real process: paho-mqtt, aiomqtt and Debian's mosquitto-clients."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from broker_process import WarrenProcess
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DEADLINE_S = 60
VERSIONS = [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker"), flags={"mqtt": "127.0.0.1:0"}) as process:
        yield process


def given(kind: int, **values: Any) -> Any:
    found: Any = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Paho:
    """A client of paho-mqtt, which has a thread of its own; received packets are in queues."""

    def __init__(self, client_id: str, version: int = paho.MQTTv5, *, lasts: bool = False) -> None:
        clean = None if version == paho.MQTTv5 else not lasts
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, protocol=MQTTProtocolVersion(version)
        )
        self.client.username_pw_set("guest", "guest")
        self.version = version
        self.lasts = lasts
        self.connected: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[list[int]] = queue.Queue()
        self.published: queue.Queue[tuple[int, int]] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.ended: queue.Queue[int] = queue.Queue()
        self.client.on_connect = lambda client, data, flags, reason, given: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda client, data, mid, codes, given: self.subscribed.put([c.value for c in codes])
        self.client.on_publish = lambda client, data, mid, reason, given: self.published.put((mid, reason.value))
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_disconnect = lambda client, data, flags, reason, given: self.ended.put(reason.value)

    def connect(self, port: int, **options: Any) -> bool:
        """Connect; tell whether the session was there."""
        if self.version == paho.MQTTv5:
            expiry_s = 1000 if self.lasts else 0
            options.setdefault("properties", given(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s))
            options["clean_start"] = not self.lasts
        self.client.connect("127.0.0.1", port, 60, **options)
        self.client.loop_start()
        flags, reason = self.connected.get(timeout=DEADLINE_S)
        assert reason == 0, reason
        return bool(flags.session_present)

    def subscribe(self, filter_: str, qos: int) -> int:
        self.client.subscribe(filter_, qos)
        (code,) = self.subscribed.get(timeout=DEADLINE_S)
        return code

    def publish(self, topic: str, body: bytes, qos: int, **options: Any) -> None:
        """Publish, and wait until that is answered for good."""
        self.client.publish(topic, body, qos, **options).wait_for_publish(DEADLINE_S)

    def take(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=DEADLINE_S)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """Be gone without a word."""
        sock = self.client.socket()
        assert sock is not None
        self.client.loop_stop()
        sock.close()


@pytest.fixture
def clients() -> Iterator[Callable[..., Paho]]:
    made: list[Paho] = []

    def make(*arguments: Any, **options: Any) -> Paho:
        made.append(Paho(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_is_sent_every_qos(
    broker: WarrenProcess, clients: Callable[..., Paho], version: int, qos: int
) -> None:
    reader, writer = clients(f"r{version}{qos}", version), clients(f"w{version}{qos}", version)
    reader.connect(broker.mqtt_port)
    writer.connect(broker.mqtt_port)
    topic = f"paho/{version}/{qos}"
    assert reader.subscribe(topic, qos) == qos
    for number in range(100):
        writer.client.publish(topic, b"%d" % number, qos)
    found = [reader.take() for _ in range(100)]
    assert [each.payload for each in found] == [b"%d" % number for number in range(100)]
    assert {(each.topic, each.qos, each.retain) for each in found} == {(topic, qos, False)}
    assert {writer.published.get(timeout=DEADLINE_S)[1] for _ in range(100)} == {0}


@pytest.mark.parametrize("version", VERSIONS)
def test_paho_finds_its_session_and_what_has_come_for_it(
    broker: WarrenProcess, clients: Callable[..., Paho], version: int
) -> None:
    topic = f"away/{version}"
    reader, writer = clients(f"away{version}", version, lasts=True), clients(f"here{version}", version)
    assert reader.connect(broker.mqtt_port) is False
    assert reader.subscribe(topic, 2) == 2
    reader.stop()
    writer.connect(broker.mqtt_port)
    for number in range(50):
        writer.publish(topic, b"%d" % number, 2)
    assert reader.connect(broker.mqtt_port) is True
    assert [reader.take().payload for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_paho_loses_and_repeats_nothing_of_qos_2_when_the_broker_is_killed(
    tmp_path: Path, clients: Callable[..., Paho]
) -> None:
    with WarrenProcess(tmp_path, flags={"mqtt": "127.0.0.1:0"}) as process:
        reader, writer = clients("reader", lasts=True), clients("writer", lasts=True)
        for each in (reader, writer):
            each.client.reconnect_delay_set(1, 1)
            each.connect(process.mqtt_port)
        assert reader.subscribe("kill/+", 2) == 2
        for number in range(300):
            writer.client.publish("kill/er", b"%d" % number, 2)
            if number in (100, 200):
                taken = writer.published.qsize()
                process.kill()
                process.start()
                for each in (reader, writer):
                    each.client._port = process.mqtt_port  # it takes another free one
                assert taken <= number
        for _ in range(300):
            # Released before a kill, and released again: "not an error during recovery", as MQTT 5.0 says of 0x92.
            assert writer.published.get(timeout=DEADLINE_S)[1] in (0, 0x92)
        found = [reader.take().payload for _ in range(300)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(300)]
        writer.publish("kill/er", b"last", 2)
        assert reader.take().payload == b"last", "and nothing twice"


def test_paho_shares_a_subscription(broker: WarrenProcess, clients: Callable[..., Paho]) -> None:
    readers = [clients(f"share{number}") for number in range(2)]
    for reader in readers:
        reader.connect(broker.mqtt_port)
        assert reader.subscribe("$share/group/shared/#", 1) == 1
    writer = clients("sharer")
    writer.connect(broker.mqtt_port)
    for number in range(20):
        writer.publish("shared/it", b"%d" % number, 1)
    found = [[reader.take().payload for _ in range(10)] for reader in readers]
    assert sorted(int(body) for each in found for body in each) == list(range(20))


def test_paho_has_its_will_delayed_and_retained(broker: WarrenProcess, clients: Callable[..., Paho]) -> None:
    reader, mortal = clients("heir"), clients("mortal", lasts=True)
    reader.connect(broker.mqtt_port)
    assert reader.subscribe("will/+", 2) == 2
    delayed = given(PacketTypes.WILLMESSAGE, WillDelayInterval=1)
    mortal.client.will_set("will/mine", b"gone", 2, True, delayed)
    mortal.connect(broker.mqtt_port)
    mortal.vanish()
    found = reader.take()
    assert (found.topic, found.payload, found.qos) == ("will/mine", b"gone", 2)
    later = clients("later")
    later.connect(broker.mqtt_port)
    later.subscribe("will/#", 1)
    assert later.take().retain


def test_paho_is_told_what_5_0_has_words_for(broker: WarrenProcess, clients: Callable[..., Paho]) -> None:
    first, second = clients("same"), clients("same")
    first.connect(broker.mqtt_port)
    first.publish("nobody", b"x", 1)
    assert first.published.get(timeout=DEADLINE_S)[1] == 0x10, "no matching subscribers"
    values = {"ContentType": "text/plain", "UserProperty": [("a", "1"), ("a", "2")], "CorrelationData": b"\xff"}
    assert first.subscribe("told", 1) == 1
    first.publish("told", b"x", 1, properties=given(PacketTypes.PUBLISH, MessageExpiryInterval=100, **values))
    came: Any = first.take().properties
    assert {name: getattr(came, name) for name in values} == values
    assert came.MessageExpiryInterval in (99, 100)
    first.client.reconnect_delay_set(30, 30)
    second.connect(broker.mqtt_port)
    assert first.ended.get(timeout=DEADLINE_S) == 0x8E


def test_aiomqtt_publishes_and_is_sent_every_qos(broker: WarrenProcess) -> None:
    async def both() -> list[tuple[str, Any, int]]:
        options: dict[str, Any] = {"port": broker.mqtt_port, "username": "guest", "password": "guest"}
        async with aiomqtt.Client("127.0.0.1", protocol=aiomqtt.ProtocolVersion.V5, **options) as client:
            await client.subscribe("aio/#", qos=2)
            for qos in (0, 1, 2):
                await client.publish(f"aio/{qos}", b"x", qos=qos)
            found: list[tuple[str, Any, int]] = []
            async for message in client.messages:
                found.append((str(message.topic), message.payload, message.qos))
                if len(found) == 3:
                    return found
        raise AssertionError

    async def in_time() -> list[tuple[str, Any, int]]:
        return await asyncio.wait_for(both(), DEADLINE_S)

    found = asyncio.run(in_time())
    assert sorted(found) == [(f"aio/{qos}", b"x", qos) for qos in (0, 1, 2)]


# --- mosquitto-clients ----------------------------------------------------------------------------------------------


@pytest.fixture
def mosquitto(broker: WarrenProcess) -> Callable[..., list[str]]:
    """Return the command line of one of the tools."""

    def command(name: str, *arguments: str) -> list[str]:
        path = shutil.which(name)
        if path is None:
            text = f"`{name}` is not on this machine; on Debian: apt-get install mosquitto-clients"
            if os.environ.get("CI"):
                pytest.fail(text)
            pytest.skip(text)
        login = ["-h", "127.0.0.1", "-p", str(broker.mqtt_port), "-u", "guest", "-P", "guest"]
        return [path, *login, *arguments]

    return command


def run(command: list[str], stdin: bytes = b"") -> bytes:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub_have_a_retained_message(
    mosquitto: Callable[..., list[str]], version: str, qos: str
) -> None:
    topic = f"mosquitto/{version}/{qos}"
    run(mosquitto("mosquitto_pub", "-V", version, "-t", topic, "-q", qos, "-m", "x", "-r"))
    shown = mosquitto("mosquitto_sub", "-V", version, "-t", topic, "-q", qos, "-C", "1", "-F", "%t %q %r %p")
    assert run(shown) == f"{topic} {qos} 1 x\n".encode()


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_sub_finds_its_session(mosquitto: Callable[..., list[str]], version: str) -> None:
    lasting = ["-V", version, "-i", f"lasting-{version}", "-c", "-t", f"kept/{version}", "-q", "2"]
    if version == "mqttv5":
        lasting += ["-x", "1000"]
    run(mosquitto("mosquitto_sub", *lasting, "-E"))
    sent = b"".join(b"%d\n" % number for number in range(30))
    run(mosquitto("mosquitto_pub", "-V", version, "-t", f"kept/{version}", "-q", "2", "-l"), sent)
    assert run(mosquitto("mosquitto_sub", *lasting, "-C", "30")) == sent


def test_mosquitto_rr_is_answered(
    broker: WarrenProcess, mosquitto: Callable[..., list[str]], clients: Callable[..., Paho]
) -> None:
    server = clients("server")
    server.connect(broker.mqtt_port)
    assert server.subscribe("ask", 1) == 1
    asking = mosquitto("mosquitto_rr", "-V", "mqttv5", "-t", "ask", "-e", "answer/me", "-m", "what", "-q", "1")
    with subprocess.Popen(asking, stdout=subprocess.PIPE) as asked:
        question = server.take()
        about: Any = question.properties
        server.publish(about.ResponseTopic, b"that", 1)
        out, _ = asked.communicate(timeout=DEADLINE_S)
    assert (question.payload, out) == (b"what", b"that\n")


@pytest.mark.parametrize(("password", "reason"), [(b"guest", 0), (b"wrong", 0x86)])
def test_paho_logs_in_by_a_method(broker: WarrenProcess, password: bytes, reason: int) -> None:
    client = Paho("by-a-method")
    client.client.username_pw_set(None)
    data = b"\0guest\0" + password
    login = given(PacketTypes.CONNECT, AuthenticationMethod="PLAIN", AuthenticationData=data)
    client.client.connect("127.0.0.1", broker.mqtt_port, 60, clean_start=True, properties=login)
    client.client.loop_start()
    _, told = client.connected.get(timeout=DEADLINE_S)
    assert told.value == reason
    client.client.disconnect()
    client.client.loop_stop()

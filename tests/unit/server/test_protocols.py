"""The records of protocols, from which their ports follow."""

from __future__ import annotations

from warren.channels.peer import Peer
from warren.server.protocols import LISTENERS, PROTOCOLS
from warren.server.setting_kinds import Endpoint
from warren.server.settings import KEYS, SERVE_OPTIONS, SERVE_SWITCHES, WITH_TLS, Settings
from warren.server.settings_reader import load_settings, value_of


def test_each_way_of_each_protocol_is_a_setting_and_an_option() -> None:
    assert [kind.setting for kind in LISTENERS.values()] == list(LISTENERS)
    assert len(LISTENERS) == 4 * len(PROTOCOLS)
    for setting, kind in LISTENERS.items():
        option = "--" + setting.replace("_", "-")
        assert SERVE_OPTIONS[option] == setting
        assert option not in SERVE_SWITCHES
        assert KEYS[setting].parse("host") == Endpoint("host", kind.port)
        assert (setting in WITH_TLS) == kind.is_tls == setting.endswith(("s", "_wss")) - setting.endswith("_ws")


def test_the_usual_ports_and_all_names_of_listeners_are_different() -> None:
    ports = [kind.port for kind in LISTENERS.values()]
    assert len(set(ports)) == len(ports)
    names = [name for kind in LISTENERS.values() for name in {kind.setting, kind.shown, *kind.other_names}]
    assert len(set(names)) == len(names)


def test_only_amqp_is_on_until_a_setting_differs() -> None:
    assert {name for name in LISTENERS if Settings().endpoint(name) is not None} == {"amqp"}
    read = load_settings({"amqp": "off", "amqps": "host:1", "stomp": "host"}, {"WARREN_TLS_CERTIFICATE": "c.pem"})
    found = {name: read.endpoint(name) for name in LISTENERS if read.endpoint(name) is not None}
    assert found == {"amqps": Endpoint("host", 1), "stomp": Endpoint("host", 61613)}
    assert {name: value_of(read, name) for name in found} == found
    assert value_of(read, "amqp") is None


def test_a_record_makes_peers() -> None:
    for protocol in PROTOCOLS:
        maker = protocol.peer_maker()
        assert isinstance(maker, type)
        assert issubclass(maker, Peer)
        assert maker is protocol.peer_maker()

"""Methods whose work is always the same, beside n things."""

from __future__ import annotations

from typing import Any

from step_counts.cases.case import BOUNDED, CASES, Act, Case, Prepare, case, consuming
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame

_SMALL: dict[str, tuple[int, Any]] = {
    "connection_update_secret": (0, m.ConnectionUpdateSecret(b"", "")),
    "connection_close_ok": (0, m.ConnectionCloseOk()),
    "channel_open": (2000, m.ChannelOpen("")),
    "channel_flow": (1, m.ChannelFlow(True)),
    "channel_close_ok": (2000, m.ChannelCloseOk()),
    "access_request": (1, m.AccessRequest("", False, False, False, False, False)),
    "cancel_ok": (1, m.BasicCancelOk("c0")),
    "confirm_select": (1, m.ConfirmSelect(False)),
    "tx_select": (1, m.TxSelect()),
}


def _small(number: int, method: Any) -> Prepare:
    def prepare(meter: Meter, n: int) -> Act:
        client = consuming(meter, n)
        client.feed(b"".join(method_frame(2 + at, m.ChannelOpen("")) for at in range(n)))
        client.take_bytes()
        return sending(client, number, method)

    return prepare


for _name, (_number, _method) in _SMALL.items():
    CASES.append(Case(_name, type(_method), BOUNDED, _small(_number, _method)))


@case(m.ConnectionOpen, BOUNDED)
def open_beside_others(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    client = meter.raw_client()
    client.start()
    client.start_ok()
    client.expect(m.ConnectionTune)
    data = method_frame(0, m.ConnectionTuneOk(2047, 131072, 0)) + method_frame(0, m.ConnectionOpen("/", "", False))
    return lambda: client.feed(data)


@case(m.ConnectionStartOk, BOUNDED)
def login_beside_others(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    client = meter.raw_client()
    client.start()
    return client.start_ok

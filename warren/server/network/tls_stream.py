"""TLS around a stream, of HTTP or of a link, for which no peer can have the broker work without saying anything.

The records that come are counted, and of small ones few are decrypted at a time (`server.network.tls_records`).
"""

from __future__ import annotations

import ssl

import trio

from warren.server.network.tls_records import TlsRecords


class _Counted(trio.abc.Stream):
    """The stream below: what is decrypted comes from here, when all that came before has been read."""

    def __init__(self, plain: trio.SocketStream, records: TlsRecords) -> None:
        self._plain = plain
        self._records = records

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            self._records.check()
            received = await self._plain.receive_some(self._records.receive_bytes)
            self._records.received(bytes(received))
        except ConnectionAbortedError as error:
            # Without the cause: trio reads that of what it is told, and takes it for one of the system's.
            raise trio.BrokenResourceError(str(error)) from None
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._plain.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._plain.aclose()


class TlsStream(trio.abc.Stream):
    """The stream above it. `context` is that of a server, or that of a client for the server called `server_name`.

    Raises:
        OSError, ValueError: that is no host name.
    """

    def __init__(self, plain: trio.SocketStream, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._records = TlsRecords()
        counted = _Counted(plain, self._records)
        self._tls = trio.SSLStream(
            counted,
            context,
            server_hostname=server_name,
            server_side=server_name is None,
            https_compatible=True,
        )

    async def do_handshake(self) -> None:
        """Wait until the handshake is done.

        Raises:
            trio.BrokenResourceError: it failed.
        """
        await self._tls.do_handshake()
        self._records.is_handshaken = True

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received = await self._tls.receive_some(max_bytes)
        self._records.with_data += 1
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._tls.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._tls.aclose()

"""Put TLS around a stream, of HTTP or of a link: the broker's own session (``tls_session.py``) and a stream below it.

1. A read decrypts all that has arrived, of however many records, and no more than `TlsRecords.receive_bytes` at once.
2. One piece is sent at a time, in the order in which it was encrypted. Bytes of TLS itself (an answer to a request for
   new keys) go out when nothing else is being sent, or after that.
3. A server of TLS 1.2 may negotiate again. Until that is done nothing can be encrypted, so a sender waits for received
   data, and receives itself if no other task does. Of data that arrives meanwhile and that no task asks for, at most
   `UNASKED_BYTES_MAX` are kept.
4. When a send is cancelled a part of a record may be under way: after that, or when TLS has failed, everything fails.
5. No peer can make the broker work without sending anything useful: see ``tls_records.py``.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

import trio

from warren.server.network.tls_session import TlsSession

WRITE_BYTES: Final = 262144  # encrypted at a time
UNASKED_BYTES_MAX: Final = 1 << 20


class TlsStream(trio.abc.Stream):
    """The stream above. `context` is that of a server, or that of a client for the server called `server_name`.

    Raises:
        OSError, ValueError: `server_name` is not a host name.
    """

    def __init__(self, plain: trio.abc.Stream, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._plain = plain
        self._session = TlsSession(context, server_name)
        self._said: bytes = b""  # decrypted, beyond the requested bytes
        self._sending = trio.Lock()
        self._is_receiving = False
        self._receives = 0
        self._waiting = trio.lowlevel.ParkingLot()  # for what another task receives
        self._failed = False
        self._closed = False

    async def do_handshake(self) -> None:
        """Wait until the handshake is done.

        Raises:
            trio.BrokenResourceError: it failed.
        """
        session = self._session
        try:
            if session.is_client:
                session.begin()
                await self._send_own_words()
            while not session.is_handshaken:
                session.handshake(bytes(await self._plain.receive_some(session.receive_bytes())))
                await self._send_own_words()
            # Data that came right after the handshake is already in the session, not in the stream below.
            self._said = session.decrypted(None) or b""
            await self._send_own_words()
        except OSError as error:
            with contextlib.suppress(trio.BrokenResourceError):
                await self._send_own_words()  # the reason for the failure
            raise self._broken(error) from error

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if max_bytes is not None and max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        self._check_usable()
        if self._said or self._session.is_ended:
            await trio.lowlevel.checkpoint()
        while not self._said and not self._session.is_ended:
            await self._hear()
            if not self._sending.locked():
                await self._send_own_words()
        return self._up_to(max_bytes)

    async def _hear(self) -> None:
        """Wait until bytes were received, by this task or by the one that does so already."""
        if self._is_receiving:
            await self._waiting.park()
            self._check_usable()
            return
        self._is_receiving = True
        try:
            data = await self._plain.receive_some(self._session.receive_bytes())
            said = self._session.decrypted(bytes(data))
        except OSError as error:
            raise self._broken(error) from error
        finally:
            self._is_receiving = False
            self._receives += 1
            self._waiting.unpark_all()
        if said:
            self._said = self._said + said if self._said else said

    def _up_to(self, max_bytes: int | None) -> bytes:
        """Take at most `max_bytes` of the decrypted bytes."""
        said = self._said
        if max_bytes is None or len(said) <= max_bytes:
            self._said = b""
            return said
        self._said = said[max_bytes:]
        return said[:max_bytes]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        async with self._sending:
            self._check_usable()
            with memoryview(data) as view:
                for start in range(0, len(view), WRITE_BYTES):
                    await self._send(await self._encrypted(bytes(view[start : start + WRITE_BYTES])))
            while self._session.has_own_words():
                await self._send(self._session.outgoing())

    async def _encrypted(self, plain: bytes) -> bytes:
        """Return the bytes to send for `plain`, when TLS is not being negotiated."""
        while True:
            try:
                return self._session.encrypted(plain)
            except ssl.SSLWantReadError:
                before = self._receives
                await self._send(self._session.outgoing())
                if self._receives != before:
                    continue  # the awaited bytes may have come while that was sent
                if self._session.is_ended or len(self._said) > UNASKED_BYTES_MAX:
                    raise self._broken(ConnectionAbortedError("the peer does not continue TLS")) from None
                await self._hear()
            except OSError as error:
                raise self._broken(error) from error

    async def _send(self, encrypted: bytes) -> None:
        try:
            await self._plain.send_all(encrypted)
        except trio.Cancelled:
            self._failed = True
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """End our half, unless a send is under way; close without waiting for an answer."""
        sound = self._session.is_handshaken and not self._failed and not self._closed and not self._sending.locked()
        self._closed = True
        try:
            if sound:
                self._session.end()
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._send_own_words()
        finally:
            await self._plain.aclose()

    def _check_usable(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._failed:
            raise trio.BrokenResourceError("this stream is broken")

    async def _send_own_words(self) -> None:
        """Send the bytes of TLS itself, if there are any."""
        if self._session.has_own_words():
            async with self._sending:
                await self._send(self._session.outgoing())

    def _broken(self, error: OSError) -> trio.BrokenResourceError:
        self._failed = True
        return trio.BrokenResourceError(str(error))

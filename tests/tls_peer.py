"""A TLS peer that can ask for new keys, which Python's `ssl` cannot: OpenSSL through ctypes, over memory buffers.

It has what the attacks need: a handshake over a socket, records of any size, and KeyUpdate messages by the thousand.
"""

from __future__ import annotations

import ctypes
import socket
from pathlib import Path
from typing import Any, Final

_DONE: Final = 1
_PEM: Final = 1
_READ_BYTES: Final = 1 << 16
_UPDATE_REQUESTED: Final = 1


def _library() -> Any:
    ssl = ctypes.CDLL("libssl.so.3")
    crypto = ctypes.CDLL("libcrypto.so.3")
    for library, name, result, arguments in (
        (ssl, "TLS_client_method", ctypes.c_void_p, []),
        (ssl, "TLS_server_method", ctypes.c_void_p, []),
        (ssl, "SSL_CTX_new", ctypes.c_void_p, [ctypes.c_void_p]),
        (ssl, "SSL_CTX_free", None, [ctypes.c_void_p]),
        (ssl, "SSL_CTX_use_certificate_chain_file", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
        (ssl, "SSL_CTX_use_PrivateKey_file", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        (ssl, "SSL_new", ctypes.c_void_p, [ctypes.c_void_p]),
        (ssl, "SSL_free", None, [ctypes.c_void_p]),
        (ssl, "SSL_set_bio", None, [ctypes.c_void_p] * 3),
        (ssl, "SSL_accept", ctypes.c_int, [ctypes.c_void_p]),
        (ssl, "SSL_connect", ctypes.c_int, [ctypes.c_void_p]),
        (ssl, "SSL_do_handshake", ctypes.c_int, [ctypes.c_void_p]),
        (ssl, "SSL_key_update", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
        (ssl, "SSL_renegotiate", ctypes.c_int, [ctypes.c_void_p]),
        (ssl, "SSL_read", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        (ssl, "SSL_write", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        (crypto, "BIO_s_mem", ctypes.c_void_p, []),
        (crypto, "BIO_new", ctypes.c_void_p, [ctypes.c_void_p]),
        (crypto, "BIO_read", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        (crypto, "BIO_write", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
        setattr(ssl, name, function)
    return ssl


class TlsPeer:
    """A TLS connection over `sock`; once the handshake is done, its records are returned, not sent.

    It is the client, or with the PEM file of a `certificate` and its key the server.
    """

    def __init__(self, sock: socket.socket, certificate: Path | None = None) -> None:
        self._openssl = openssl = _library()
        self.sock = sock
        if certificate is None:
            self._context = openssl.SSL_CTX_new(openssl.TLS_client_method())
            step = openssl.SSL_connect
        else:
            self._context = openssl.SSL_CTX_new(openssl.TLS_server_method())
            file = bytes(certificate)
            assert openssl.SSL_CTX_use_certificate_chain_file(self._context, file) == _DONE
            assert openssl.SSL_CTX_use_PrivateKey_file(self._context, file, _PEM) == _DONE
            step = openssl.SSL_accept
        self._tls = self._openssl.SSL_new(self._context)
        self._incoming = self._openssl.BIO_new(self._openssl.BIO_s_mem())
        self._outgoing = self._openssl.BIO_new(self._openssl.BIO_s_mem())
        self._openssl.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        while step(self._tls) != _DONE:
            self.sock.sendall(self._made())
            received = self.sock.recv(_READ_BYTES)
            if not received:
                raise ConnectionError("the other side hung up")
            self._openssl.BIO_write(self._incoming, received, len(received))
        self.sock.sendall(self._made())

    def close(self) -> None:
        """Hang up without a word."""
        self._openssl.SSL_free(self._tls)
        self._openssl.SSL_CTX_free(self._context)
        self.sock.close()

    def record(self, data: bytes) -> bytes:
        """Return `data` as a record."""
        self._openssl.SSL_write(self._tls, data, len(data))
        return self._made()

    def records(self, data: bytes, size: int) -> bytes:
        """Return `data` in records of `size` bytes."""
        return b"".join(self.record(data[at : at + size]) for at in range(0, len(data), size))

    def key_updates(self, count: int) -> bytes:
        """Return `count` KeyUpdate messages, each of which asks for one in return."""
        made: list[bytes] = []
        for _ in range(count):
            assert self._openssl.SSL_key_update(self._tls, _UPDATE_REQUESTED) == 1
            self._openssl.SSL_do_handshake(self._tls)
            made.append(self._made())
        return b"".join(made)

    def renegotiation(self) -> bytes:
        """Return a server's request to renegotiate, with TLS 1.2."""
        assert self._openssl.SSL_renegotiate(self._tls) == 1
        self._openssl.SSL_do_handshake(self._tls)
        return self._made()

    def heard(self, received: bytes) -> tuple[bytes, bytes]:
        """Return the data in `received`, and the bytes to send for it."""
        self._openssl.BIO_write(self._incoming, received, len(received))
        buffer = ctypes.create_string_buffer(_READ_BYTES)
        said = b""
        while (size := self._openssl.SSL_read(self._tls, buffer, _READ_BYTES)) > 0:
            said += buffer.raw[:size]
        return said, self._made()

    def _made(self) -> bytes:
        buffer = ctypes.create_string_buffer(_READ_BYTES)
        made = b""
        while (size := self._openssl.BIO_read(self._outgoing, buffer, _READ_BYTES)) > 0:
            made += buffer.raw[:size]
        return made

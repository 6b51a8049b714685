"""TLS of a link's connection, and its settings, made from files that its URI names.

A user who may set a parameter chooses these names. Rules of the whole process say which files may be read, and by how
many threads at a time (``server/regular_files.py``, ``server/threads.py``).
"""

from __future__ import annotations

import ssl

import trio

from warren.links.amqp_uri import BrokerUri
from warren.server.network.tls_stream import TlsStream
from warren.server.regular_files import copied, read_regular
from warren.server.threads import LINKS, in_thread


async def client_context(uri: BrokerUri) -> ssl.SSLContext:
    """Return the TLS settings of `uri`.

    Raises:
        OSError, ValueError: a file cannot be read or used.
    """
    return await in_thread(LINKS, _make, uri, abandon=True)


def client_stream(plain: trio.SocketStream, context: ssl.SSLContext, uri: BrokerUri) -> TlsStream:
    """Return TLS over `plain`, before the handshake.

    Raises:
        OSError, ValueError: the expected name of the server is not a valid host name.
    """
    name = uri.host if uri.server_name in (None, "disable") else uri.server_name
    return TlsStream(plain, context, name)


def _make(uri: BrokerUri) -> ssl.SSLContext:
    if uri.ca_file is not None:
        with copied(read_regular(uri.ca_file)) as path:
            context = ssl.create_default_context(cafile=path)
    elif uri.verify:
        context = ssl.create_default_context()
    else:
        # Do not load the authorities of the system: they take most of a megabyte for each link.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not uri.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif uri.server_name == "disable":
        context.check_hostname = False
    if uri.certificate_file is not None:
        certificate = read_regular(uri.certificate_file)
        key = certificate if uri.key_file is None else read_regular(uri.key_file)
        with copied(certificate) as certificate_path, copied(key) as key_path:
            # Without a password OpenSSL would stop and ask the terminal.
            context.load_cert_chain(certificate_path, key_path, lambda: uri.key_password or "")
    return context

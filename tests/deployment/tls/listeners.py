"""Servers for tests of the way to them: with a certificate, or without TLS."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"


@contextmanager
def listening(tls: Path | None) -> Iterator[int]:
    """A server that shakes hands with the certificate in a folder, or answers anything with plain words."""
    with socket.create_server((HOST, 0)) as listener:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
        thread = threading.Thread(target=answer, args=(listener, context), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def answer(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                if context:
                    context.wrap_socket(connection, server_side=True).close()
                else:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                pass

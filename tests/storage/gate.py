"""A real HTTP server that stands before an object store, and answers in its place where a test wants that."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from threading import Thread

from werkzeug import Request, Response
from werkzeug.serving import WSGIRequestHandler, make_server

_OF_ONE_HOP = {"connection", "host", "keep-alive", "transfer-encoding"}


@dataclass
class Gate:
    """What went through, and what does not go through."""

    endpoint: str
    upstream: str
    """Host and port of the store."""
    answer: Callable[[Request], Response | None] = lambda request: None
    """What is answered in the store's place; null where the store answers itself."""
    seen: list[str] = field(default_factory=list)
    """Method and path of every request."""

    def __call__(self, request: Request) -> Response:
        body = request.get_data()
        self.seen.append(f"{request.method} {request.path}")
        return self.answer(request) or self._forward(request, body)

    def _forward(self, request: Request, body: bytes) -> Response:
        connection = HTTPConnection(self.upstream, timeout=30)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_HOP}
            connection.request(request.method, request.environ["RAW_URI"], body or None, headers)
            reply = connection.getresponse()
            kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in _OF_ONE_HOP]
            return Response([reply.read()], reply.status, kept)  # a list, so that the length of what HEAD asks for is kept
        finally:
            connection.close()


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *args: object) -> None:
        pass


def refusal(status: int, code: str, **headers: str) -> Response:
    """An error as S3 tells it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told by the gate</Message></Error>"
    return Response(body, status, {name.replace("_", "-"): value for name, value in headers.items()}, "application/xml")


@contextmanager
def gate(upstream: str = "") -> Iterator[Gate]:
    """Run a gate before a store for as long as the block lasts."""
    door = Gate("", upstream)
    server = make_server("127.0.0.1", 0, Request.application(door), threaded=True, request_handler=_Quiet)
    door.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""A web server that answers ranged requests, and injects faults by seed."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PASSING = ("reset", "unavailable", "short", "slow", "stall")  # a later try may succeed
MOST_IN_A_ROW = 3  # faults of one range: less than the client's tries
PIECES, SLOW_S = 4, 0.02  # a slow body comes in so many pieces, so far apart


class ObjectServer(ThreadingHTTPServer):
    """Serves the files of a folder.

    Parameters
    ----------
    folder : Path
        Its files.
    share : float
        Of the ranged requests that meet one of PASSING.
    seed : int
        Of the faults.
    stall_s : float
        Pause in the middle of a body: longer than the client waits.
    lasting : str, optional
        Fault of all ranged requests after the first `after`: "stall", or "replaced" (another version).
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        folder: Path,
        share: float,
        seed: int,
        stall_s: float,
        lasting: str | None = None,
        after: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.stall_s, self.injected = folder, stall_s, Counter[str]()
        self._share, self._lasting, self._left = share, lasting, after
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._in_a_row = Counter[tuple[str, str]]()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve during the block."""
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()

    def next_fault(self, name: str, span: str) -> str | None:
        """Return the fault of a ranged request, and count it."""
        with self._lock:
            key, self._left = (name, span), self._left - 1
            if self._lasting and self._left < 0:
                fault = self._lasting
            elif self._rng.random() < self._share and self._in_a_row[key] < MOST_IN_A_ROW:
                fault = self._rng.choice(PASSING)
                self._in_a_row[key] += fault != "slow"
            else:
                del self._in_a_row[key]
                return None
            self.injected[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ObjectServer

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer with size and version."""
        self._answer(head=True)

    def do_GET(self) -> None:
        """Answer with an object or a range of it."""
        self._answer(head=False)

    def _answer(self, head: bool) -> None:
        path, asked = self.server.folder / self.path.lstrip("/"), self.headers.get("Range", "")
        if not path.is_file():
            self._send(404, b"")
            return
        content, etag = path.read_bytes(), f'"{path.stat().st_mtime_ns:x}"'
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if span is None:
            self._send(200, b"" if head else content, len(content), {"ETag": etag})
            return
        low, high = int(span[1]), int(span[2])
        fault = self.server.next_fault(self.path, asked)
        ranged = {"ETag": '"other"' if fault == "replaced" else etag}
        ranged["Content-Range"] = f"bytes {low}-{high}/{len(content)}"
        self._ranged(content[low : high + 1], ranged, fault)

    def _ranged(self, body: bytes, headers: dict[str, str], fault: str | None) -> None:
        half = len(body) // 2
        if fault == "unavailable":
            self._send(503, b"later")
        elif fault == "short":
            self._send(206, body[:half], half, headers)
        elif fault in ("reset", "stall"):
            self._send(206, body[:half], len(body), headers)
            self.close_connection = True
            if fault == "stall":
                time.sleep(self.server.stall_s)
            else:  # no orderly end
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()
        elif fault == "slow":
            self._send(206, b"", len(body), headers)
            for number in range(PIECES):
                time.sleep(SLOW_S)
                self.wfile.write(body[number * len(body) // PIECES : (number + 1) * len(body) // PIECES])
        else:
            self._send(206, body, len(body), headers)

    def _send(
        self, status: int, body: bytes, length: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """Serve a connection; the client may leave at any moment."""
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        """Close the connection, which may be gone."""
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

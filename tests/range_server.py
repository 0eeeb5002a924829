"""A small web server in this process that answers ranged requests, and faults on demand."""

import contextlib
import re
import socket
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

FAULTS = ("reset", "unavailable", "short", "slow")
SLOW_S = 0.2
DRIPS, DRIP_S = 4, 0.02  # a dripping body comes in so many pieces, so far apart
PAGE = 2  # objects of a page of a listing


class RangeServer:
    """Serves the files of a folder with ranges and ETags, and lists its folders as the buckets of S3.

    `fault(number, name)` returns what goes wrong with request `number` of rows (a ranged one): one of FAULTS,
    "replaced" (another version), "whole" (the range is ignored), "stalled" (until the server ends), "drip",
    "stall" (for `stall_s` in the middle of the body), or None.
    """

    def __init__(self, folder, tls=None, host="127.0.0.1"):
        self.folder, self.fault, self.etags = folder, lambda number, name: None, True
        self.quotes = True  # around ETags in listings; Azure gives none
        self.more_names = []  # of objects that no folder can hold, in listings
        self.more_bytes = 0  # size of each of these
        self.any = None  # the file at addresses where there is none
        self.redirect = None  # another server, to which all requests are sent
        self.echo = None  # (status, form) of answers that repeat the headers of the request
        self.headers = []  # of all requests
        self.failing_pages = set()  # numbers of the requests for a page of a listing that fail
        self.pages = 0
        self.stall_s = 0.6
        self.released = threading.Event()  # ends all stalls
        self.requests, self.lock = [], threading.Lock()
        self.in_flight = self.most_in_flight = 0
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server((host, 0), handler)
        if tls:  # an SSLContext with a certificate
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://{host}:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self):
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def count(self, more):
        with self.lock:
            self.in_flight += more

    def clear(self):
        with self.lock:
            self.requests.clear()

    def next_fault(self, name, span):
        with self.lock:
            self.requests.append((name, span))
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            return self.fault(len(self.requests), name)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # connections that are made at once: the kernel would delay others by seconds


def _etag(path):
    status = path.stat() if path.is_file() else None
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"' if status else '""'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the kernel holds each body back for 40 ms
    owner: RangeServer

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self._answer(head=True)

    def do_GET(self):
        self.owner.count(1)
        self._answer(head=False)

    def _answer(self, head):
        self.owner.headers.append(dict(self.headers))
        if self.owner.redirect:
            return self._send(307, b"", {"Location": self.owner.redirect + self.path})
        if self.owner.echo:
            return self._echo(*self.owner.echo)
        place = urlsplit(self.path)
        path = self.owner.folder / unquote(place.path).lstrip("/")
        if "list-type=2" in place.query:
            return self._list(path, parse_qs(place.query))
        if self.owner.any and (b"\0" in bytes(path) or not path.is_file()):
            path = self.owner.any
        if not path.is_file():
            return self._send(404, b"")
        content, etag = path.read_bytes(), _etag(path)
        span = _span(self.headers.get("Range", ""), len(content))
        fault = self.owner.next_fault(self.path, span) if span else None
        if fault == "stalled":
            self.owner.released.wait(30)
        if fault == "slow":
            time.sleep(SLOW_S)
        if fault == "unavailable":
            return self._send(503, b"later")
        if fault == "replaced":
            etag = '"another"'
        headers = {"ETag": etag} if self.owner.etags else {}
        if not span or fault == "whole":
            return self._send(200, b"" if head else content, headers, len(content))
        low, high = span[0], span[1] + 1
        body = content[low:high]
        headers["Content-Range"] = f"bytes {low}-{high - 1}/{len(content)}"
        if fault in ("reset", "stall"):
            return self._end_early(body, headers, fault)
        if fault == "drip":
            return self._drip(body, headers)
        if fault == "short":
            body = body[:-1]
        return self._send(206, body, headers)

    def _end_early(self, body, headers, fault):
        self.close_connection = True
        self._send(206, body[: len(body) // 2], headers, len(body))
        if fault == "stall":
            time.sleep(self.owner.stall_s)
        else:  # no orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    def _drip(self, body, headers):
        self._send(206, b"", headers, len(body))
        for number in range(DRIPS):
            time.sleep(DRIP_S)
            self.wfile.write(body[number * len(body) // DRIPS : (number + 1) * len(body) // DRIPS])

    def handle(self):
        with contextlib.suppress(OSError, ValueError):  # the client may leave at any moment
            super().handle()

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def _echo(self, status, form):
        """Answer with all headers of the request, each in this form, and as the version of an object."""
        values = [part for value in self.headers.values() for part in re.split("[ ,=/]", value) if part]
        body = "\n".join(form.format(value) for value in (*self.headers.values(), *values))
        version = self.headers.get("x-amz-security-token", "none")
        self._send(status, body.encode(), {"ETag": f'"{version}"', "Last-Modified": self.date_time_string()})

    def _list(self, bucket, query):
        if not bucket.is_dir():
            return self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        self.owner.pages += 1
        if self.owner.pages in self.owner.failing_pages:
            return self._send(503, b"later")
        prefix, start, after = (
            query.get(name, [""])[0] for name in ("prefix", "continuation-token", "start-after")
        )
        names = sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())
        names = [*self.owner.more_names, *names]
        rest = [name for name in names if name.startswith(prefix) and name > after][int(start or 0) :]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{now}</LastModified>"
            f"<Size>{self._listed_size(name, bucket)}</Size>"
            f"<ETag>{escape(self._listed_etag(bucket / name[:255]))}</ETag></Contents>"
            for name in rest[:PAGE]
        )
        more = f"<NextContinuationToken>{int(start or 0) + PAGE}</NextContinuationToken>" * (len(rest) > PAGE)
        self._send(200, f"<ListBucketResult>{entries}{more}</ListBucketResult>".encode())

    def _listed_size(self, name, bucket):
        return self.owner.more_bytes if name in self.owner.more_names else (bucket / name).stat().st_size

    def _listed_etag(self, path):
        return _etag(path) if self.owner.quotes else _etag(path).strip('"')

    def _send(self, status, body, headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":  # before the body: the client that has it may send the next request
            self.owner.count(-1)
        self.wfile.write(body)


def _span(asked, size):
    """The first and last byte of a range, or of one that is counted from the end; None without one."""
    if match := re.fullmatch(r"bytes=(\d+)-(\d+)", asked):
        return int(match[1]), int(match[2])
    match = re.fullmatch(r"bytes=-(\d+)", asked)
    return (size - int(match[1]), size - 1) if match else None

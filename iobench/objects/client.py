"""Client of one object store: ranged reads that are pinned, counted and retried, and uploads."""

from __future__ import annotations

import contextlib
import functools
import http.client
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from iobench.base.credentials import known_secrets
from iobench.base.errors import CorruptArtifact, IobenchError, LoaderFailed, needing
from iobench.objects.request_log import LOG
from iobench.objects.store_errors import error_of, is_throttle, may_pass, redirected
from iobench.objects.url import endpoints, only_this_host, s3_endpoint

RETRIES = 6
FIRST_RETRIES = 1  # of a request that shows whether the store is there at all
PAUSE_S = 0.05  # before the first retry, on average; doubled with each further one: 3 s for all of RETRIES
MAX_PAUSE_S = 5.0
PIECE_BYTES = 256 << 10  # least of an answer that is not kept
TIMEOUT_S = 30.0  # of a request with its answer
LEAST_TIMEOUT_S = 5.0  # where little of the time of a run is left
REDIRECT_S = 2.0  # to see whether a server redirects
CONNECTIONS = 16  # for small requests that do not depend on each other
LISTED = 50  # objects that a listing yields at once
PART_BYTES = 16 << 20  # of a multipart upload, which has at most 10,000 parts: 156 GiB

T = TypeVar("T")

_used_by: list[int] = []  # the process in which obstore has its threads; its forked children see it, too


@dataclass(frozen=True)
class StoredObject:
    """Size and version of an object; `etag` is empty where the server gives none."""

    size: int
    etag: str


class _ShortBody(Exception):
    """An answer ended before all of its bytes came."""


class ObjectStore:
    """One prefix of an object store, or one folder of a web server.

    Endpoint, region and credentials are taken from the environment by obstore. Reads that fail for a reason
    that may pass (reset, timeout, 5xx, short body) are sent again up to `retries` times, unless `stopping`,
    and not after the moment `until` of `time.monotonic`.

    Raises LoaderFailed if the store cannot be reached or refuses, or in a forked child of a process that used
    one: obstore would wait for threads that the child does not have. CorruptArtifact if an object is missing
    or was replaced.
    """

    def __init__(self, url: str, retries: int = RETRIES, until: float = math.inf) -> None:
        with needing(f"reading {url.partition('://')[0]}://", "s3"):
            import obstore
            from obstore.store import from_url
        self.url, self._retries, self._until = url, retries, until
        self._obstore, self._fails = obstore, obstore.exceptions
        self.stopping = False  # True if nothing waits for the requests in flight any more
        _check_process(url)
        timeout_s = min(TIMEOUT_S, max(LEAST_TIMEOUT_S, until - time.monotonic()))
        client: dict[str, Any] = {"timeout": f"{timeout_s * 1000:.0f}ms", **only_this_host(url)}
        server = s3_endpoint() if url.startswith("s3://") else url
        if "proxy_url" in client and any(_redirects(one, url.partition("://")[2]) for one in endpoints()):
            raise redirected(url)
        if server and server.startswith("http://"):
            client["allow_http"] = True
        options: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
        if url.startswith("file://"):
            options = {"mkdir": True}
        self._store = self._retried(lambda: from_url(url, **options), "", 0)

    def get(self, name: str, start: int, length: int, etag: str) -> memoryview:
        """Return bytes of an object; `etag` pins its version if it is not empty."""
        options: dict[str, Any] = {"range": (start, start + length)}

        def request() -> memoryview:
            answer = self._obstore.get(self._store, name, options=options)
            if etag and (found := _version(answer.meta)) != etag:
                raise self._replaced(name, etag, found)
            return self._whole(answer.bytes(), length)

        return self._retried(lambda: self._logged(request, name, start), name)

    def consume(self, name: str, start: int, length: int, came: Callable[[int], None]) -> None:
        """Request bytes of an object and drop them; `came` gets the size of each piece of the answer."""

        def request() -> None:
            answer = self._obstore.get(self._store, name, options={"range": (start, start + length)})
            for piece in answer.stream(min_chunk_size=PIECE_BYTES):
                came(len(piece))

        self._retried(request, name)

    def read(self, name: str) -> bytes:
        """Return a whole small object."""
        request = lambda: memoryview(self._obstore.get(self._store, name).bytes())  # noqa: E731
        return bytes(self._retried(lambda: self._logged(request, name), name, FIRST_RETRIES))

    def head(self, name: str) -> StoredObject:
        """Return size and version of an object."""
        meta = self._retried(lambda: self._obstore.head(self._store, name), name, FIRST_RETRIES)
        return StoredObject(int(meta["size"]), _version(meta))

    def below(self) -> Iterator[tuple[str, StoredObject]]:
        """Yield the objects below the prefix with their names, as the pages of the listing come.

        After a page that failed the listing goes on behind the last object that came.
        """
        last: str | None = None
        pages: Iterator[Any] | None = None

        def next_page() -> Any:
            nonlocal pages
            try:
                pages = pages or iter(self._obstore.list(self._store, offset=last, chunk_size=LISTED))
                return next(pages, ())
            except Exception:
                pages = None
                raise

        while page := self._retried(next_page, "", FIRST_RETRIES if last is None else None):
            for meta in page:
                last = meta["path"]
                yield last, StoredObject(int(meta["size"]), _version(meta))

    def check_versions(self, objects: Mapping[str, StoredObject]) -> None:
        """Raise CorruptArtifact if an object has another version than this one, or is missing."""
        pinned = {name: one.etag for name, one in objects.items() if one.etag}
        with ThreadPoolExecutor(CONNECTIONS, "iobench-versions") as pool:
            for name, found in zip(pinned, pool.map(self.head, pinned), strict=True):
                if found.etag != pinned[name]:
                    raise self._replaced(name, pinned[name], found.etag)

    def find(self, name: str) -> StoredObject | None:
        """Return size and version of an object; None if there is no such object."""
        try:
            return self.head(name)
        except CorruptArtifact as error:
            if error.kind != "missing-object":
                raise
            return None

    def upload(self, name: str, path: Path, sent: Callable[[int], None]) -> StoredObject:
        """Upload a file in parts; a failure or Ctrl-C aborts all of it. `sent` gets the size of each part."""
        return self.put(name, _parts(path, sent), path.stat().st_size)

    def put(self, name: str, content: bytes | Iterator[bytes], size: int, new: bool = False) -> StoredObject:
        """Store an object; `new` raises ArtifactExists if there is one of that name."""
        mode = "create" if new else "overwrite"
        options: dict[str, Any] = {"mode": mode} if isinstance(content, bytes) else {"chunk_size": PART_BYTES}
        made = self._retried(lambda: self._obstore.put(self._store, name, content, **options), name, 0)
        # a folder's tags are not those that a web server will give its files
        return StoredObject(size, "" if self.url.startswith("file://") else _version(made))

    def delete(self, names: list[str]) -> None:
        """Remove objects."""
        for name in names:
            self._retried(lambda name=name: self._obstore.delete(self._store, name), name, 0)  # type: ignore[misc]

    def close(self) -> None:
        """Release what is held between requests: nothing."""

    def _logged(self, request: Callable[[], memoryview], name: str, start: int = 0) -> memoryview:
        """Return the bytes of an object from `start` on that a request gets, and count it with its time."""
        began = time.perf_counter()
        got = request()
        LOG.succeeded(time.perf_counter() - began, f"{self.url}/{name}", start, len(got))
        return got

    def _whole(self, got: Any, length: int) -> memoryview:
        if len(got) != length:
            raise _ShortBody(f"{len(got)} bytes of {length}")
        return memoryview(got)

    def _retried(self, request: Callable[[], T], name: str, most: int | None = None) -> T:
        """Return what a request returns, which is sent again at most so often; raise iobench's errors."""
        left, pause_s = self._retries if most is None else min(self._retries, most), PAUSE_S
        while True:
            try:
                return request()
            except IobenchError:
                raise
            except Exception as error:  # noqa: BLE001 - translated, or sent again
                ended = not left or self.stopping or time.monotonic() > self._until
                if ended or not may_pass(error, self._fails):
                    raise error_of(error, self._fails, f"{self.url}/{name}".rstrip("/")) from None
                LOG.retried(is_throttle(error))
                time.sleep(pause_s * random.uniform(0.5, 1.5))
                left, pause_s = left - 1, min(2 * pause_s, MAX_PAUSE_S)

    def _replaced(self, name: str, etag: str, found: str) -> CorruptArtifact:
        return CorruptArtifact(
            "the object was replaced since its version was recorded",
            "replaced",
            f"{self.url}/{name}",
            expected=f"version {etag}",
            found=f"version {found}" if found else None,
            hint="open the dataset again, or record it again: 'iobench prepare --to … --overwrite', or "
            "'iobench add … --overwrite' if other programs write it",
        )


def _version(meta: Mapping[str, Any]) -> str:
    """Return an object's ETag without quotes, which Azure leaves out in listings; empty if it has none."""
    return str(meta["e_tag"] or "").strip('"')


def check_versions_are_own(url: str, versions: Iterable[str]) -> None:
    """Raise LoaderFailed if a server repeats a credential as a version, which a manifest would store."""
    text = "\n".join(versions)
    if any(secret in text for secret in known_secrets()):
        problem = "the server repeats credentials as the ETag of an object"
        hint = "do not use this server, and change the credentials"
        raise LoaderFailed(problem, "credentials-in-answer", url, hint=hint)


@functools.cache
def _redirects(endpoint: str, path: str) -> bool:
    """Return True if a server redirects an address to another scheme or port of its host.

    obstore would follow, with the session token: `only_this_host` names hosts alone. Sends no credentials.
    """
    own, ports = urlsplit(endpoint), {"http": 80, "https": 443}
    connect = http.client.HTTPSConnection if own.scheme == "https" else http.client.HTTPConnection
    try:
        with contextlib.closing(connect(own.hostname or "", own.port, timeout=REDIRECT_S)) as server:
            server.request("HEAD", f"{own.path.rstrip('/')}/{path}")
            other = urlsplit(urljoin(endpoint, server.getresponse().getheader("Location") or ""))
        origin, others = ((one.scheme, one.port or ports.get(one.scheme)) for one in (own, other))
    except (OSError, http.client.HTTPException, ValueError):  # which the first request meets, too
        return False
    return other.hostname == own.hostname and others != origin


def _check_process(url: str) -> None:
    if not _used_by:
        _used_by.append(os.getpid())
    if os.getpid() not in _used_by:
        problem = "an object store cannot be read in a forked process after its parent has read one"
        raise LoaderFailed(problem, "forked", url, hint="start processes with 'spawn' or 'forkserver'")


def _parts(path: Path, sent: Callable[[int], None]) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(PART_BYTES):
            yield part
            sent(len(part))

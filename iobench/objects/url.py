"""Addresses of datasets in object stores and on web servers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from iobench.base.credentials import holds_user, shown_address
from iobench.base.errors import InvalidSettings
from iobench.formats import StoreAddress

SCHEMES = ("s3", "gs", "az", "http", "https", "file")
ENDPOINT = "AWS_ENDPOINT_URL"  # variable that obstore and other clients of S3 read
NOWHERE = "127.0.0.1:0"  # to which no connection can be made
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_ENDPOINTS = (ENDPOINT, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")  # of which obstore reads each
# where obstore finds the credentials of a role
_ROLES = ("amazonaws.com", "amazonaws.com.cn", "169.254.169.254", "169.254.170.2", "169.254.170.23")

_PLAIN = re.compile(r"[^\x00-\x20\x7f?#\\]+")


def is_url(word: str) -> bool:
    """Return True if a dataset's name is an address and not a folder's name."""
    return "://" in word


def checked_url(word: str) -> str:
    """Return an address without its trailing slash; InvalidSettings if it cannot be one of a dataset."""
    parts = urlsplit(word)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        problem = f"address {shown_address(word)}"
        raise InvalidSettings(problem, "unknown-scheme", expected=known, found=parts.scheme)
    if parts.scheme != "file" and holds_user(word.partition("://")[2]):  # not shown: it may be a password
        raise InvalidSettings(
            "the address holds a user name or password",
            "credentials-in-url",
            hint="give credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
            "write an '@' in the name of an object as %40",
        )
    names = parts.path.split("/")
    if not _PLAIN.fullmatch(word) or ".." in names or "." in names or not (parts.netloc or parts.path):
        expected = f"{parts.scheme}://PLACE/PREFIX, without spaces, queries and '..'"
        hint = "write a space in a name as %20, '#' as %23, '?' as %3F"
        raise InvalidSettings(f"address {shown_address(word)!r}", "invalid-url", expected=expected, hint=hint)
    return word.rstrip("/")


def use_endpoint(endpoint: str | None) -> None:
    """Make an S3 endpoint that of this process and of those that it starts."""
    if endpoint is None:
        return
    os.environ[ENDPOINT] = _checked_endpoint(endpoint, "--s3-endpoint")


def s3_endpoint() -> str | None:
    """Return the endpoint of the environment, None for that of AWS; InvalidSettings if it is no address."""
    endpoint = os.environ.get(ENDPOINT)
    return _checked_endpoint(endpoint, ENDPOINT) if endpoint else None


def _checked_endpoint(endpoint: str, name: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in endpoint:
        raise InvalidSettings(name, "invalid-url", expected="an address like http://host:9000")
    return endpoint


def endpoints() -> list[str]:
    """Return all endpoints of S3 that the environment names."""
    return [os.environ[name] for name in _ENDPOINTS if os.environ.get(name)]


def only_this_host(url: str) -> dict[str, str]:
    """Return options of obstore by which a server of S3 cannot redirect a request to another host.

    obstore follows redirects, and sends the session token along. With these, all hosts but that of the
    endpoint and those of AWS have a proxy that no connection reaches. There are none behind the user's own
    proxy, nor at an address without credentials, nor at AWS itself.
    """
    if not url.startswith("s3://") or not endpoints() or any(map(os.environ.get, PROXIES)):
        return {}
    own = [*endpoints(), os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")]
    hosts = [host for one in own if (host := urlsplit(one).hostname)]
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join((*hosts, *_ROLES))}


def upload_command(url: str, options: str = "") -> str:
    """Return the command that writes what is read at an address; a web server only shows a folder."""
    if url.startswith(("http://", "https://")):
        return (
            f"'iobench prepare --to file:///FOLDER{options}', where FOLDER is what the web server shows there"
        )
    return f"'iobench prepare --to {url}{options}'"


def s3_region() -> str:
    """Return the region for clients of other libraries, which need one with an endpoint, too."""
    return os.environ.get("AWS_REGION", "us-east-1")


def s3_is_public() -> bool:
    """Return whether requests to S3 are to be sent without credentials."""
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "on", "yes", "y")


def s3_options() -> dict[str, Any]:
    """Return the options of s3fs, fsspec's client of S3, which finds the credentials by itself."""
    return {"endpoint_url": s3_endpoint(), "anon": s3_is_public()}


def store_address(url: str, names: Collection[str]) -> StoreAddress:
    """Return an address for the library of a format, with what the environment says of S3."""
    return StoreAddress(url, names, s3_endpoint(), s3_region(), s3_is_public())

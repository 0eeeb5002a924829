"""Errors of an object store in the terms of iobench, without its addresses and credentials.

`fails` are the classes of errors of obstore.
"""

from __future__ import annotations

import os
import re
from typing import Any

from iobench.base.errors import ArtifactExists, CorruptArtifact, IobenchError, LoaderFailed
from iobench.objects.url import ENDPOINT, NOWHERE, PROXIES

_NO_CREDENTIALS = "169.254.169.254"  # the last place where credentials are looked for
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")  # of S3, of Azure
_DENIED = ("ExpiredToken", "InvalidToken")  # of S3, which says so by status 400
_ELSEWHERE = ("AuthorizationHeaderMalformed", "PermanentRedirect")  # of S3, for another region
_REDIRECTED = "redirect without LOCATION"  # obstore's words for the second one where it has no body
_EXPECTED = re.compile(r"expecting '([a-z0-9-]{1,32})'")  # of S3: the region
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")  # and why it is not trusted
_STATUS = re.compile(
    r"Server returned [a-z2-]*\s?status code: \d{3}[A-Za-z' -]{0,40}"
)  # without the answer's body
_CAUSE = re.compile(r'(?:message|error): "([^"\n]{1,200})"')  # of a connection that failed, from the system
_NOWHERE = f"{NOWHERE},"  # in the debug text of a connection that failed
_BEYOND = "UnexpectedRange"  # in the error for a range that the object does not have


def redirected(where: str) -> LoaderFailed:
    """Return the error for a store that sends requests to another scheme, host or port."""
    problem = "the store redirects to another server, to which iobench sends no credentials"
    hint = f"check {ENDPOINT}; if it is right, set it to the address of that server"
    return LoaderFailed(problem, "redirected", where, hint=hint)


def may_pass(error: Exception, fails: Any) -> bool:
    """Return True if a request that failed with this error may succeed when it is sent again."""
    if isinstance(error, (FileNotFoundError, fails.NotSupportedError)) or _is_denied(error, fails):
        return False
    text = str(error)
    refused = re.search(r"status code: 4(?!08|29)\d\d", text)
    lasting = refused or _CERTIFICATE.search(text) or _NOWHERE in text
    return not lasting and _BEYOND not in text and _NO_CREDENTIALS not in text


def is_throttle(error: Exception) -> bool:
    """Return True if the store refused a request because there are too many."""
    return bool(re.search(r"status code: (429|503)\b", str(error)))


def error_of(error: Exception, fails: Any, where: str) -> IobenchError:
    """Return the error of iobench for one of obstore, about the object at `where`."""
    text = str(error)
    match = re.search(r"<Code>([A-Za-z]{1,40})</Code>", text)  # else the server repeats what it was sent
    code = match[1] if match else None
    if isinstance(error, (FileExistsError, fails.AlreadyExistsError)):
        return ArtifactExists("there is a dataset", "other-data", where, hint="use --overwrite to replace it")
    if code in _NO_BUCKET:
        hint = f"check its name{endpoint_of(where, ' and the region')}"
        return CorruptArtifact("there is no such bucket", "missing-bucket", where, hint=hint)
    if isinstance(error, FileNotFoundError):
        return CorruptArtifact("there is no such object", "missing-object", where)
    if isinstance(error, fails.InvalidPathError):
        problem = "the name of an object cannot be one of a file"
        quoted = re.search(r'"([^"\n]{1,200})', text)
        expected, found = "names without '.', '..' and empty parts", quoted and quoted[1]
        hint = "rename the object, or name a prefix without it"
        return CorruptArtifact(problem, "invalid-name", where, expected=expected, found=found, hint=hint)
    if _BEYOND in text:
        return CorruptArtifact("the object is smaller than recorded", "truncated", where)
    if _NO_CREDENTIALS in text:
        hint = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (those of a profile: 'aws configure "
            "export-credentials --format env'), or AWS_SKIP_SIGNATURE=true for a public bucket"
        )
        return LoaderFailed("no credentials for the object store", "no-credentials", where, hint=hint)
    if _is_denied(error, fails):
        problem = "the object store refused access"
        hint = "check the credentials in the environment, and whether they may do this"
        return LoaderFailed(problem, "access-denied", where, found=code or "status 401 or 403", hint=hint)
    if code in _ELSEWHERE or _REDIRECTED in text:
        region = _EXPECTED.search(text)
        hint = f"set AWS_REGION={region[1]}" if region else "set AWS_REGION to that of the bucket"
        return LoaderFailed("the bucket is in another region", "wrong-region", where, found=code, hint=hint)
    if _NOWHERE in text:
        return redirected(where)
    if certificate := _CERTIFICATE.search(text):
        problem = "the certificate of the object store is not trusted"
        hint = (
            "check the address; if its certificate is one of your own authority, name the file of that: "
            "SSL_CERT_FILE=authority.pem"
        )
        return LoaderFailed(problem, "untrusted-certificate", where, found=certificate[1], hint=hint)
    if isinstance(error, fails.NotSupportedError):
        problem, hint = "the server does not answer ranged requests", "use a server that does, such as nginx"
        return LoaderFailed(problem, "no-ranges", where, expected="status 206 with the range", hint=hint)
    problem, hint = (
        "the object store did not answer as it should",
        f"check {_suspects(where, text)}, and try again",
    )
    return LoaderFailed(problem, "store-failed", where, found=code or _reason(text), hint=hint)


def _is_denied(error: Exception, fails: Any) -> bool:
    denied = isinstance(error, (fails.PermissionDeniedError, fails.UnauthenticatedError))
    text = str(error)
    expired = any(f"<Code>{code}<" in text for code in _DENIED)
    return denied or expired or bool(re.search(r"status code: 40[13]\b", text))  # of a listing


def _suspects(where: str, text: str) -> str:
    """Return what may be wrong where a request failed: its proxy, too, if no server answered it."""
    address = f"the address{endpoint_of(where)}"
    if "status code: 400" in text:  # of S3 for credentials that expired, and in another region
        return f"the credentials, which may have expired, AWS_REGION, {address}"
    proxies = [name for name in PROXIES if os.environ.get(name) and "status code" not in text]
    return ", ".join((address, *proxies))


def endpoint_of(where: str, more: str = "") -> str:
    """Return what else of a bucket's place to check, which only S3 has."""
    return f"{more} and the endpoint ({ENDPOINT} or --s3-endpoint)" if where.startswith("s3://") else ""


def _reason(text: str) -> str:
    """Return the status of an answer, the system's cause, or the end of the message's first line."""
    if status := _STATUS.search(text):
        return status[0].strip()
    if cause := _CAUSE.search(text):
        return cause[1]
    first = text.strip().splitlines()[0] if text.strip() else "no reason"
    return first.rpartition(" - ")[2].partition(": <")[0].rstrip(": ")[:200]

"""Text without credentials: addresses as they are shown, and what the environment holds, left out."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from urllib.parse import quote

HIDDEN = "…"
LEAST = 8  # characters of a credential that is searched for: a shorter one may be part of any word

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2})([^/\s].*)", re.DOTALL)  # a Path has only one slash
_IN_TEXT = re.compile(
    r"(?<=')(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/\s'][^']*"  # in quotes, also with spaces
    r"|(?<![\w./])(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/\s]\S*[^\s?.,;:'\")]"
)
_NAMES = tuple("KEY KEY_ID SECRET TOKEN PASSWORD PASSWD CREDENTIAL CREDENTIALS STRING BASE64".split())
_AWS_KEY_ID = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")  # in any text: a role's is in no variable


def shown_address(word: str) -> str:
    """Return an address without user, password, query and fragment, and any other text as it is."""
    if (match := _ADDRESS.fullmatch(word)) is None or match[1].startswith("file:"):
        return word
    scheme, rest = match.groups()
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    if holds_user(rest):
        place = place.rpartition("@")[2] if "@" in place else HIDDEN
    return scheme + place


def holds_user(rest: str) -> bool:
    """Return whether an address, without its scheme, holds a user; a password may have '/', '?' and '#'."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return "@" in host or ("@" in rest and ":" in host.rpartition("]")[2])


def scrubbed(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return a text without credentials of the environment, key ids of AWS, and parts of addresses.

    Those parts are what `shown_address` leaves out. For several texts, give `known_secrets` once.
    """
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, HIDDEN)
    text = _IN_TEXT.sub(lambda match: shown_address(match[0]), text) if ":/" in text else text
    return _AWS_KEY_ID.sub(HIDDEN, text)


def known_secrets() -> list[str]:
    """Return the credentials in the environment, also as addresses and XML write them, the longest first."""
    known = set[str]()
    for name, value in os.environ.items():
        found = []
        if name.upper().endswith(_NAMES) and (name.startswith("AWS_") or value[:1] not in "/~."):  # no file
            found = [value]
        elif "@" in value and (address := _ADDRESS.fullmatch(value)):  # such as a proxy's
            user = address[2].rpartition("@")[0]
            found = [user, user.partition(":")[2]]
        for secret in found:
            if len(secret) >= LEAST:
                known |= {secret, quote(secret), quote(secret, safe=""), html.escape(secret)}
    return sorted(known, key=len, reverse=True)

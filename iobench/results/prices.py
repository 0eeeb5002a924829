"""Prices of an object store, and what an epoch costs by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iobench.base.errors import InvalidSettings
from iobench.base.text import shortened
from iobench.base.units import GIB

THOUSAND = 1000  # requests, by which stores state the price of reading
PRICES_HELP = (  # of the option --prices
    "Prices of an object store, of 1,000 requests and of a GiB that leaves it, like 0.0004,0.09: shows what "
    "an epoch costs."
)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a store, in any currency."""

    thousand_requests: float  # price of 1,000 requests that read
    gib: float  # price of a GiB that leaves the store; 0 within a region, for most stores

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse ``0.0004,0.09``; raises InvalidSettings (``invalid-price``) for anything else."""
        try:
            thousand_requests, gib = map(float, text.split(","))
        except ValueError:
            thousand_requests = gib = math.nan
        if not (0 <= thousand_requests < math.inf and 0 <= gib < math.inf):
            raise InvalidSettings(
                "--prices",
                kind="invalid-price",
                expected="prices of 1,000 requests and of a GiB, like 0.0004,0.09",
                found=repr(shortened(text)),
            )
        return cls(thousand_requests=thousand_requests, gib=gib)

    def cost(self, requests: float, fetched_bytes: float) -> float:
        """Return what so many requests cost that fetch so many bytes."""
        return self.thousand_requests * requests / THOUSAND + self.gib * fetched_bytes / GIB


def check_prices(text: str, url: str | None) -> None:
    """Raise InvalidSettings for prices of data that are in no object store."""
    if text and not url:
        raise InvalidSettings(
            "--prices with data on a disk, where no request is paid for",
            kind="conflicting-options",
            hint="omit --prices",
        )

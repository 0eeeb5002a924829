"""Lance datasets in S3, read by Lance's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from iobench.base.errors import CorruptArtifact, LoaderFailed
from iobench.base.text import reason
from iobench.contrib.formats.lance.library import errors_as, lance
from iobench.contrib.formats.lance.reader import check_files, damage_as_error
from iobench.formats import StoreAddress


def opened_at(address: StoreAddress) -> Any:
    """Open the newest version of a dataset; CorruptArtifact if a file of it is not among the objects."""
    with store_errors(address.url):
        dataset = lance.dataset(address.url, storage_options=_storage_options(address))
        with damage_as_error(Path(address.url), "a Lance dataset"):
            check_files(dataset, address.names.__contains__)
    return dataset


def _storage_options(address: StoreAddress) -> dict[str, str]:
    """Return what Lance does not find in the environment by itself, without credentials."""
    options = {"aws_skip_signature": "true"} if address.public else {}
    if address.endpoint is not None:
        options |= {"aws_endpoint": address.endpoint, "aws_region": address.region}
        options["allow_http"] = str(address.endpoint.startswith("http://")).lower()
    return options


@contextmanager
def store_errors(url: str, *read: object) -> Iterator[None]:
    """Raise `store_error` for errors and panics of Lance's client, whatever is `read`."""
    try:
        with errors_as(partial(store_error, url)):
            yield
    except CorruptArtifact as error:
        raise error.changed(path=url) from None


def store_error(url: str, error: BaseException) -> LoaderFailed:
    """Return the error for one of Lance's client, without the address and the answer of the store."""
    found = reason(error).rpartition(" - ")[2].partition(": <")[0].partition(", /")[0]
    return LoaderFailed("lance could not read the objects", kind="store-failed", path=url, found=found)

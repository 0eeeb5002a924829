"""Content check of a loader that decodes images itself: its pixels are near those of the format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iobench.base.errors import WrongContent
from iobench.base.finding import Finding
from iobench.formats import Array, Rows, array_of, index_of
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job
from iobench.results.parts import ContentCheckPart


class PixelCheck:
    """Compares each requested row with what the format decodes, which is read again.

    Arrays of bytes may differ by a tolerance, the other fields may not. The case is reported as not verified,
    with the largest difference, because no checksum of such pixels is known.
    """

    def __init__(self, job: Job, tolerance: int) -> None:
        self._job, self._tolerance, self._most = job, tolerance, 0
        self._rows: Iterator[Rows] = iter(())

    def expect(self, request: EpochRequest) -> None:
        """Note the rows that will come next; call it before the first batch."""
        assert not isinstance(request, int), "a map-style loader is given its rows"
        self._rows = iter(request)

    def add(self, batch: DeviceBatch) -> None:
        """Compare a batch; raises WrongContent for the first row that differs by more than allowed."""
        rows = index_of(next(self._rows, slice(0, 0)))
        with self._job.opener() as reader:
            expected = reader.batch(rows)
        for name, stored in expected.items():
            found = array_of(batch[name].cpu())
            if found.shape != stored.shape:
                shapes = {"expected": f"{stored.shape}", "found": f"{found.shape}"}
                raise WrongContent(f"field {name} has another shape", kind="wrong-shape", **shapes)
            self._compare(name, rows.tolist(), stored, found)

    def _compare(self, name: str, rows: list[int], stored: Array, found: Array) -> None:
        """Compare a field of a batch, row by row."""
        is_image = stored.dtype == np.uint8 and stored.ndim > 1
        for row, one, other in zip(rows, stored, found, strict=True):
            far = int(np.abs(one.astype(np.int64) - other.astype(np.int64)).max()) if is_image else 0
            if far > self._tolerance or not (is_image or np.array_equal(one, other)):
                raise WrongContent(
                    f"wrong content on the device: {name} of row {row} differs from the stored one",
                    kind="wrong-row",
                    expected=f"at most {self._tolerance} of 255 apart" if is_image else f"{one}",
                    found=f"{far}" if is_image else f"{other}",
                )
            self._most = max(self._most, far)

    def conclude(self, part: bool = False) -> ContentCheckPart:
        """Return how far the pixels were apart; WrongContent if rows are missing from a whole epoch."""
        missing = 0 if part else sum(len(index_of(rows)) for rows in self._rows)
        if missing:
            raise WrongContent(
                "an epoch ended early", kind="wrong-count", expected="all rows", found=f"{missing:,} missing"
            )
        apart = Finding(
            "other-pixels",
            f"its own decoder's pixels are at most {self._most} of 255 from the format's, and "
            f"{self._tolerance} are allowed; the other fields are equal",
            values={"most": self._most, "tolerance": self._tolerance},
        )
        return ContentCheckPart(unverified=[apart])

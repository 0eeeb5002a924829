"""Lance, which says what goes wrong by its errors: its log on stderr would say it once more, at length."""

from __future__ import annotations

import os

os.environ.setdefault("LANCE_LOG", "error")  # read when it is imported

import lance

__all__ = ["lance"]

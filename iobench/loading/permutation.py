"""Keyed permutations: any stretch of a random order, computed without the rest of it."""

from __future__ import annotations

import math

import numpy as np

from iobench.formats import Index

ROUNDS = 8  # with six, the positions of five rows are not uniform
LEAST_SIDE = 4  # of a domain: a smaller one has too few round functions
CHUNK = 1 << 14  # numbers that fit in the cache with their intermediate results
TABLE_BITS = 16  # of a digit that one table takes


class KeyedPermutation:
    """A permutation of 0 … size - 1, drawn by a key, with no memory but its tables: 0.1 to 4 MiB.

    It is the generalized Feistel cipher of Black and Rogaway, "Ciphers with arbitrary finite domains"
    (CT-RSA 2002): a number is a pair of digits, each round adds a function of one digit to the other, and
    results beyond `size` are mapped again (cycle walking). The functions are tables of random numbers, of
    digits above 2^16 the sum of two (tabulation hashing, Zobrist 1970).

    Parameters
    ----------
    size : int
        Count of numbers, at most 2^62.
    key : int, ...
        Words of the key, of any number and size.
    """

    def __init__(self, size: int, *key: int) -> None:
        self.size = size
        high = max(LEAST_SIDE, math.isqrt(max(0, size - 1)) + 1)
        self._sides = high, max(LEAST_SIDE, -(-size // high))
        drawn = np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))
        self._tables = [_tables(drawn, *self._sides[:: 1 if one % 2 else -1]) for one in range(ROUNDS)]

    def __call__(self, numbers: Index) -> Index:
        """Return the images of these numbers."""
        out = np.empty(len(numbers), np.int64)
        for low in range(0, len(numbers), CHUNK):
            images = self._mapped(numbers[low : low + CHUNK])
            while len(beyond := np.flatnonzero(images >= self.size)):
                images[beyond] = self._mapped(images[beyond])
            out[low : low + CHUNK] = images
        return out

    def _mapped(self, numbers: Index) -> Index:
        """Apply all rounds; the result may be beyond `size`."""
        high: Index = numbers // self._sides[1]
        low = numbers - high * self._sides[1]
        word = np.empty_like(low)
        for number, tables in enumerate(self._tables):
            source, target = (low, high) if number % 2 == 0 else (high, low)
            for position, table in enumerate(tables):
                digit = source if len(tables) == 1 else (source >> position * TABLE_BITS) % (1 << TABLE_BITS)
                _add(table, digit, target, np.uint64(self._sides[number % 2]), word)
        high *= self._sides[1]
        high += low
        return high


def _tables(drawn: np.random.Generator, source: int, target: int) -> list[Index]:
    """Return tables of numbers below `target`, one for each digit of numbers below `source`."""
    digits = [min(source, 1 << TABLE_BITS)]
    if source > 1 << TABLE_BITS:
        digits.append((source >> TABLE_BITS) + 1)
    return [drawn.integers(0, target, digit, dtype=np.int64) for digit in digits]


def _add(table: Index, digit: Index, target: Index, side: np.uint64, word: Index) -> None:
    """Add the table's numbers for these digits to `target`, modulo `side`; `word` is overwritten."""
    np.take(table, digit, out=word, mode="clip")  # never clips; with "raise", take copies twice
    target += word
    sums, differences = target.view(np.uint64), word.view(np.uint64)
    np.subtract(sums, side, out=differences)  # wraps to a huge number where the sum is below the side
    np.minimum(sums, differences, out=sums)

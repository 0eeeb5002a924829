"""Keyed permutations: any stretch of a random order, computed without the rest of it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDS = 10  # with six, the positions of five rows are not uniform
LEAST_SIDE = 4  # of a domain: a smaller one has too few round functions
CHUNK = 1 << 15  # numbers that fit in the cache with their intermediate results
MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio (Knuth, TAOCP 6.4)
HALF = np.uint64(32)


class KeyedPermutation:
    """A permutation of 0 … size - 1, drawn by a key, with no memory but its round keys.

    It is the generalized Feistel cipher of Black and Rogaway, "Ciphers with arbitrary finite domains"
    (CT-RSA 2002): a number is a pair of digits, each round adds a keyed hash of one digit to the other,
    and results beyond `size` are mapped again (cycle walking). It shuffles, but hides nothing: the hash
    is a fast one.

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
        self._sides = np.uint64(high), np.uint64(max(LEAST_SIDE, -(-size // high)))
        words = np.random.SeedSequence(key).generate_state(2 * ROUNDS, np.uint64)
        self._keys = words.reshape(ROUNDS, 2) | np.array([1, 0], np.uint64)  # odd factors lose no bits

    def __call__(self, numbers: Index) -> Index:
        """Return the images of these numbers."""
        out = np.empty(len(numbers), np.int64)
        for low in range(0, len(numbers), CHUNK):
            images = self._mapped(numbers[low : low + CHUNK].astype(np.uint64))
            while len(beyond := np.flatnonzero(images >= self.size)):
                images[beyond] = self._mapped(images[beyond])
            out[low : low + CHUNK] = images
        return out

    def _mapped(self, numbers: Words) -> Words:
        """Apply all rounds; the result may be beyond `size`."""
        high: Words = numbers // self._sides[1]
        low = numbers
        low -= high * self._sides[1]
        word, shifted = np.empty_like(low), np.empty_like(low)
        for number, (factor, summand) in enumerate(self._keys):
            side = self._sides[number % 2]
            source, target = (low, high) if number % 2 == 0 else (high, low)
            np.multiply(source, factor, out=word)
            word += summand
            np.right_shift(word, HALF, out=shifted)
            word ^= shifted
            word *= MIX
            word >>= HALF
            word *= side  # with the shift: scaled to 0 … side - 1
            word >>= HALF
            target += word
            np.subtract(target, side, out=shifted)  # wraps to a huge number where the sum is below the side
            np.minimum(target, shifted, out=target)
        high *= self._sides[1]
        high += low
        return high

"""Whole numbers as command line arguments: checked where they are parsed, so that the message names the option."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(low: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` on."""
    return between(low, 2**31 - 1)


def between(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in low..high; it raises ArgumentTypeError."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, found {text[:40]!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number in {low}..{high}, found {text[:40]}")
        return value

    return parse

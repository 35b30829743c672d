"""Inputs of a model as text: "32x3x224x224", "int64:8x1024"; sizes of dimensions: "N=32"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.model import PenstockError, nearest, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = {
    "fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16",
    "float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16",
    "int64": "int64", "int32": "int32", "int8": "int8", "uint8": "uint8", "bool": "bool",
}  # fmt: skip
_MOST_SIZE = 2**40  # as many elements as no card holds
_MOST_DIMENSIONS = 16


def parse_input(text: str) -> tuple[str, tuple[int, ...]]:
    """The type and the shape of an input. Raises `PenstockError` if `text` is neither."""
    before, _, shape_text = text.rpartition(":")
    word = before or "fp32"
    if word not in TYPES:
        near = nearest(word, TYPES)
        raise PenstockError(
            f"unknown type {printable(word)[:40]!r} in --input",
            f"there are {', '.join(sorted(TYPES))}",
            f"did you mean {near}?" if near else "name one of these",
        )
    sizes = shape_text.split("x")
    if len(sizes) > _MOST_DIMENSIONS or not all(_is_size(one) for one in sizes):
        raise PenstockError(
            f"invalid shape for --input: {printable(text)[:60]!r}",
            f"up to {_MOST_DIMENSIONS} sizes from 1 to {_MOST_SIZE} with an x between them "
            "are needed",
            "write it like 32x3x224x224, or int64:8x1024",
        )
    return TYPES[word], tuple(map(int, sizes))


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Sizes of symbolic dimensions by name. Raises `PenstockError` if one is not NAME=SIZE."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not _is_size(size):
            raise PenstockError(
                f"invalid dimension for --dim: {printable(text)[:60]!r}",
                f"a name and a size from 1 to {_MOST_SIZE} are needed", "write it like N=32",
            )  # fmt: skip
        found[name] = int(size)
    return found


def _is_size(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,13}", text, re.ASCII)) and 0 < int(text) <= _MOST_SIZE

"""The table behind the coverage page: what the shim does with every vendor symbol, and why.

A symbol is hooked (``hooks.def``), forwarded for a reason (``forwarded.def``), or unknown. Unknown
symbols came with newer headers and have not been reviewed, so they stay out of the shim.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FORWARDED = "forwarded"
_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_HOOK = re.compile(r'^HOOK\((\w+),\s*(\w+),\s*"([^"]*)"', re.MULTILINE)
_REASON = re.compile(r'^(FORWARD|FAMILY)\("([^"]*)",([^)]*)\)', re.MULTILINE)
_RISKY = re.compile(r'^RISKY\("(\w+)"\)', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# A name that contains `Get` only queries, unless the risky part of it contains `Get` itself.
_TELLS = "Get"


@dataclass(frozen=True)
class Row:
    """One symbol: what the shim does with it (`kind`), and why."""

    symbol: str
    kind: str
    why: str


@dataclass(frozen=True)
class Tables:
    """The hand-written tables of one library."""

    hooks: dict[str, tuple[str, str]]  # symbol to kind and reason
    spelled: dict[str, str]  # base name to the reason why it may be forwarded
    families: tuple[tuple[str, str], ...]  # pattern of base names, reason
    risky: tuple[str, ...]  # parts of names that look risky
    getters_tell: bool  # whether `Get` makes a name of this library harmless

    def looks_risky(self, symbol: str) -> bool:
        """Return whether `symbol` may take memory or time (in NVML: show others) by its name."""
        tells = self.getters_tell and _TELLS in symbol
        return any(part in symbol and (not tells or _TELLS in part) for part in self.risky)

    def row(self, symbol: str) -> Row | None:
        """Return what the shim does with `symbol`, or None if the symbol is unknown.

        Raises:
            ValueError: two families cover the symbol.
        """
        if symbol in self.hooks:
            return Row(symbol, *self.hooks[symbol])
        base = base_of(symbol)
        for name in (symbol, base):
            if name in self.spelled:
                return Row(symbol, FORWARDED, self.spelled[name])
        if self.looks_risky(symbol) or base in self._hooked_bases():
            return None
        found = [(p, why) for p, why in self.families if fnmatchcase(base, p)]
        if len(found) > 1:
            raise ValueError(f"{symbol} is in two families: {found[0][0]} and {found[1][0]}")
        return Row(symbol, FORWARDED, found[0][1]) if found else None

    def _hooked_bases(self) -> set[str]:
        return {base_of(symbol) for symbol in self.hooks}


def base_of(symbol: str) -> str:
    """Return a name without its version and per-thread suffixes."""
    return _SUFFIX.sub("", symbol)


def read_tables(folder: Path, *, getters_tell: bool) -> Tables:
    """Read the tables ``hooks.def``, ``forwarded.def`` and ``risky.def`` in `folder`.

    Raises:
        ValueError: a name has two reasons.
    """
    hooks: dict[str, tuple[str, str]] = {}
    for symbol, kind, why in _HOOK.findall(_text(folder / "hooks.def")):
        if symbol in hooks:
            raise ValueError(f"{folder / 'hooks.def'}: {symbol} is listed twice")
        hooks[symbol] = (kind, why)
    risky = tuple(_RISKY.findall(_text(folder / "risky.def")))
    spelled: dict[str, str] = {}
    families: list[tuple[str, str]] = []
    for word, why, listing in _REASON.findall(_text(folder / "forwarded.def")):
        for name in listing.replace(",", " ").split():
            if word == "FAMILY":
                families.append((name, why))
                continue
            if name in spelled:
                raise ValueError(f"{folder / 'forwarded.def'}: {name} is listed twice")
            spelled[name] = why
    return Tables(hooks, spelled, tuple(families), risky, getters_tell)


def _text(path: Path) -> str:
    return _COMMENT.sub("", path.read_text())


def cuda_tables(native: Path) -> Tables:
    """Return the tables of the CUDA driver."""
    return read_tables(native, getters_tell=True)


def nvml_tables(native: Path) -> Tables:
    """Return the tables of NVML."""
    return read_tables(native / "nvml", getters_tell=False)


def known_and_unknown(names: Iterable[str], tables: Tables) -> tuple[list[Row], list[str]]:
    """Return the rows of all known names, and the names that have no row."""
    rows, unknown = [], []
    for name in names:
        row = tables.row(name)
        if row is None:
            unknown.append(name)
        else:
            rows.append(row)
    return rows, unknown


def unused(names: Sequence[str], tables: Tables) -> list[str]:
    """Return the entries of ``forwarded.def`` that match no forwarded name in the headers."""
    left = [name for name in names if name not in tables.hooks]
    bases = {base_of(name) for name in left}
    spelled = [name for name in tables.spelled if name not in bases and name not in left]
    plain = {base for base in bases if base not in tables.spelled}
    return spelled + [p for p, _ in tables.families if not any(fnmatchcase(b, p) for b in plain)]


def as_json(
    cuda: Sequence[Row], nvml: Sequence[Row], versions: dict[str, int], risky: Sequence[str]
) -> str:
    """Return the coverage table as JSON: kinds and reasons, header versions, and risky parts."""
    tables = {
        library: {row.symbol: [row.kind, row.why] for row in rows}
        for library, rows in (("cuda", cuda), ("nvml", nvml))
    }
    return json.dumps({"headers": versions, "risky": list(risky), **tables}, indent=0) + "\n"


KINDS = {
    "cuda": {
        "charged": "charges the memory quota, or releases a charge",
        "gated": "charges the compute quota (launches), or affects how launches are measured",
        "viewed": "returns the quota instead of the whole device",
        "door": "initialisation and entry points",
        FORWARDED: "passed on to the driver by one jump",
    },
    "nvml": {
        "memory": "returns the quota instead of the whole device",
        "own": "shows only the tenant's own processes",
        "granted": "shows only the granted devices",
        "door": "initialisation and entry points",
        FORWARDED: "passed on to the vendor's library by one jump",
    },
}


def as_page(cuda: Sequence[Row], nvml: Sequence[Row], versions: dict[str, int]) -> str:
    """Return the coverage page in Markdown.

    Raises:
        ValueError: a table has a kind that the page does not explain.
    """
    major, minor = divmod(versions["cuda"], 1000)
    lines = [
        "# Coverage",
        "",
        "This page lists what the shim does with every symbol of the driver and of NVML.",
        f"`make gen` generates it from the headers of CUDA {major}.{minor // 10} and the tables",
        "in `shim/native`. `penstock shim coverage -- COMMAND` lists the symbols that a program",
        "of yours requests.",
        "",
        "If a newer driver has a symbol that is not listed here, `cuGetProcAddress` passes it on",
        "if its name is harmless. A symbol that may take memory or time is reported as not found,",
        "unless the policy sets `allowUnknown`.",
    ]
    for library, title, rows in (("cuda", "The driver", cuda), ("nvml", "NVML", nvml)):
        lines += ["", f"## {title}: {len(rows)} symbols", "", "| kind | symbols | what it means |"]
        lines += ["|---|---:|---|"]
        kinds = KINDS[library]
        strange = {row.kind for row in rows} - set(kinds)
        if strange:
            raise ValueError(f"no meaning is written down for kind {', '.join(sorted(strange))}")
        for kind, meaning in kinds.items():
            count = sum(row.kind == kind for row in rows)
            lines += [f"| {kind} | {count} | {meaning} |"] if count else []
        lines += ["", "| symbol | kind | why |", "|---|---|---|"]
        lines += [f"| `{row.symbol}` | {row.kind} | {row.why} |" for row in rows]
    return "\n".join(lines) + "\n"

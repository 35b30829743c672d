"""What the shim does with every vendor symbol, and why: the table behind the coverage page.

A symbol is hooked (``hooks.def``), forwarded for a reason (``forwarded.def``), or unknown. Unknown
are names that newer headers brought and that nobody has looked at: those stay out of the shim.
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
# Names with `Get` only tell something; but not if the part itself says `Get`.
_TELLS = "Get"


@dataclass(frozen=True)
class Row:
    """One symbol: what is done with it (`kind`) and why."""

    symbol: str
    kind: str
    why: str


@dataclass(frozen=True)
class Tables:
    """The hand-written tables of one library."""

    hooks: dict[str, tuple[str, str]]  # symbol: kind, why
    spelled: dict[str, str]  # base name: why it may pass
    families: tuple[tuple[str, str], ...]  # pattern of base names, why
    risky: tuple[str, ...]  # parts of names
    getters_tell: bool  # of this library, `Get` makes a name harmless

    def looks_risky(self, symbol: str) -> bool:
        """Whether the name looks as if it took device memory or time (NVML: showed others)."""
        tells = self.getters_tell and _TELLS in symbol
        return any(part in symbol and (not tells or _TELLS in part) for part in self.risky)

    def row(self, symbol: str) -> Row | None:
        """What is done with `symbol`; None: unknown, nobody has decided.

        Raises:
            ValueError: two families cover it.
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
    """The name without version and per-thread suffix."""
    return _SUFFIX.sub("", symbol)


def read_tables(folder: Path, *, getters_tell: bool) -> Tables:
    """The tables ``hooks.def``, ``forwarded.def`` and ``risky.def`` of `folder`.

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
    """The driver's tables."""
    return read_tables(native, getters_tell=True)


def nvml_tables(native: Path) -> Tables:
    """NVML's tables."""
    return read_tables(native / "nvml", getters_tell=False)


def known_and_unknown(names: Iterable[str], tables: Tables) -> tuple[list[Row], list[str]]:
    """The rows of all names, and the names that have none."""
    rows, unknown = [], []
    for name in names:
        row = tables.row(name)
        if row is None:
            unknown.append(name)
        else:
            rows.append(row)
    return rows, unknown


def unused(names: Sequence[str], tables: Tables) -> list[str]:
    """Lines of ``forwarded.def`` that no forwarded name of the headers needs."""
    left = [name for name in names if name not in tables.hooks]
    bases = {base_of(name) for name in left}
    spelled = [name for name in tables.spelled if name not in bases and name not in left]
    plain = {base for base in bases if base not in tables.spelled}
    return spelled + [p for p, _ in tables.families if not any(fnmatchcase(b, p) for b in plain)]


def as_json(
    cuda: Sequence[Row], nvml: Sequence[Row], versions: dict[str, int], risky: Sequence[str]
) -> str:
    """The table for programs: symbol to kind and why, what headers it is about, `risky` parts."""
    tables = {
        library: {row.symbol: [row.kind, row.why] for row in rows}
        for library, rows in (("cuda", cuda), ("nvml", nvml))
    }
    return json.dumps({"headers": versions, "risky": list(risky), **tables}, indent=0) + "\n"


KINDS = {
    "cuda": {
        "charged": "counts against the memory quota, or gives back",
        "gated": "launches and what is measured around them: the compute quota",
        "viewed": "answers what the tenant was granted",
        "door": "ways in",
        FORWARDED: "one jump to the driver",
    },
    "nvml": {
        "memory": "answers the quota",
        "own": "only the tenant's own processes",
        "granted": "only the granted devices",
        "door": "ways in",
        FORWARDED: "one jump to the vendor's library",
    },
}


def as_page(cuda: Sequence[Row], nvml: Sequence[Row], versions: dict[str, int]) -> str:
    """The coverage page, in Markdown.

    Raises:
        ValueError: a table has a kind that the page does not explain.
    """
    major, minor = divmod(versions["cuda"], 1000)
    lines = [
        "# Coverage",
        "",
        "What the shim does with every symbol of the driver and of NVML. Generated by `make",
        f"gen` from the headers of CUDA {major}.{minor // 10} and the tables in `shim/native`.",
        "What a program of yours asked for: `penstock shim coverage -- COMMAND`.",
        "",
        "A symbol that a newer driver has and that is not here is passed on by `cuGetProcAddress`",
        'if its name is harmless; one that may take memory or time is answered "not found" unless',
        "the policy says `allowUnknown`.",
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

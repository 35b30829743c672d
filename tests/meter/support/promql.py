"""As much of PromQL as it takes to name the metrics and labels of an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m"}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<range>\[[0-9smhdwy:]+\])
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])
    )""",
    re.VERBOSE,
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset"}
_FUNCTIONS = {
    *("rate", "increase", "sum", "avg", "max", "min", "count", "histogram_quantile", "vector"),
    *("absent", "time", "clamp_min", "label_values"),
}


@dataclass
class Expression:
    """The metrics and labels that an expression uses."""

    matched: list[tuple[str, frozenset[str]]] = field(default_factory=list)  # metric, labels
    grouped: set[str] = field(default_factory=set)  # labels in by (…), on (…)


def read(text: str) -> Expression:
    """Reads an expression. Raises ValueError for text that is clearly none."""
    for variable, value in GRAFANA.items():
        text = text.replace(variable, value)
    tokens = list(_tokens(text))
    _check_brackets([word for _, word in tokens], text)
    found = Expression()
    i = 0
    while i < len(tokens):
        kind, word = tokens[i]
        following = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if kind == "name" and word in _GROUPING:
            i, names = _names_up_to(")", tokens, i + 1)
            found.grouped |= names
        elif kind == "name" and following in ("(", "by") and word not in _WORDS:
            if word not in _FUNCTIONS:
                raise ValueError(f"unknown function {word} in {text}")
        elif kind == "name" and word not in _WORDS:
            labels: set[str] = set()
            if following == "{":
                i, labels = _names_up_to("}", tokens, i + 1)
            found.matched.append((word, frozenset(labels)))
        i += 1
    if not found.matched:
        raise ValueError(f"no metric in {text!r}")
    return found


def _names_up_to(end: str, tokens, begin: int) -> tuple[int, set[str]]:
    last = next(n for n in range(begin, len(tokens)) if tokens[n][1] == end)
    return last, {word for kind, word in tokens[begin:last] if kind == "name"}


def _check_brackets(words: list[str], text: str) -> None:
    open_ones: list[str] = []
    for word in words:
        if word in ("(", "{"):
            open_ones.append(word)
        elif word in (")", "}") and (not open_ones or open_ones.pop() + word not in ("()", "{}")):
            raise ValueError(f"a bracket too many in {text}")
    if open_ones:
        raise ValueError(f"a bracket is open in {text}")


def _tokens(text: str):
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at:]!r}")
        at = match.end()
        yield match.lastgroup, match[match.lastgroup]

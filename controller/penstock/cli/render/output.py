"""Output for other programs: JSON or YAML on standard output."""

from __future__ import annotations

import json

from penstock.cli.options import Output


def print_data(data: object, output: Output) -> None:
    """Prints `data`, which has only plain values, in the format `output`."""
    if output is Output.yaml:
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(data, indent=2, allow_nan=False))  # RFC 8259 has no infinity

"""`python -m penstock_shim` prints the paths of the installed libraries."""

from __future__ import annotations

import argparse
import sys

from penstock_shim import paths

_QUESTIONS = {
    "--so-path": (paths.so_path, "the shim, for LD_PRELOAD"),
    "--nvml-so-path": (paths.nvml_so_path, "the NVML view, for LD_PRELOAD"),
    "--sim-dir": (paths.sim_dir, "directory of the simulated driver, for LD_LIBRARY_PATH"),
}


def main(arguments: list[str] | None = None) -> int:
    """Prints one path. Returns exit code 0, or 1 if the library is not installed."""
    parser = argparse.ArgumentParser(prog="python -m penstock_shim", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    for option, (_, text) in _QUESTIONS.items():
        group.add_argument(option, action="store_const", const=option, dest="question", help=text)
    question = parser.parse_args(arguments).question
    try:
        print(_QUESTIONS[question][0]())
    except FileNotFoundError as error:
        print(f"penstock_shim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The openb trace: its nodes and its lists of Pods, read and checked."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LISTS = ("default", "cpu050", "gpushare40", "gpushare60", "gpuspec10", "multigpu20")
NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_{}.csv"
WHOLE_MILLI = 1000  # a whole GPU, in the trace's unit
MOST_GPUS = 8  # on a node
OBTAIN = "--trace is the folder with the CSV files of Alibaba's cluster-trace-gpu-v2023"

Row = TypeVar("Row")


@dataclass(frozen=True)
class Node:
    """One node with GPUs of one model."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, order=True)
class Shape:
    """What a Pod requests; Pods that request the same have equal shapes.

    `gpu_milli` is for each GPU: 1 to 999 is a part of one GPU, 1000 is whole GPUs, 0 is none.
    `models` are those that the Pod accepts; empty: all.
    """

    cpu_milli: int
    gpu_milli: int
    gpus: int
    models: tuple[str, ...] = ()
    memory_mib: int = 0

    @property
    def total_milli(self) -> int:
        """The request of all its GPUs together."""
        return self.gpus * self.gpu_milli

    @property
    def is_part(self) -> bool:
        """Whether it requests a part of one GPU."""
        return self.gpus == 1 and self.gpu_milli < WHOLE_MILLI


def read_nodes(folder: Path) -> list[Node]:
    """The nodes in the order of the file.

    Raises:
        PenstockError: the file is missing or damaged.
    """
    return _read(folder / NODES, _node)


def read_pods(folder: Path, name: str) -> list[Shape]:
    """The Pods of the list `name` in the order of the file.

    Raises:
        PenstockError: the file is missing or damaged.
    """
    return _read(folder / PODS.format(name), _pod)


def _read(path: Path, parse: Callable[[dict[str, str]], Row]) -> list[Row]:
    rows = []
    number = 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for line in reader:
                number = reader.line_num
                rows.append(parse(line))
    except OSError as error:
        raise PenstockError(f"cannot read {path}", error.strerror or str(error), OBTAIN) from error
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise PenstockError(
            f"{path} is damaged", f"line {number}: {error}", "get the file again"
        ) from error
    if not rows:
        raise PenstockError(f"{path} is damaged", "it has no rows", "get the file again")
    return rows


def _node(line: dict[str, str]) -> Node:
    return Node(
        cpu_milli=_number(line, "cpu_milli"),
        memory_mib=_number(line, "memory_mib"),
        gpus=_number(line, "gpu", most=MOST_GPUS),
        model=_field(line, "model"),
    )


def _pod(line: dict[str, str]) -> Shape:
    gpus = _number(line, "num_gpu", most=MOST_GPUS)
    gpu_milli = _number(line, "gpu_milli", most=WHOLE_MILLI) if gpus else 0
    if gpus and not gpu_milli:
        raise ValueError("gpu_milli is 0 and num_gpu is not")
    if gpus > 1 and gpu_milli != WHOLE_MILLI:
        raise ValueError(f"{gpus} GPUs of gpu_milli {gpu_milli}; several GPUs must be whole")
    accepted = line.get("gpu_spec") or ""  # not every list has the column
    return Shape(
        cpu_milli=_number(line, "cpu_milli"),
        memory_mib=_number(line, "memory_mib"),
        gpus=gpus,
        gpu_milli=gpu_milli,
        models=tuple(sorted(accepted.split("|"))) if accepted and gpus else (),
    )


def _field(line: dict[str, str], column: str) -> str:
    value = line.get(column)
    if not value:
        raise ValueError(f"column {column!r} is missing or empty")
    return value


def _number(line: dict[str, str], column: str, *, most: int | None = None) -> int:
    text = _field(line, column)
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"column {column!r} is {text!r}, which is not a whole number from 0")
    value = int(text)
    if most is not None and value > most:
        raise ValueError(f"column {column!r} is {value}, and at most {most} is possible")
    return value

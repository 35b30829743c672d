"""Device profiles: the properties of simulated devices, in YAML files in this folder or elsewhere.

To add a device, copy the most similar ``*.yaml`` in this folder, change its values, and name their
origin in every ``source:``. A profile has these groups:

    name            name of the device as NVML reports it
    rated_tflops    dense performance by precision; requests in TFLOPS refer to fp16 (and bf16)
    device          properties of the architecture: SMs, limits of an SM, L2
    memory          capacity, bandwidth and bus width
    board           power and maximum clocks
    estimates       driver behaviour and call costs; the machine has defaults for missing values
    kernels         optional durations by kernel name: ``{pattern: "gemm*", duration_us: 200}``, or
                    ``{pattern: "spin*", parameter: 0}`` to read nanoseconds from that 8-byte
                    parameter
"""

from __future__ import annotations

import contextlib
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

__all__ = [
    "KernelRule",
    "Profile",
    "ProfileError",
    "RatedTflops",
    "load_profile",
    "profile_names",
]

MAX_KERNEL_RULES = 32
_FOLDER = Path(__file__).parent

# group → key → (field of `sim_profile`, factor to its unit, smallest and largest value). A figure
# that has a default may not be zero, because the machine takes zero to mean the default.
_FIGURES: dict[str, dict[str, tuple[str, int, float, float]]] = {
    "device": {
        "sm_count": ("sm_count", 1, 1, 1024),
        "max_threads_per_sm": ("max_threads_per_sm", 1, 1024, 4096),
        "max_blocks_per_sm": ("max_blocks_per_sm", 1, 1, 128),
        "registers_per_sm": ("registers_per_sm", 1, 1024, 1 << 20),
        "shared_per_sm_kib": ("shared_per_sm_bytes", 1024, 16, 4096),
        "shared_per_block_optin_kib": ("shared_per_block_optin_bytes", 1024, 16, 4096),
        "l2_kib": ("l2_bytes", 1024, 64, 1 << 21),
    },
    "memory": {
        "memory_mib": ("memory_bytes", 1 << 20, 64, 1 << 24),
        "bandwidth_gb_per_s": ("memory_bytes_per_ns", 1, 1, 1e6),
        "bus_bits": ("memory_bus_bits", 1, 16, 1 << 17),
    },
    "board": {
        "power_limit_w": ("power_limit_mw", 1000, 1, 1e5),
        "sm_clock_mhz": ("sm_clock_khz", 1000, 1, 1e5),
        "memory_clock_mhz": ("memory_clock_khz", 1000, 1, 1e5),
    },
    "estimates": {
        "reserved_mib": ("reserved_bytes", 1 << 20, 0, 1 << 20),
        "context_mib": ("context_bytes", 1 << 20, 1, 1 << 16),
        "host_link_gb_per_s": ("host_bytes_per_ns", 1, 0.1, 1e5),
        "copy_engines": ("copy_engines", 1, 1, 16),
        "slab_kib": ("slab_bytes", 1024, 4, 1 << 20),
        "time_slice_us": ("time_slice_ns", 1000, 10, 1e7),
        "context_switch_us": ("context_switch_ns", 1000, 1, 1e6),
        "event_tick_ns": ("event_tick_ns", 1, 1, 1e6),
        "clock_offset_ns": ("clock_offset_ns", 1, -1e18, 1e18),
        "clock_drift_ppm": ("clock_drift_ppm", 1, -1e6, 1e6),
        "queue_depth": ("queue_depth", 1, 1, 1 << 16),
        "launch_ns": ("launch_ns", 1, 1, 1e7),
        "event_record_ns": ("event_record_ns", 1, 1, 1e7),
        "query_ns": ("query_ns", 1, 1, 1e7),
        "stream_op_ns": ("stream_op_ns", 1, 1, 1e7),
        "memory_call_ns": ("memory_call_ns", 1, 1, 1e8),
        "memory_slab_ns": ("memory_slab_ns", 1, 1, 1e8),
        "kernel_floor_ns": ("kernel_floor_ns", 1, 1, 1e8),
        "kernel_gap_ns": ("kernel_gap_ns", 1, 1, 1e8),
        "thread_cost_ps": ("thread_cost_ps", 1, 1, 1e9),
        "sample_period_ms": ("sample_period_ns", 1_000_000, 1, 4000),
        "driver_major": ("driver_major", 1, 1, 9999),
        "driver_start_ms": ("driver_start_us", 1000, 0, 60_000),
        "checkpoint_speedup": ("checkpoint_speedup", 1, 1, 1e6),
    },
}
_REQUIRED = {
    "": ("name", "rated_tflops", "device", "memory", "board"),
    "rated_tflops": ("source", "fp32", "fp16"),
    "device": ("source", "compute_capability", "sm_count"),
    "memory": ("source", "memory_mib", "bandwidth_gb_per_s"),
    "board": ("source",),
    "estimates": ("source",),
}
_RATES = ("fp32", "tf32", "fp16", "fp8", "int8")
# Fields that the machine stores as floating-point numbers; all others are integers.
_FRACTIONAL = {"memory_bytes_per_ns", "host_bytes_per_ns", "clock_drift_ppm"}


class ProfileError(ValueError):
    """Error for an unknown or invalid profile, with file, line and the nearest valid key."""


@dataclass(frozen=True)
class RatedTflops:
    """Rated dense performance in TFLOPS (int8 in TOPS), None if the device lacks the format."""

    fp32: float
    fp16: float  # tensor performance; the same for bf16 where the device has it
    tf32: float | None = None
    fp8: float | None = None
    int8: float | None = None


@dataclass(frozen=True)
class KernelRule:
    """The duration of kernels whose name matches `pattern`, a shell glob."""

    pattern: str
    duration_ns: int = 0
    parameter: int | None = None  # number of the 8-byte kernel parameter that holds the nanoseconds


@dataclass(frozen=True)
class Profile:
    """The properties of a simulated device."""

    name: str  # name of the device as NVML reports it
    path: Path
    sources: dict[str, str]  # group of figures → their source
    compute_capability: tuple[int, int]
    rated_tflops: RatedTflops
    figures: dict[str, float] = field(repr=False)  # "group.key" → figure in the unit of the file
    kernels: tuple[KernelRule, ...] = ()

    @property
    def source(self) -> str:
        """The source of the rated figures."""
        return self.sources["rated_tflops"]

    @property
    def memory_bytes(self) -> int:
        """Device memory, including the part that the driver takes."""
        return int(self.figures["memory.memory_mib"] * (1 << 20))

    @property
    def memory_bytes_per_second(self) -> float:
        """Rated bandwidth of the device memory."""
        return self.figures["memory.bandwidth_gb_per_s"] * 1e9

    @property
    def sm_count(self) -> int:
        """Number of streaming multiprocessors."""
        return int(self.figures["device.sm_count"])

    def machine_fields(self) -> dict[str, float]:
        """Returns the figures with the names and units of the machine's `sim_profile`."""
        fields: dict[str, float] = {}
        for group, keys in _FIGURES.items():
            for key, (name, factor, _, _) in keys.items():
                if (value := self.figures.get(f"{group}.{key}")) is not None:
                    exact = value * factor
                    fields[name] = float(exact) if name in _FRACTIONAL else int(exact)
        return fields


def profile_names() -> list[str]:
    """Returns the names of the profiles that come with Penstock."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Loads a profile by name, or from a YAML file if the text has a slash or ends in .yaml.

    Raises:
        ProfileError: the profile or file does not exist or is invalid.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return _Reader(Path(name_or_path)).profile()
    known = profile_names()
    if text.lower() not in known:
        near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.65)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ProfileError(
            f"there is no device profile {text!r}{hint} "
            f"(known: {', '.join(known)}; or give the path of a YAML file)"
        )
    return _Reader(_FOLDER / f"{text.lower()}.yaml").profile()


def _plain(number: float) -> str:
    """Formats a number without an exponent, as people write it in the file."""
    return str(int(number)) if number == int(number) else f"{number:g}"


class _Reader:
    """Reader of one profile, which knows the line of every value, for its error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def profile(self) -> Profile:
        root = self._mapping(self._parse(), "the profile")
        self._check_keys(root, "", {*_REQUIRED[""], "estimates", "kernels"})
        groups = {
            name: self._mapping(node, name)
            for name, (_, node) in root.items()
            if name not in ("name", "kernels")
        }
        for name, group in groups.items():
            extra = {"rated_tflops": _RATES, "device": ("compute_capability",)}.get(name, ())
            self._check_keys(group, name, {"source", *extra, *_FIGURES.get(name, ())})
        return Profile(
            name=self._string(root["name"][1], "name"),
            path=self.path,
            sources={name: self._string(g["source"][1], "source") for name, g in groups.items()},
            compute_capability=self._capability(groups["device"]["compute_capability"][1]),
            rated_tflops=RatedTflops(
                **{
                    rate: self._number(groups["rated_tflops"][rate][1], rate, 0.001, 1e7)
                    for rate in _RATES
                    if rate in groups["rated_tflops"]
                }
            ),
            figures={
                f"{name}.{key}": self._number(group[key][1], key, low, high)
                for name, group in groups.items()
                for key, (_, _, low, high) in _FIGURES.get(name, {}).items()
                if key in group
            },
            kernels=self._kernels(root),
        )

    def _parse(self) -> yaml.Node:
        if self.path.exists() and not self.path.is_file():
            raise ProfileError(f"the device profile {self.path} is not a regular file")
        try:
            node = yaml.compose(self.path.read_text(), Loader=yaml.SafeLoader)
        except OSError as error:
            why = error.strerror or str(error)
            raise ProfileError(f"cannot read the device profile {self.path}: {why}") from error
        except UnicodeDecodeError as error:
            raise ProfileError(f"{self.path} is not a text file: {error}") from error
        except yaml.MarkedYAMLError as error:
            mark = (
                error.context_mark or error.problem_mark
            )  # where the problem begins, or else where it was noticed
            line = mark.line + 1 if mark else 1
            raise ProfileError(f"{self.path}:{line}: not YAML: {error.problem}") from error
        except RecursionError as error:
            raise ProfileError(
                f"{self.path}: the values are nested too deeply for a device profile"
            ) from error
        except yaml.YAMLError as error:
            raise ProfileError(f"{self.path}: not YAML: {error}") from error
        if node is None:
            raise ProfileError(f"{self.path}:1: the file is empty; a device profile is expected")
        return node

    def _fail(self, node: yaml.Node, problem: str) -> ProfileError:
        return ProfileError(f"{self.path}:{node.start_mark.line + 1}: {problem}")

    def _mapping(self, node: yaml.Node, what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._fail(node, f"{what} must be a mapping of keys to values")
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._fail(key, f"{what}: a key must be a plain word")
            if key.value in found:
                raise self._fail(key, f"{key.value!r} is given twice")
            found[key.value] = (key, value)
        if not found:
            raise self._fail(node, f"{what} is empty")
        return found

    def _check_keys(
        self, found: dict[str, tuple[yaml.Node, yaml.Node]], group: str, valid: set[str]
    ) -> None:
        where = f" in {group}" if group else ""
        for key, (node, _) in found.items():
            if key not in valid:
                near = difflib.get_close_matches(key, sorted(valid), n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(sorted(valid))}"
                )
                raise self._fail(node, f"unknown key {key!r}{where}; {hint}")
        for key in _REQUIRED.get(group, ()):
            if key not in found:
                first = next(iter(found.values()))[0]
                raise self._fail(first, f"{key!r} is missing{where}")

    def _string(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            raise self._fail(node, f"{what} must be text")
        return str(node.value)

    def _number(self, node: yaml.Node, what: str, low: float, high: float) -> float:
        value: object = None
        if isinstance(node, yaml.ScalarNode) and node.tag in (
            "tag:yaml.org,2002:int",
            "tag:yaml.org,2002:float",
        ):
            with contextlib.suppress(ValueError):  # the number has more digits than Python accepts
                value = yaml.SafeLoader("").construct_object(node)
        if not isinstance(value, int | float) or not low <= value <= high:
            given = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            raise self._fail(
                node, f"{what} must be a number from {_plain(low)} to {_plain(high)}, not {given}"
            )
        return value

    def _capability(self, node: yaml.Node) -> tuple[int, int]:
        text = self._string(node, "compute_capability")
        match = re.fullmatch(r"(\d{1,2})\.(\d)", text)
        if not match:
            raise self._fail(node, f'compute_capability must be like "9.0", not {text!r}')
        return int(match[1]), int(match[2])

    def _kernels(self, root: dict[str, tuple[yaml.Node, yaml.Node]]) -> tuple[KernelRule, ...]:
        if "kernels" not in root:
            return ()
        node = root["kernels"][1]
        if not isinstance(node, yaml.SequenceNode):
            raise self._fail(node, "kernels must be a list")
        if len(node.value) > MAX_KERNEL_RULES:
            raise self._fail(node, f"kernels has more than {MAX_KERNEL_RULES} rules")
        return tuple(self._kernel(item) for item in node.value)

    def _kernel(self, node: yaml.Node) -> KernelRule:
        rule = self._mapping(node, "a kernel rule")
        self._check_keys(rule, "kernels", {"pattern", "duration_us", "parameter"})
        if "pattern" not in rule or ("duration_us" in rule) == ("parameter" in rule):
            raise self._fail(node, "a kernel rule has a pattern and a duration_us or a parameter")
        pattern = self._string(rule["pattern"][1], "pattern")
        if "parameter" in rule:
            number = self._number(rule["parameter"][1], "parameter", 0, 1023)
            return KernelRule(pattern, parameter=int(number))
        duration_us = self._number(rule["duration_us"][1], "duration_us", 0.1, 1e9)
        return KernelRule(pattern, duration_ns=round(duration_us * 1000))

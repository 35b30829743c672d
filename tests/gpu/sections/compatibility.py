"""Programs as people have them, natively and under the shim: they must compute the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.gpu import children
from tests.gpu.budget import Check
from tests.gpu.children import FailedError, HungError
from tests.gpu.pairs import check_same, check_wavering
from tests.gpu.rows import DiffersError, FailsNativelyError, NotHereError, Outcome
from tests.gpu.setting import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.gpu.setting import Setting

CORES = 60.0  # the gate is at work: what it changes in a program's results would show
TORCH = {  # mode → what it is, its tolerance where bits may differ between two runs
    "eager": ("PyTorch training, eager", None),
    "infer": ("PyTorch inference, bf16", None),
    "graphs": ("PyTorch, CUDA graphs", None),
    "compile": ("PyTorch, torch.compile", 0.01),  # autotuning may choose other kernels
    "expandable": ("PyTorch, expandable_segments", None),
    "async_pool": ("PyTorch, cudaMallocAsync", None),
    "ddp": ("PyTorch, DDP of two processes on one GPU (gloo)", None),
    "loader": ("PyTorch, DataLoader of four processes", None),
    "nccl": ("PyTorch, NCCL all-reduce of one rank", None),
    "profile": ("PyTorch profiler (CUPTI)", None),
}
CARD = "virtual card of a GPU share and the CPU"
CLOSE = 1e-3  # losses of a float32 training on other devices, after a dozen steps
OWN = "the private handshake of the CUDA runtime, which the simulated driver does not imitate"
NEEDS_RUNTIME = {"torch", "cupy", "triton", "jax"}


def checks() -> list[Check]:
    """Simple things first: a machine on which they fail needs no more."""
    found = [_check("driver API in C, matrix product", _multiply, 8, 60)]
    found += [
        _check("nvidia-smi", _nvidia_smi, 5, 40, has_nvidia_smi),
        _check("NVML (pynvml)", _nvml, 4, 30),
    ]
    found.append(
        _check("C++ with the static CUDA runtime", _static_runtime, 12, 90, has_tools("nvcc"))
    )
    found += [_torch(mode) for mode in ("eager", "graphs", "expandable", "async_pool")]
    for module, name, words in (
        ("cupy", "cupy_small.py", "CuPy"),
        ("triton", "triton_small.py", "Triton"),
        ("jax", "jax_small.py", "JAX"),
        ("numba.cuda", "numba_small.py", "Numba-CUDA"),
        ("cuda.core", "cuda_core_small.py", "cuda.core"),
    ):
        found.append(_check(words, _script(module, name), 8, 90, has_module(module)))
    found.append(_check(CARD, _virtual_card, 20, 150, has_module("torch")))
    found += [_torch(mode) for mode in ("ddp", "infer", "loader", "profile", "nccl", "compile")]
    found.append(
        _check(
            "compute-sanitizer memcheck", _sanitizer, 15, 90, has_tools("nvcc", "compute-sanitizer")
        )
    )
    found.append(_check("Nsight Compute (ncu)", _ncu, 15, 90, has_tools("nvcc", "ncu")))
    return found


def _check(
    name: str,
    run: Callable[[Setting], Outcome],
    needs_s: float,
    timeout_s: float,
    requires: Callable[[Setting], object] | None = None,
) -> Check:
    return Check("compatibility", name, run, needs_s, timeout_s, requires)


def has_module(module: str) -> Callable[[Setting], None]:
    """Raises `NotHereError` where no Python has it, or it cannot run on a simulated device."""

    def check(setting: Setting) -> None:
        if setting.arena.simulated and module in NEEDS_RUNTIME:
            raise NotHereError(f"{module} needs {OWN}")
        setting.python_with(module)

    return check


def usable(module: str, setting: Setting) -> None:
    """Imports it once a run, natively: what cannot even be imported does not fail in every row.

    Raises:
        FailsNativelyError: it is installed and cannot be imported, or never comes to an end of it.
        HungError: there was too little time to say so.
    """
    problem = setting.import_problem(module)
    if problem:
        raise FailsNativelyError(f"{module} is installed and cannot be imported: {problem}")


def has_tools(*names: str) -> Callable[[Setting], None]:
    """The same of tools that build or look into programs of the CUDA runtime."""

    def check(setting: Setting) -> None:
        if setting.arena.simulated:
            raise NotHereError(f"programs of the CUDA runtime need {OWN}")
        for name in names:
            setting.tool(name)

    return check


def has_nvidia_smi(setting: Setting) -> None:
    """Raises `NotHereError`."""
    if setting.arena.simulated:
        raise NotHereError("nvidia-smi refuses the simulated NVML for its version")
    setting.tool("nvidia-smi")


def _torch(mode: str) -> Check:
    words, tolerance = TORCH[mode]
    run = _script("torch", "torch_small.py", mode, tolerance=tolerance)
    return _check(words, run, 12, 120, has_module("torch"))


def _script(
    module: str, name: str, *words: str, tolerance: float | None = None
) -> Callable[[Setting], Outcome]:
    def run(setting: Setting) -> Outcome:
        usable(module, setting)
        return compare(setting, setting.script(module, name, *words), tolerance)

    return run


def compare(setting: Setting, argv: Sequence[str], tolerance: float | None = None) -> Outcome:
    """A program natively, then under the shim.

    Raises:
        DiffersError: the results differ, and two native ones do not.
        FailsNativelyError: it fails without the shim. FailedError, HungError: under it.
    """
    try:
        native = setting.native(argv)
    except FailedError as error:
        raise FailsNativelyError(f"without the shim: {error}") from error
    except HungError as error:
        raise HungError(f"without the shim: {error}") from error
    shimmed = setting.shimmed(argv, cores=CORES)
    try:
        words = check_same(native, shimmed, tolerance=tolerance)
    except DiffersError:
        again = setting.native(argv)
        words = check_wavering(native, again, shimmed)
    if "seconds" in native:
        words += f"; {native['seconds']:.1f} s, at {CORES:g} % {shimmed['seconds']:.1f} s"
    return Outcome(words, aim="the same results", reached=True,
                   details={"native": native, "shimmed": shimmed})  # fmt: skip


def _multiply(setting: Setting) -> Outcome:
    size = setting.few(1024, 64)
    argv = setting.workload("traced", "--kernel", "multiply", "--size", size)
    words = [*argv, "--launches", "50", "--seconds", "20"]
    setting.native(words)  # our own program: where it fails natively, the suite does
    return compare(setting, words)


def _static_runtime(setting: Setting) -> Outcome:
    return compare(setting, [_built(setting)])


def _built(setting: Setting) -> str:
    """The C++ program, built once. Raises `NotHereError`, `FailedError`."""
    program = setting.arena.folder / "static_runtime"
    if not program.exists():
        nvcc = setting.tool("nvcc")
        aside = program.with_suffix(".new")
        words = [nvcc, "-O1", "-cudart", "static", "-o", str(aside)]
        command = setting.arena.native([*words, str(PROGRAMS / "static_runtime.cu")])
        done = children.run(command, setting.left_s(60))
        if done.code:
            raise FailedError(f"nvcc: {children.tail(done.err)}")
        aside.rename(program)
    return str(program)


def _sanitizer(setting: Setting) -> Outcome:
    tool = setting.tool("compute-sanitizer")
    return compare(setting, [tool, "--error-exitcode", "9", _built(setting)])


def _ncu(setting: Setting) -> Outcome:
    tool = setting.tool("ncu")
    words = [tool, "--clock-control", "none", "--launch-count", "3", _built(setting)]
    return compare(setting, words)


def _virtual_card(setting: Setting) -> Outcome:
    """A training over a share of the GPU and the CPU, under the shim."""
    python = setting.python_with("torch")
    usable("torch", setting)
    try:
        setting.native([python, "-c", "import penstock.card; print('\\n{}')"])
    except FailedError as error:
        raise NotHereError(
            f"{python} has torch and not penstock (make test-torch installs both): {error}"
        ) from error
    quota = setting.memory_bytes(2 << 30)
    argv = setting.script("torch", "virtual_card.py", "cuda=4,cpu=1", (quota >> 20) + 512)
    inside = setting.shimmed(argv, cores=CORES, memory=f"{quota >> 20}Mi")
    furthest = max(inside["difference"], inside["again"])
    right = furthest < CLOSE and inside["refused"] and inside["total_bytes"][0] <= quota
    return Outcome(
        f"losses differ from the CPU's by {furthest:.1e}; of {quota >> 20} MiB it sees "
        f"{inside['total_bytes'][0] >> 20} MiB; more is "
        f"{'refused' if inside['refused'] else 'given'}",
        aim=f"losses to {CLOSE:g}, and the quota", reached=right, is_fault=not right,
        details={"shimmed": inside},
    )  # fmt: skip


def _nvidia_smi(setting: Setting) -> Outcome:
    """Shows the tenant's memory; its table of processes is the driver's on newer ones."""
    query = [
        setting.tool("nvidia-smi"),
        "--query-gpu=memory.total",
        "--format=csv,noheader,nounits",
    ]
    arena = setting.arena
    quota = setting.memory_bytes(8 << 30)
    memory = f"{quota >> 20}Mi"
    native = children.run(arena.native(query), setting.left_s(20))
    inside = arena.shimmed(query, name="smi", memory=memory)
    done = children.run(inside, setting.left_s(20))
    whole = children.run(arena.shimmed(query[:1], name="smi", memory=memory), setting.left_s(20))
    if done.code or native.code or whole.code:
        raise FailedError(f"ended with {native.code}, {done.code}, {whole.code}: "
                          f"{children.tail(done.err + done.out)}")  # fmt: skip
    total_mib = int(re.findall(r"\d+", done.out)[0])
    return Outcome(
        f"natively {int(re.findall(r'[0-9]+', native.out)[0])} MiB, under a quota of "
        f"{quota >> 20} MiB {total_mib} MiB",
        aim="shows the quota", reached=total_mib == quota >> 20, is_fault=total_mib != quota >> 20,
        details={"shown": whole.out},
    )  # fmt: skip


def _nvml(setting: Setting) -> Outcome:
    argv = setting.own_script("nvml_view.py")
    quota = setting.memory_bytes(8 << 30)
    # One that is no tenant's is there as well: seen without the shim, and not under it.
    with setting.child(setting.arena.native(setting.own_script("hold.py", 64 << 20))) as other:
        other.wait_for_line("ready", setting.left_s(40))
        native = setting.native(argv)
        inside = setting.shimmed(argv, memory=f"{quota >> 20}Mi", cores=50)
    if native["processes"] < 2:
        raise FailedError(f"NVML tells of {native['processes']} processes where two are at work")
    right = inside["total_bytes"] == quota and inside["processes"] == inside["own"] == 1
    words = f"total {inside['total_bytes'] >> 20} MiB of {native['total_bytes'] >> 20}, "
    words += f"{inside['processes']} of {native['processes']} processes"
    return Outcome(
        words, aim="the quota, its own process and no other",
        reached=right, is_fault=not right,
        details={"native": native, "shimmed": inside},
    )  # fmt: skip

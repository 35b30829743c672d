"""What programs for one GPU say to torch.cuda; prints a line for each use: name and answer."""

import copy
import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(16, 8, device="cuda")


def places():
    yield torch.zeros(2, device=device)
    yield torch.zeros(2, device="cuda:0")
    yield torch.tensor([1.0]).cuda()
    yield torch.tensor([1.0]).to("cuda", non_blocking=True)
    yield torch.tensor([1.0]).to(device=torch.device("cuda", 0), dtype=torch.float16)
    yield torch.zeros_like(torch.zeros(2), device=device)
    yield torch.zeros(2).new_zeros(3, device="cuda")
    yield torch.randn(3, generator=torch.Generator(device="cuda").manual_seed(3), device="cuda")
    yield nn.Linear(2, 2).cuda().weight
    yield nn.Linear(2, 2, device="cuda").weight
    yield copy.deepcopy(nn.Linear(2, 2)).to(device).weight
    yield torch.as_tensor([1.0], device="cuda")
    yield torch.arange(3, device=0 if device.index else "cuda")
    with torch.device("cuda"):
        yield torch.zeros(2)
    kept = io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), kept)
    for where in ("cuda", "cuda:0", device):
        kept.seek(0)
        yield torch.load(kept, map_location=where)["weight"]
    yield torch.load(kept_at(where="cuda"))["weight"]
    yield torch.load(kept_at(), map_location=lambda s, at: s.cuda() if "cuda" in at else s)[
        "weight"
    ]
    yield torch.fft.fftfreq(4, device="cuda")
    for (batch,) in DataLoader(TensorDataset(torch.ones(4, 2)), 4, num_workers=1, pin_memory=True):
        yield batch.to(device)


def kept_at(where="cuda"):
    """What torch.save writes of a layer there."""
    kept = io.BytesIO()
    torch.save(nn.Linear(2, 2).to(where).state_dict(), kept)
    kept.seek(0)
    return kept


def tags():
    return b"cuda:0" in kept_at().getvalue() and b"penstock" not in kept_at().getvalue()


def mixed():
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler()):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        return model(x).dtype


def timed():
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    torch.cuda.synchronize()
    return first.elapsed_time(second) >= 0


def streams():
    """What a loader does that copies the next batch while this one is computed."""
    first, second = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(second):
        moved = torch.ones(4).to(device, non_blocking=True)
        inside = torch.cuda.current_stream() is second
    first.wait_stream(second)
    moved.record_stream(first)
    second.record_event().synchronize()
    with torch.cuda.stream(None):
        known = isinstance(second, torch.cuda.Stream) and second.query()
    return moved.sum().item(), inside, torch.cuda.current_stream() is first, known


class Doubling(torch.autograd.Function):
    """Its backward is to be under the autocast of its forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(context, given):
        return given * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(context, gradient):
        seen.append(torch.is_autocast_enabled())
        return gradient * 2


seen = []


def autocast_is_known():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        enabled = torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")
        out = Doubling.apply(torch.ones(2, device=device, requires_grad=True))
        dtype = torch.get_autocast_dtype("cuda")
    out.sum().backward()
    return *enabled, torch.is_autocast_enabled(), seen, dtype


def pickled():
    kept = io.BytesIO()
    torch.save({"device": device, "weight": torch.ones(2, device=device)}, kept)
    kept.seek(0)
    names = b"cuda" in kept.getvalue() and b"penstock" not in kept.getvalue()
    return names, str(torch.load(kept)["device"]), copy.deepcopy(device) == device


def old_types():
    made = torch.cuda.FloatTensor(2, 3).fill_(1.5), torch.cuda.LongTensor([1, 2])
    moved = torch.ones(2).type(torch.cuda.HalfTensor), torch.ones(2).type("torch.cuda.IntTensor")
    is_kind = isinstance(made[0], torch.cuda.FloatTensor)
    names = [one.type().rpartition(".")[2] for one in (*made, *moved, torch.ones(1))]
    back = made[1].type(torch.FloatTensor).device.type
    return {one.device.type for one in (*made, *moved)}, names, is_kind, made[0].type(), back


def profiled():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        (x + 1).sum().item()
    return any(one.key == "aten::add" for one in profiler.key_averages())


def of_the_type():
    """What programs find that take the module by the device's type."""
    found = getattr(torch, device.type)
    with found.stream(found.Stream()), found.device_of(x):
        return found.memory_stats()["allocated_bytes.all.current"] == found.memory_allocated()


def annotated(graph: torch.cuda.CUDAGraph | None, at: torch.device | None) -> torch.cuda.Stream:
    return isinstance(graph, torch.cuda.CUDAGraph), isinstance(at, torch.device)


def refused(use):
    try:
        use()
    except RuntimeError as error:
        return str(error)
    return "not refused"


USES = {
    "available": lambda: (torch.cuda.is_available(), torch.cuda.device_count()),
    "kind": lambda: (isinstance(device, torch.device), str(device), x.is_cuda, x.cpu().is_cuda),
    "places": lambda: {str(one.device) for one in places()},
    "current": lambda: (torch.cuda.current_device(), torch.cuda.set_device(0)),
    "name": torch.cuda.get_device_name,
    "memory": lambda: torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated(),
    "properties": lambda: torch.cuda.get_device_properties(0).total_memory > 1 << 20,
    "seeds": lambda: (torch.cuda.manual_seed(1), torch.cuda.manual_seed_all(1)),
    "mixed": mixed,
    "timed": timed,
    "parallel": lambda: tuple(nn.DataParallel(nn.Linear(8, 2).cuda())(x).shape),
    "moved_in_graph": lambda: torch.compile(lambda given: given.to("cuda") * 2)(torch.ones(2)),
    "compiled": lambda: tuple(torch.compile(nn.Linear(8, 2).cuda())(x).shape),
    "streams": streams,
    "autocast": autocast_is_known,
    "pickled": pickled,
    "annotated": lambda: annotated(None, device),
    "graph": lambda: refused(torch.cuda.CUDAGraph),
    "tags": tags,
    "to_cpu": lambda: str(torch.load(kept_at(), map_location={"cuda:0": "cpu"})["weight"].device),
    "states": lambda: torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all()),
    "old_types": old_types,
    "profiled": profiled,
    "of_the_type": of_the_type,
    "parts": lambda: (
        torch.cuda.random.get_rng_state().dtype,
        torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated(),
        refused(torch.cuda.graphs.CUDAGraph),
    ),
    "nccl": lambda: refused(lambda: torch.distributed.init_process_group("nccl")),
    "emptied": torch.cuda.empty_cache,
    "cpu": lambda: (str(torch.device("cpu")), str(torch.zeros(2).device)),
}

if __name__ == "__main__":
    for name, use in USES.items():
        print(name, use(), flush=True)

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
    "compiled": lambda: tuple(torch.compile(nn.Linear(8, 2).cuda())(x).shape),
    "stream": lambda: refused(torch.cuda.Stream),
    "graph": lambda: refused(torch.cuda.CUDAGraph),
    "tags": tags,
    "to_cpu": lambda: str(torch.load(kept_at(), map_location={"cuda:0": "cpu"})["weight"].device),
    "states": lambda: torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all()),
    "nccl": lambda: refused(lambda: torch.distributed.init_process_group("nccl")),
    "emptied": torch.cuda.empty_cache,
    "cpu": lambda: (str(torch.device("cpu")), str(torch.zeros(2).device)),
}

if __name__ == "__main__":
    for name, use in USES.items():
        print(name, use(), flush=True)

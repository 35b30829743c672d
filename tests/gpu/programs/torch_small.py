"""PyTorch as people use it, small: python torch_small.py MODE. Deterministic, so that two runs of a
mode on one device give the same bits.

eager, infer, compile, graphs, expandable, async_pool, loader, ddp, nccl, profile, oom
"""

import os
import sys
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
for who in ("GLOO", "NCCL"):  # two processes of one machine need no network
    os.environ.setdefault(f"{who}_SOCKET_IFNAME", "lo")
MODE = sys.argv[1]
ALLOCATORS = {"expandable": "expandable_segments:True", "async_pool": "backend:cudaMallocAsync"}
if MODE in ALLOCATORS:
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # the new name and the old
        os.environ[variable] = ALLOCATORS[MODE]

import torch  # noqa: E402
import torch.nn.functional as f  # noqa: E402
from say import digest_of, say  # noqa: E402
from torch import nn  # noqa: E402

STEPS = 20
BATCH = 64
FEATURES = 512


def model():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(FEATURES, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)
    )


def batches(count=STEPS):
    random = torch.Generator().manual_seed(11)
    for _ in range(count):
        yield (
            torch.randn(BATCH, FEATURES, generator=random),
            torch.randint(0, 10, (BATCH,), generator=random),
        )


def train(net, data, device="cuda"):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss = None
    for x, y in data:
        optimizer.zero_grad(set_to_none=True)
        loss = f.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    return loss.detach()


def tell(net, value, began, **more):
    weights = [p.detach().float().cpu().numpy() for p in net.parameters()]
    say(
        digest=digest_of(*weights),
        value=float(value),
        seconds=time.monotonic() - began,
        torch=torch.__version__,
        allocator=torch.cuda.memory.get_allocator_backend(),
        **more,
    )


def eager():
    began = time.monotonic()
    net = model().cuda()
    tell(net, train(net, batches()), began)


def infer():
    began = time.monotonic()
    net = model().cuda().to(torch.bfloat16).eval()
    with torch.inference_mode():
        outs = [net(x.cuda().to(torch.bfloat16)).float().cpu() for x, _ in batches()]
    value = float(sum(out.sum() for out in outs))
    say(digest=digest_of(*(out.numpy() for out in outs)), value=value,
        seconds=time.monotonic() - began)  # fmt: skip


def compile_():
    began = time.monotonic()
    net = model().cuda()
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches(5):
        optimizer.zero_grad(set_to_none=True)
        loss = f.cross_entropy(fast(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
    tell(net, loss.detach(), began)


def graphs():
    began = time.monotonic()
    net = model().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = (part.cuda() for part in next(batches(1)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            f.cross_entropy(net(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = f.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    for new_x, new_y in batches():
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
    torch.cuda.synchronize()
    tell(net, loss.item(), began)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=random), index % 10


def loader():
    began = time.monotonic()
    net = model().cuda()
    data = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, num_workers=4, pin_memory=True)
    tell(net, train(net, data), began)


def _rank(rank, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # this is a process of its own
    net = nn.parallel.DistributedDataParallel(model().cuda())
    loss = train(net, list(batches())[rank::2])
    if rank == 0:
        tell(net, loss, float(os.environ["BEGAN"]), ranks=2)
    dist.barrier()
    dist.destroy_process_group()


def ddp():
    os.environ["BEGAN"] = str(time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, args=(folder,), nprocs=2)


def nccl():
    import torch.distributed as dist

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
        for _ in range(10):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        dist.destroy_process_group()
    say(digest=digest_of(x.cpu().numpy()), value=float(x.sum()), seconds=time.monotonic() - began)


def profile():
    began = time.monotonic()
    net = model().cuda()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as seen:
        loss = train(net, batches(5))
        torch.cuda.synchronize()
    kernels = sum(
        event.count for event in seen.key_averages() if str(event.device_type).endswith("CUDA")
    )
    if not kernels:
        sys.exit("the profiler (CUPTI) saw no kernel")
    tell(net, loss, began, kernels=kernels)


def oom():
    """Allocates until PyTorch says that no memory is left; then goes on with half of it."""
    began = time.monotonic()
    held = []
    try:
        while True:
            held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        words = str(error).splitlines()[0]
    most = len(held)
    del held[most // 2 :]
    torch.cuda.empty_cache()
    again = torch.full((1 << 20,), 3.0, device="cuda").sum().item()
    available, total = torch.cuda.mem_get_info()
    say(digest=None, value=again, blocks=most, words=words[:200], free_bytes=available,
        total_bytes=total, seconds=time.monotonic() - began)  # fmt: skip


MODES = {
    "eager": eager, "expandable": eager, "async_pool": eager, "infer": infer, "compile": compile_,
    "graphs": graphs, "loader": loader, "ddp": ddp, "nccl": nccl, "profile": profile, "oom": oom,
}  # fmt: skip

if __name__ == "__main__":
    torch.use_deterministic_algorithms(MODE not in ("nccl", "oom"), warn_only=True)
    MODES[MODE]()

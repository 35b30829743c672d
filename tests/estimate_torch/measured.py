"""Peak memory of a step that really runs on the CPU, from the allocator's own reports.

PyTorch's profiler hears of every allocation and release of the CPU allocator, also of the
temporaries inside kernels: it knows nothing of tensors, storages or autograd.
"""

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(make_model, sample, optimizer, loss):
    """The most that is allocated at once while two training steps run."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _train(make_model(), sample(), optimizer, loss)
    changes = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for change in sorted(changes, key=lambda one: one.start_ns()):
        now += change.nbytes()
        most = max(most, now)
    return most


def _train(model, inputs, make_optimizer, loss):
    optimizer = make_optimizer(list(model.parameters()))
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        value = loss(model(inputs))
        value.backward()
        del value
        optimizer.step()


def cross_entropy(output):
    rows = output.reshape(-1, output.shape[-1])
    return torch.nn.functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long))

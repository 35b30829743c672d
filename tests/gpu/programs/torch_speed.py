"""Microseconds of a training step or of a decoded token: python torch_speed.py train|decode

Decoding is a CUDA graph of a stack of layers at batch 1, replayed and waited for once a token, as
inference servers do.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as f
from say import say
from torch import nn

WARM_UP, STEPS, TOKENS = 10, 60, 300


def timed(step, count):
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    took = []
    for _ in range(count):
        began = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        took.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(took)


def train():
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().bfloat16()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x = torch.randn(16, 128, 512, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad(set_to_none=True)
        f.mse_loss(net(x), x).backward()
        optimizer.step()

    return timed(step, STEPS)


def decode():
    torch.manual_seed(3)
    blocks = [nn.Sequential(nn.LayerNorm(2048), nn.Linear(2048, 8192), nn.GELU(),
                            nn.Linear(8192, 2048)) for _ in range(12)]  # fmt: skip
    net = nn.Sequential(*blocks).cuda().half().eval()
    x = torch.randn(1, 2048, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        for _ in range(3):
            net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        return timed(graph.replay, TOKENS)


say(us={"train": train, "decode": decode}[sys.argv[1]](), digest=None)

"""Accelerate's own loop: prepare, accumulate, clip, gather for metrics, save and load its state."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(5)
x = torch.randn(100, 12)
data = TensorDataset(x, (x[:, :4].sum(1) > 0).long())
model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
training, held = DataLoader(data, 13, shuffle=True), DataLoader(data, 30)
model, optimizer, training, held, schedule = accelerator.prepare(
    model, optimizer, training, held, schedule
)
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(3):
        model.train()
        for given, target in training:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(given), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    print("figure", "norm", norm.item())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            print("figure", "loss", loss.item())
        model.eval()
        right = 0
        for given, target in held:
            with torch.no_grad():
                chosen = model(given).argmax(1)
            chosen, target = accelerator.gather_for_metrics((chosen, target))
            right += (chosen == target).sum().item()
        print("figure", "right", right)
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    unwrapped = accelerator.unwrap_model(model)
    print("figure", "weights", sum(one.abs().sum().item() for one in unwrapped.parameters()))
    print("device", accelerator.device)

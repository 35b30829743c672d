"""timm's ResNet-18 with its optimizer, schedule, loss, mean of weights, scaler and meters."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy, random_seed

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random_seed(6)
model = timm.create_model("resnet18", pretrained=False, num_classes=4).to(device)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=8, warmup_t=2, warmup_lr_init=1e-5)
loss_of, mean = LabelSmoothingCrossEntropy(0.1), ModelEmaV3(model, decay=0.9)
scaler = NativeScaler(device=device.type) if device.type != "cpu" else None
meter = AverageMeter()
for step in range(8):
    images, labels = torch.randn(10 + step % 3, 3, 40, 40), torch.arange(10 + step % 3) % 4
    images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    out = model(images)
    loss = loss_of(out, labels)
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    schedule.step(step + 1)
    mean.update(model, step=step)
    meter.update(accuracy(out, labels)[0].item(), len(images))
    print("figure", "loss", loss.item())
print("figure", "accuracy", meter.avg)
with torch.no_grad():
    print("figure", "mean", mean.module(torch.ones(2, 3, 40, 40, device=device)).sum().item())
print("device", device)

"""A vision transformer: patches of images as words, with autocast where it is asked for."""

import sys

import torch
from torch import nn

device = torch.device(sys.argv[1])
is_mixed = len(sys.argv) > 2
torch.manual_seed(1)


class ViT(nn.Module):
    def __init__(self, patch=4, size=16, heads=2, classes=5):
        super().__init__()
        self.patch = nn.Conv2d(3, size, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, size))
        self.pos = nn.Parameter(torch.randn(1, 17, size) * 0.02)
        layer = nn.TransformerEncoderLayer(
            size, heads, 2 * size, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, classes))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.encoder(x)[:, 0])


model = ViT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
scaler = torch.amp.GradScaler(device.type, enabled=is_mixed)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(4):
    images, labels = torch.randn(14, 3, 16, 16).to(device), torch.randint(0, 5, (14,)).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_mixed):
        loss = criterion(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    print(f"{loss.item():.4f} {norm.item():.3f}")
model.eval()
with torch.inference_mode():
    print(f"{model(images).softmax(-1).max(-1).values.mean().item():.4f}")

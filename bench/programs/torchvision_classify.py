"""Torchvision: transforms v2, MobileNetV3, its loop with mixup, model average and channels_last."""

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(7)


class Images(Dataset):
    change = v2.Compose([
        v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3),
    ])  # fmt: skip

    def __len__(self):
        return 44

    def __getitem__(self, number):
        made = torch.Generator().manual_seed(number)
        image = torch.randint(0, 256, (3, 40, 40), generator=made, dtype=torch.uint8)
        return self.change(image), number % 5


mixed = v2.RandomChoice([v2.MixUp(num_classes=5), v2.CutMix(num_classes=5)])
loader = DataLoader(Images(), 12, shuffle=True, pin_memory=device.type != "cpu",
                    collate_fn=lambda some: mixed(*default_collate(some)))  # fmt: skip
model = torchvision.models.mobilenet_v3_small(num_classes=5, dropout=0.0)
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9, eps=0.03)
average = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
)
for _ in range(2):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = torch.nn.functional.cross_entropy(
            model(images.contiguous(memory_format=torch.channels_last)), labels
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        print("figure", "loss", loss.item())
model.eval()
with torch.inference_mode():
    print("figure", "out", model(torch.ones(3, 3, 32, 32, device=device)).abs().sum().item())
    boxes = torch.rand(20, 4, device=device).cumsum(1)
    kept = torchvision.ops.nms(boxes, torch.rand(20, device=device), 0.5)
    print("device", kept.device)

"""Lightning's Trainer on one GPU: fit with validation, clipping, checkpoints; test and resume."""

import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
        )
        self.net(torch.zeros(2, 1, 8, 8))

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train", loss, on_step=True, on_epoch=True)
        print("figure", "loss", loss.item())
        return loss

    def validation_step(self, batch, number):
        self.log("held", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, nesterov=True)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


def trainer(folder, epochs):
    return lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu", devices=1, max_epochs=epochs,
        gradient_clip_val=0.5, accumulate_grad_batches=2, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


lightning.seed_everything(4)
images = torch.randn(70, 1, 8, 8)
data = TensorDataset(images, (images.mean((1, 2, 3)) * 20 + 1).long().clamp(0, 2))
training, held = DataLoader(data, 11, shuffle=True), DataLoader(data, 32)
with tempfile.TemporaryDirectory() as folder:
    first = trainer(folder, 2)
    first.fit(model := Classifier(), training, held)
    print("figure", "held", first.callback_metrics["held"].item())
    again = trainer(folder, 3)
    again.fit(model, training, held, ckpt_path=first.checkpoint_callback.best_model_path)
    print("figure", "epoch", again.callback_metrics["train_epoch"].item())
    again.test(model, held, verbose=False)
    print("figure", "test", again.callback_metrics["held"].item())
    print("device", again.strategy.root_device)

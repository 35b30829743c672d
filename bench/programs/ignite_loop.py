"""Ignite's supervised trainer and evaluator with metrics, handlers, a checkpoint and early stop."""

import tempfile

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, TerminateOnNan
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
manual_seed(9)
x = torch.randn(90, 10)
data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())
model = nn.Sequential(
    nn.Linear(10, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
loss_of = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, loss_of, device=device)
metrics = {"accuracy": Accuracy(device=device), "loss": Loss(loss_of, device=device),
           "confusion": ConfusionMatrix(3, device=device)}  # fmt: skip
evaluator = create_supervised_evaluator(model, metrics, device=device)
RunningAverage(output_transform=lambda out: out).attach(trainer, "mean")
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
evaluator.add_event_handler(
    Events.COMPLETED, EarlyStopping(5, lambda engine: -engine.state.metrics["loss"], trainer)
)


@trainer.on(Events.ITERATION_COMPLETED)
def tell(engine):
    print("figure", "loss", engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def judge(engine):
    evaluator.run(DataLoader(data, 40))
    print("figure", "mean", engine.state.metrics["mean"])
    print("figure", "held", evaluator.state.metrics["loss"])
    print("figure", "accuracy", evaluator.state.metrics["accuracy"])
    print("figure", "confusion", evaluator.state.metrics["confusion"][0, 1].item())


with tempfile.TemporaryDirectory() as folder:
    objects = {"model": model, "optimizer": optimizer}
    saver = Checkpoint(objects, DiskSaver(folder, create_dir=True))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    trainer.run(DataLoader(data, 16, shuffle=True), max_epochs=3)
    Checkpoint.load_objects(objects, checkpoint=torch.load(saver.last_checkpoint))
print("device", device)

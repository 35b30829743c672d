"""Skorch: a module in scikit-learn's grid search, on "cuda"."""

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = np.random.RandomState(0).randn(120, 8).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
torch.manual_seed(14)
net = NeuralNetClassifier(
    lambda width=8: nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)),
    criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=0.02, max_epochs=4, verbose=0,
    batch_size=32, device=device, iterator_train__shuffle=True,
)  # fmt: skip
search = GridSearchCV(net, {"lr": [0.005, 0.02]}, cv=2, scoring="accuracy").fit(x, y)
for one in search.best_estimator_.history:
    print("figure", "loss", one["train_loss"])
    print("figure", "held", one["valid_loss"])
print("figure", "score", search.best_score_)
print("device", device)

"""PyTorch Geometric: two layers of GCN and one of GAT classify the nodes of a graph."""

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(11)
data = Data(x=torch.randn(60, 9), edge_index=torch.randint(0, 60, (2, 240)), y=torch.arange(60) % 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(9, 16), GCNConv(16, 16)
        self.third = GATConv(16, 3, heads=2, concat=False)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        x = self.second(x, data.edge_index).relu()
        return self.third(x, data.edge_index)


model, data = Net().to(device), data.to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
for _ in range(12):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(data), data.y)
    loss.backward()
    optimizer.step()
    print("figure", "loss", loss.item())
pooled = global_mean_pool(model(data), (torch.arange(60) // 20).to(device))
print("figure", "pooled", pooled.abs().sum().item())
print("device", data.x.device)

"""GPyTorch: an exact Gaussian process and its marginal likelihood."""

import gpytorch
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(13)
x = torch.linspace(0, 1, 50).to(device)
y = torch.sin(x * 6) + 0.1 * torch.randn(50).to(device)


class Process(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, given):
        return gpytorch.distributions.MultivariateNormal(self.mean(given), self.kernel(given))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
model = Process(likelihood).to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for _ in range(12):
    optimizer.zero_grad()
    loss = -likely(model(x), y)
    loss.backward()
    optimizer.step()
    print("figure", "loss", loss.item())
model.eval(), likelihood.eval()
with torch.no_grad():
    print("figure", "mean", likelihood(model(x[:9] + 0.01)).mean.sum().item())
print("device", x.device)

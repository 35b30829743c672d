"""What training programs for one GPU do. Prints a line for each pattern, as `patterns.py NAME…`.

Nothing here knows of Penstock: the device is "cuda" if there is one.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def data(rows=96, width=12):
    made = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=made)
    return TensorDataset(x, (x[:, :4].sum(1) > 0).long() + (x[:, 4] > 0.5).long())


def network(norm=True):
    torch.manual_seed(2)
    layers = [nn.Linear(12, 24), nn.BatchNorm1d(24) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 3)).to(device)


def loader(batch=17, **more):
    torch.manual_seed(3)
    return DataLoader(data(), batch_size=batch, shuffle="sampler" not in more, **more)


def digest(*models):
    return sum(p.double().abs().sum().item() for m in models for p in m.state_dict().values())


def epochs(model, step, count=2, **more):
    for _ in range(count):
        for x, y in loader(**more):
            step(x.to(device), y.to(device))
    return digest(model)


def trained(model, optimizer, loss_of, **more):
    def step(x, y):
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()

    return epochs(model, step, **more)


def plain():
    model = network()
    return trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        lambda x, y: F.cross_entropy(model(x), y),
    )


def accumulation():
    model = network()
    optimizer, done = torch.optim.AdamW(model.parameters(), 0.01), []

    def step(x, y):
        (F.cross_entropy(model(x), y) / 3).backward()
        done.append(1)
        if len(done) % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    return epochs(model, step)


def two_optimizers():
    first, second = network(), nn.Linear(3, 3).to(device)
    with torch.no_grad():
        second.weight.fill_(0.1), second.bias.fill_(0.0)
    a, b = torch.optim.Adam(first.parameters(), 0.01), torch.optim.SGD(second.parameters(), 0.1)

    def step(x, y):
        for optimizer in (a, b):
            optimizer.zero_grad()
            F.cross_entropy(second(first(x)), y).backward()
            optimizer.step()

    return epochs(first, step) + digest(second)


def masked_words():
    """A loss that is a mean over what is no padding."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(6):
        words = torch.randint(20, (9, 11))
        lengths = torch.randint(1, 11, (9, 1))
        mask = (torch.arange(11) < lengths).double().to(device)
        words = words.to(device)
        losses = F.cross_entropy(model(words).transpose(1, 2), words, reduction="none")
        loss = (losses * mask).sum() / mask.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return digest(model)


def penalties():
    model = network()

    def loss(x, y):
        squares = sum(p.pow(2).sum() for p in model.parameters())
        return F.cross_entropy(model(x), y, reduction="sum") / (len(x) + 1) + 0.01 * squares.sqrt()

    return trained(model, torch.optim.RMSprop(model.parameters(), 0.003), loss)


def pairs_in_the_batch():
    """Each sample's loss depends on all others."""
    model = network(norm=False)

    def loss(x, y):
        out = F.normalize(model(x), dim=1)
        same = (y[:, None] == y[None]).double()
        near = torch.cdist(out, out)
        return (
            (same * near).mean() + ((1 - same) * (1 - near).clamp(min=0)).mean() + out.std(0).mean()
        )

    return trained(model, torch.optim.Adam(model.parameters(), 0.01), loss)


def halves_of_the_batch():
    model = network(norm=False)

    def loss(x, _):
        a, b = model(x[: len(x) // 2 * 2]).chunk(2)
        weights = torch.linspace(0, 1, len(x), device=device) / len(x)
        return (a - b).abs().mean() + weights.matmul(model(x)).pow(2).mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.05), loss)


def gradient_penalty():
    model = network(norm=False)

    def loss(x, y):
        x = x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + (slope.norm(dim=1) - 1).pow(2).mean()

    return trained(model, torch.optim.Adam(model.parameters(), 0.01), loss)


def layers_by_chance():
    torch.manual_seed(5)
    layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4)).to(device)
    head = network()

    def loss(x, y):
        for layer in layers:
            if torch.rand(()) < 0.5:
                x = x + layer(x).relu()
        if x.mean().item() > 0.1:  # of the whole batch
            x = x * 0.5
        return F.cross_entropy(head(x), y)

    torch.manual_seed(6)
    parameters = [*layers.parameters(), *head.parameters()]
    return trained(head, torch.optim.SGD(parameters, 0.05), loss) + digest(layers)


def lbfgs():
    model = network(norm=False)
    x, y = (one.to(device) for one in data().tensors)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=6)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return digest(model)


def own_update():
    model = network()

    def step(x, y):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.1 * g / (g.norm() + 1e-3)

    return epochs(model, step)


def loops_in_loops():
    """Two loaders at once, one within the other, a batch that is kept, and figures of its own."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(7)
    training, validation = random_split(data(), [64, 32])
    right = seen = total = 0
    for (x, y), (other, _) in zip(
        DataLoader(training, 16, shuffle=True), DataLoader(validation, 8), strict=True
    ):
        x, y, other = x.to(device), y.to(device), other.to(device)
        loss = F.cross_entropy(model(x), y) + 0.1 * model(other).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        model.eval()
        with torch.no_grad():
            for v, w in DataLoader(Subset(data(), torch.randperm(96)[:20].tolist()), 7):
                right += (model(v.to(device)).argmax(1) == w.to(device)).sum().item()
                seen += len(v)
        model.train()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return digest(model) + right / seen + total


class Ragged(Dataset):
    """Samples of unlike lengths."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.arange(i % 5 + 2.0), i % 2


def padded_sequences():
    torch.manual_seed(8)
    lstm, head = nn.LSTM(1, 8, batch_first=True).to(device), nn.Linear(8, 2).to(device)
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], 0.02)

    def together(samples):
        xs, ys = zip(*samples, strict=True)
        return nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.tensor(ys)

    weights = torch.arange(1.0, 31.0)
    sampler = WeightedRandomSampler(weights, 40, generator=torch.Generator().manual_seed(9))
    for x, y in DataLoader(Ragged(), batch_size=8, sampler=sampler, collate_fn=together):
        out, _ = lstm(x[..., None].to(device))
        optimizer.zero_grad()
        F.cross_entropy(head(out[:, -1]), y.to(device)).backward()
        optimizer.step()
    return digest(lstm, head)


def adversaries():
    torch.manual_seed(10)
    maker, judge = nn.Linear(4, 12).to(device), network()
    a = torch.optim.Adam(maker.parameters(), 0.01, betas=(0.5, 0.999))
    b = torch.optim.Adam(judge.parameters(), 0.01, betas=(0.5, 0.999))

    def step(x, y):
        noise = torch.randn(len(x), 4).to(device)
        b.zero_grad()
        made = maker(noise)
        (F.cross_entropy(judge(x), y) + judge(made.detach()).pow(2).mean()).backward()
        b.step()
        a.zero_grad()
        (-judge(made).log_softmax(1)[:, 0].mean()).backward()
        a.step()

    return epochs(judge, step) + digest(maker)


def schedule_and_checkpoint():
    import io

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=24)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=False):
                F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            schedule.step()
        kept = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        kept.seek(0)
        state = torch.load(kept, map_location=device)
        model = network()
        model.load_state_dict(state["model"])
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        optimizer.load_state_dict(state["optimizer"])
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.05, total_steps=24, last_epoch=schedule.last_epoch
        )
    return digest(model)


PATTERNS = {one.__name__: one for one in (
    plain, accumulation, two_optimizers, masked_words, penalties, pairs_in_the_batch,
    halves_of_the_batch, gradient_penalty, layers_by_chance, lbfgs, own_update, loops_in_loops,
    padded_sequences, adversaries, schedule_and_checkpoint,
)}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    # A bias before batch normalization has no gradient but noise, of which Adam makes steps. In
    # double precision the noise is below Adam's eps.
    torch.set_default_dtype(torch.float64)
    for name in sys.argv[1:] or PATTERNS:
        print(name, f"{PATTERNS[name]():.12g}", flush=True)

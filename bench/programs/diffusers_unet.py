"""Diffusers' UNet learns to take noise away, with DDPM's schedule, EMA and a sample at the end."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(8)
model = UNet2DModel(
    sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), norm_num_groups=8,
    up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
).to(device)  # fmt: skip
noises = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 12)
mean = EMAModel(model.parameters(), decay=0.9)
for step in range(12):
    clean = torch.randn(5 + step % 3, 1, 16, 16).cumsum(2).to(device)
    noise = torch.randn(clean.shape).to(device)
    times = torch.randint(0, 50, (len(clean),)).to(device)
    guess = model(noises.add_noise(clean, noise, times), times).sample
    loss = torch.nn.functional.mse_loss(guess, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    mean.step(model.parameters())
    print("figure", "loss", loss.item())
noises.set_timesteps(5)
image = torch.ones(1, 1, 16, 16, device=device)
with torch.no_grad():
    for time in noises.timesteps:
        image = noises.step(model(image, time).sample, time, image,
                            generator=torch.Generator().manual_seed(1)).prev_sample  # fmt: skip
print("figure", "image", image.abs().sum().item())
print("device", device)

"""A diffusion U-Net: group norm, SiLU, attention, skips, time embeddings, an average of weights, a sampling loop."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(2)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
STEPS = 20


class Res(nn.Module):
    """Convolutions that know the time."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(16, after)
        self.second = nn.Sequential(nn.GroupNorm(4, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class UNet(nn.Module):
    """Down, through the middle, and up."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.down, self.middle, self.up = Res(8, 16), Res(16, 16), Res(24, 8)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(1000) * torch.arange(8, device=x.device) / 8)
        angles = time[:, None].float() * rates[None]
        embedded = torch.cat((angles.sin(), angles.cos()), dim=1)
        x = self.into(x)
        low = self.middle(self.down(functional.avg_pool2d(x, 2), embedded), embedded)
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
        wide = functional.interpolate(low, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat((wide, x), dim=1), embedded))


model = UNet().to(device)
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
betas = torch.linspace(1e-4, 0.2, STEPS, device=device)
kept = torch.cumprod(1.0 - betas, dim=0)
images, noises = torch.randn(8, 1, 8, 8), torch.randn(6, 8, 1, 8, 8)
times = torch.randint(0, STEPS, (6, 8))
for step in range(6):
    clean, noise, time = images.to(device), noises[step].to(device), times[step].to(device)
    part = kept[time][:, None, None, None]
    loss = functional.mse_loss(model(part.sqrt() * clean + (1 - part).sqrt() * noise, time), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)
    print(step, loss.item())
with torch.no_grad():
    x = noises[0].to(device)
    for time in reversed(range(STEPS)):
        guess = average(x, torch.full((8,), time, device=device, dtype=torch.long))
        x = (x - betas[time] / (1 - kept[time]).sqrt() * guess) / (1 - betas[time]).sqrt()
print(x.clamp(-1, 1).mean().item())

"""Two networks against each other: transposed convolutions, spectral norm, two optimizers, noise of its own generator."""

import torch
from torch import nn

torch.manual_seed(9)
device = "cuda" if torch.cuda.is_available() else "cpu"
noise = torch.Generator(device=device)
noise.manual_seed(4)
maker = nn.Sequential(
    nn.ConvTranspose2d(8, 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 1, 4, 2, 1),
    nn.Tanh(),
).to(device)
critic = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 8, 4, 2, 1)),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 1, 4, 1, 0),
    nn.Flatten(),
).to(device)
for part in (maker, critic):
    for module in part.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias.data, 0.1)
real = torch.randn(16, 1, 8, 8)
loss = nn.BCEWithLogitsLoss()
of_maker = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
ones, zeros = torch.ones(16, 1, device=device), torch.zeros(16, 1, device=device)
for step in range(5):
    drawn = torch.randn(16, 8, 1, 1, generator=noise, device=device)
    made = maker(drawn)
    of_critic.zero_grad()
    told = loss(critic(real.to(device)), ones) + loss(critic(made.detach()), zeros)
    told.backward()
    of_critic.step()
    of_maker.zero_grad()
    fooled = loss(critic(made), ones)
    fooled.backward()
    of_maker.step()
    print(step, told.item(), fooled.item())

"""DCGAN as the tutorial has it: weights_init, two optimizers, fixed noise, a grid of samples, and gradients penalised as in WGAN-GP."""

import os
import random

import torch
import torch.nn as nn
import torch.optim as optim
import torch.utils.data

manualSeed = 999
random.seed(manualSeed)
torch.manual_seed(manualSeed)
torch.use_deterministic_algorithms(True, warn_only=True)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
ngpu, nz, ngf, ndf, nc = 1, 16, 8, 8, 1
device = torch.device("cuda:0" if (torch.cuda.is_available() and ngpu > 0) else "cpu")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
if (device.type == "cuda") and (ngpu > 1):
    netG = nn.DataParallel(netG, list(range(ngpu)))
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz, 1, 1, device=device)
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
dataloader = torch.utils.data.DataLoader([(torch.randn(nc, 16, 16), 0) for _ in range(24)], batch_size=8)
G_losses, D_losses, img_list = [], [], []
for i, data in enumerate(dataloader, 0):
    netD.zero_grad()
    real_cpu = data[0].to(device)
    b_size = real_cpu.size(0)
    label = torch.full((b_size,), real_label, dtype=torch.float, device=device)
    output = netD(real_cpu).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()
    noise = torch.randn(b_size, nz, 1, 1, device=device)
    fake = netG(noise)
    label.fill_(fake_label)
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(real_label)
    output = netD(fake).view(-1)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    print("[%d/%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f" % (i, len(dataloader), errD.item(), errG.item(), D_x))
    G_losses.append(errG.item())
    with torch.no_grad():
        img_list.append(netG(fixed_noise).detach().cpu())
alpha = torch.rand(8, 1, 1, 1, device=device)
mixed = (alpha * real_cpu + (1 - alpha) * fake.detach()).requires_grad_(True)
gradients = torch.autograd.grad(netD(mixed).sum(), mixed, create_graph=True)[0]
penalty = ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
penalty.backward()
print(penalty.item(), torch.stack(img_list).shape)

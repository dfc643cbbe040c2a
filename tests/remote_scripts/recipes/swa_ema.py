"""Weight averaging: SWA with update_bn and SWALR, and an EMA by AveragedModel with buffers."""

import copy

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).cuda()
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
hand = copy.deepcopy(model)
for p in hand.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(6):
    for input, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(input.cuda()), target.cuda()).backward()
        optimizer.step()
        ema_model.update_parameters(model)
        with torch.no_grad():
            for mine, its in zip(hand.parameters(), model.parameters()):
                mine.mul_(0.9).add_(its.data, alpha=0.1)
            torch._foreach_lerp_(list(hand.parameters()), list(model.parameters()), 0.1)
    if epoch > 3:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(loader, swa_model, device=torch.device("cuda"))
swa_model.eval(), ema_model.eval()
for averaged in (swa_model, ema_model):
    hits = sum((averaged(i.cuda()).argmax(1) == t.cuda()).sum().item() for i, t in loader)
    print(hits, int(averaged.n_averaged))
    assert hits > 40
torch.save({"swa": swa_model.state_dict(), "ema": ema_model.module.state_dict()}, "/tmp/swa.pt")
model.load_state_dict(torch.load("/tmp/swa.pt", weights_only=True)["ema"])

"""TorchScript on a device: traced and scripted modules, that share their parameters, are saved, loaded, moved, trained."""

import io
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 5)

    def forward(self, x):
        return self.fc(torch.flatten(torch.relu(self.bn(self.conv(x))), 1))


@torch.jit.script
def counted(x: torch.Tensor, most: int) -> torch.Tensor:
    total = torch.zeros_like(x)
    for i in range(most):
        if bool(x.sum() > i):
            total = total + x * i
    return total


model, x = Net().to(device).eval(), torch.rand(2, 1, 8, 8).to(device)
print(counted(torch.ones(3).to(device), 5).tolist())
traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
print([node.kind() for node in traced.inlined_graph.nodes() if "aten" in node.kind()])
with torch.no_grad():
    model.fc.bias.add_(1)
for made in (traced, scripted, torch.jit.freeze(scripted)):
    for _ in range(3):
        torch.testing.assert_close(made(x), model(x))

path = tempfile.mkdtemp() + "/traced.pt"
traced.save(path)
buffer = io.BytesIO()
torch.jit.save(scripted, buffer)
buffer.seek(0)
for loaded in (torch.jit.load(path, map_location=device), torch.jit.load(buffer).to(device)):
    assert next(loaded.parameters()).device == x.device
    torch.testing.assert_close(loaded(x), model(x))
    loaded.half()
    assert next(loaded.parameters()).dtype == torch.float16
    loaded.float().train()
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loaded(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[0] > losses[1] > losses[2])
assert next(model.parameters()).device == x.device, "saving moves nothing"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


tied = torch.jit.script(Tied()).to(device)
with torch.no_grad():
    tied.embed.weight.add_(1)
print(len(list(tied.parameters())), torch.equal(tied.embed.weight, tied.out.weight))
lstm, steps = nn.LSTM(4, 5).to(device).eval(), torch.rand(3, 2, 4).to(device)
torch.testing.assert_close(torch.jit.trace(lstm, steps)(steps)[0], lstm(steps)[0])

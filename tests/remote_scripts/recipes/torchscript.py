"""TorchScript: a model traced, saved and loaded, scripted; a scripted function."""

import tempfile
from typing import Dict, List

import torch
import torch.nn as nn

device = torch.device("cuda")
torch.manual_seed(0)
folder = tempfile.mkdtemp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 5)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(torch.flatten(x, 1))


@torch.jit.script
def scaled(x: torch.Tensor, factor: float, names: List[str]) -> Dict[str, torch.Tensor]:
    out: Dict[str, torch.Tensor] = {}
    for n in names:
        out[n] = x * factor
    return out


model = Net().to(device).eval()
example = torch.rand(2, 1, 8, 8, device=device)
want = model(example)
traced = torch.jit.trace(model, example)
torch.testing.assert_close(traced(example), want)
traced.save(folder + "/traced.pt")
torch.testing.assert_close(torch.jit.load(folder + "/traced.pt", map_location="cuda")(example), want)
scripted = torch.jit.script(model)
torch.testing.assert_close(scripted(example), want)
print(scaled(example, 2.0, ["a"])["a"].shape)

"""Models prepared for serving: torch.export, state dicts by safetensors, mmap and assign, pruning, hooks."""

import tempfile

import torch
import torch.nn as nn
import torch.nn.utils.prune as prune
from safetensors.torch import load_file, load_model, save_file, save_model

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


model = Net().to(device).eval()
example = torch.rand(2, 1, 8, 8, device=device)
want = model(example)
exported = torch.export.export(model, (example,))
torch.testing.assert_close(exported.module()(example), want)
save_file(model.state_dict(), folder + "/model.safetensors")
state = load_file(folder + "/model.safetensors", device="cuda")
assert all(v.is_cuda for v in state.values())
fresh = Net().to(device).eval()
fresh.load_state_dict(state)
torch.testing.assert_close(fresh(example), want)
save_model(model, folder + "/whole.safetensors")
load_model(fresh, folder + "/whole.safetensors", device="cuda")
torch.save(model.state_dict(), folder + "/state.pt")
with torch.device("meta"):
    empty = Net()
empty.load_state_dict(torch.load(folder + "/state.pt", mmap=True, map_location="cpu", weights_only=True), assign=True)
torch.testing.assert_close(empty.eval().to(device)(example), want)
hollow = Net().to("meta").to_empty(device=device)
hollow.load_state_dict(state)
prune.random_unstructured(model.fc, name="weight", amount=0.3)
prune.l1_unstructured(model.conv, name="weight", amount=3)
print(float((model.fc.weight == 0).sum()) / model.fc.weight.nelement())
prune.remove(model.fc, "weight")
features = {}
handle = model.conv.register_forward_hook(lambda m, i, o: features.__setitem__("conv", o.detach()))
model(example)
handle.remove()
print(features["conv"].shape, next(model.parameters()).device, sum(p.numel() for p in model.parameters()))

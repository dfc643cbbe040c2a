"""Quantisation: QAT with fake-quantised layers on the GPU, dynamic quantisation on the CPU after it, int8 weights by hand."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda")


class FakeQuantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return (x / scale).round().clamp(-128, 127) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class QLinear(nn.Linear):
    def forward(self, x):
        scale = self.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        return F.linear(x, FakeQuantise.apply(self.weight, scale), self.bias)


model = nn.Sequential(QLinear(16, 32), nn.ReLU(), QLinear(32, 4)).to(device)
x = torch.randn(64, 16, device=device)
y = x[:, :4].argmax(1)
opt = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(20):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
print(loss.item())
weights = [(m.weight.abs().amax(1, keepdim=True) / 127, m) for m in model if isinstance(m, QLinear)]
int8 = [((m.weight / s).round().to(torch.int8), s, m.bias) for s, m in weights]
h = x
for i, (w, s, b) in enumerate(int8):
    h = h @ (w.to(torch.float32) * s).t() + b
    h = h.relu() if i == 0 else h
torch.testing.assert_close(h, model(x), rtol=1e-3, atol=1e-3)
q = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
qc = torch.fake_quantize_per_channel_affine(
    x, torch.full((64,), 0.05, device=device), torch.zeros(64, dtype=torch.int32, device=device), 0, -128, 127
)
print(q.shape, qc.shape)
plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
plain.load_state_dict(model.cpu().state_dict())
quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(plain), {nn.Linear}, dtype=torch.qint8)
print((quantised(x.cpu()).argmax(1) == y.cpu()).float().mean().item())
half = copy.deepcopy(plain).half().to(device)
print(
    half(x.half()).dtype,
    half.bfloat16()(x.bfloat16()).dtype,
    x.to(torch.float8_e4m3fn).float().sub(x).abs().max().item() < 1,
)

"""torch.compile as its tutorial uses it: functions, modules, modes, graph breaks, dynamic sizes, training."""

import torch
import torch.nn as nn

torch._dynamo.config.cache_size_limit = 16
device = "cuda"
torch.set_float32_matmul_precision("high")


def foo(x, y):
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


opt_foo1 = torch.compile(foo)
x, y = torch.randn(10, 10, device=device), torch.randn(10, 10, device=device)
torch.testing.assert_close(opt_foo1(x, y), foo(x, y))


@torch.compile
def opt_foo2(x, y):
    if x.sum() < 0:
        y = y * -1
    return x / (torch.abs(x) + 1) * y


print(opt_foo2(x, y).shape, opt_foo2(-x.abs(), y).shape)


class MyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 10)
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x):
        return nn.functional.relu(self.norm(self.lin(x)))


mod = MyModule().to(device)
opt_mod = torch.compile(mod, mode="reduce-overhead")
torch.manual_seed(0)
optimizer = torch.optim.Adam(opt_mod.parameters(), lr=1e-2)


def timed(fn):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    result = fn()
    end.record()
    torch.cuda.synchronize()
    return result, start.elapsed_time(end) / 1000


def train(model, data):
    optimizer.zero_grad(True)
    loss = torch.nn.CrossEntropyLoss()(model(data[0]), data[1])
    loss.backward()
    optimizer.step()
    return loss


data = torch.randn(16, 10, device=device), torch.randint(10, (16,), device=device)
losses = []
for i in range(6):
    loss, seconds = timed(lambda: train(opt_mod, data))
    losses.append(loss.item())
print(losses)
assert losses[-1] < losses[0]
dynamic = torch.compile(lambda x: (x * 2).relu().sum(-1), dynamic=True)
for n in (3, 5, 9):
    print(dynamic(torch.ones(n, 4, device=device)).tolist()[0])
step = torch.compile(optimizer.step)
train(opt_mod, data)
with torch.no_grad():
    print(torch.compile(mod.eval(), mode="max-autotune")(data[0]).shape)
print(opt_mod.state_dict().keys() == {f"_orig_mod.{k}" for k in mod.state_dict()})
torch.compiler.reset()

"""Ensembles, gradients for each sample, Jacobians and Hessians by torch.func, in the manner of its tutorials."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

torch.manual_seed(0)
device = "cuda"


class SimpleMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


data = torch.randn(6, 8, 4, 4, device=device)
targets = torch.randint(10, (48,), device=device)
models = [SimpleMLP().to(device) for _ in range(3)]
params, buffers = stack_module_state(models)
base_model = copy.deepcopy(models[0]).to("meta")


def fmodel(params, buffers, x):
    return functional_call(base_model, (params, buffers), (x,))


minibatch = data[0]
together = vmap(fmodel, in_dims=(0, 0, None))(params, buffers, minibatch)
torch.testing.assert_close(together, torch.stack([m(minibatch) for m in models]), atol=1e-4, rtol=1e-4)
different = vmap(fmodel)(params, buffers, data[:3])
print(different.shape)

model = SimpleMLP().to(device)
params = {k: v.detach() for k, v in model.named_parameters()}


def compute_loss(params, sample, target):
    predictions = functional_call(model, (params, {}), (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))


samples = torch.randn(8, 4, 4, device=device)
per_sample = vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, samples, targets[:8])
for i in range(8):
    loss = F.cross_entropy(model(samples[i : i + 1]), targets[i : i + 1])
    for got, want in zip(per_sample.values(), torch.autograd.grad(loss, model.parameters())):
        torch.testing.assert_close(got[i], want, atol=1e-4, rtol=1e-4)
values = vmap(grad_and_value(compute_loss), in_dims=(None, 0, 0))(params, samples, targets[:8])[1]
print(values.shape)

weight, bias, x = torch.randn(4, 4, device=device), torch.randn(4, device=device), torch.randn(4, device=device)
predict = lambda weight, bias, x: F.linear(x, weight, bias).tanh()
torch.testing.assert_close(jacrev(predict, argnums=2)(weight, bias, x), jacfwd(predict, argnums=2)(weight, bias, x))
h = hessian(lambda x: predict(weight, bias, x).sum())(x)
print(h.shape, torch.allclose(h, h.T))
_, tangent = jvp(lambda x: predict(weight, bias, x), (x,), (torch.ones_like(x),))
_, pullback = vjp(lambda x: predict(weight, bias, x), x)
print(torch.dot(tangent, torch.ones_like(x)).item() - pullback(torch.ones_like(x))[0].sum().item() < 1e-4)
noise = vmap(lambda x: x + torch.randn_like(x), randomness="different")(torch.zeros(4, 3, device=device))
assert noise[0].ne(noise[1]).any()

"""Functions of one's own: forward and backward, setup_context, vmap, double backward, gradcheck, hooks, custom operators."""

import torch
from torch.autograd import gradcheck, gradgradcheck

device = torch.device("cuda")
torch.manual_seed(0)


class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input**3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input**2 - 1)


class MyReLU(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        return input.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (input,) = ctx.saved_tensors
        return torch.where(input > 0, grad, 0.0)


x = torch.linspace(-3.14, 3.14, 200, device=device)
y = torch.sin(x)
a, b, c, d = (torch.full((), v, device=device, requires_grad=True) for v in (0.0, -1.0, 0.0, 0.3))
for t in range(40):
    P3 = LegendrePolynomial3.apply
    loss = (a + b * P3(c + d * x) - y).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        for p in (a, b, c, d):
            p -= 5e-6 * p.grad
            p.grad = None
print(loss.item(), f"y = {a.item()} + {b.item()} * P3({c.item()} + {d.item()} x)")
inputs = torch.randn(5, dtype=torch.double, device=device, requires_grad=True)
print(gradcheck(LegendrePolynomial3.apply, (inputs,)), gradgradcheck(LegendrePolynomial3.apply, (inputs,)))
print(torch.func.vmap(MyReLU.apply)(torch.randn(3, 4, device=device)).shape)
w = torch.randn(3, 3, device=device, requires_grad=True)
seen = []
h = w.register_hook(lambda g: seen.append(g.norm().item()) or g * 2)
w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
(w * w).sum().backward()
print(len(seen), torch.allclose(w.grad, 4 * w))
h.remove()
with torch.autograd.detect_anomaly():
    try:
        (torch.sqrt(w - w - 1)).sum().backward()
    except RuntimeError as error:
        print("nan" in str(error))


@torch.library.custom_op("recipes::scaled_sum", mutates_args=())
def scaled_sum(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.sum() * scale


@scaled_sum.register_fake
def _(x, scale):
    return x.new_empty(())


scaled_sum.register_autograd(
    lambda ctx, grad: (grad * ctx.scale * torch.ones(ctx.shape, device=grad.device), None),
    setup_context=lambda ctx, inputs, output: (
        setattr(ctx, "scale", inputs[1]),
        setattr(ctx, "shape", inputs[0].shape),
    ),
)
v = torch.ones(4, device=device, requires_grad=True)
scaled_sum(v, 3.0).backward()
print(v.grad.tolist())
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
    z = (v * v).exp()
z.sum().backward()
print(
    v._version,
    v.grad.isfinite().all().item(),
    torch.autograd.functional.hessian(lambda t: t.pow(3).sum(), v.detach()).diag().tolist(),
)

"""Second-order and physics: LBFGS with a closure in double precision, a PINN with derivatives, a neural ODE by hand, linear algebra."""

import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
np.random.seed(0)
torch.manual_seed(0)
device = torch.device("cuda")
wave = torch.from_numpy(np.sin(np.arange(40)[None] / 3 + np.random.rand(6, 1))).to(device)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.linear = nn.LSTMCell(1, 12), nn.Linear(12, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), 12, dtype=torch.double, device=input.device)
        c_t = torch.zeros(input.size(0), 12, dtype=torch.double).to(input)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            outputs += [self.linear(h_t)]
        for i in range(future):
            h_t, c_t = self.lstm1(outputs[-1], (h_t, c_t))
            outputs += [self.linear(h_t)]
        return torch.cat(outputs, dim=1)


seq = Sequence().double().to(device)
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4, line_search_fn="strong_wolfe")
for i in range(2):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(wave[:, :-1]), wave[:, 1:])
        loss.backward()
        return loss

    print("loss:", optimizer.step(closure).item())
with torch.no_grad():
    print(seq(wave[:1, :-1], future=5).cpu().numpy()[0, -5:])
torch.set_default_dtype(torch.float32)
pinn = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
opt = torch.optim.Adam(pinn.parameters(), lr=1e-2)
t = torch.linspace(0, 1, 20, device=device).view(-1, 1).requires_grad_(True)
for _ in range(10):
    u = pinn(t)
    dudt = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True, retain_graph=True)[0]
    d2 = torch.autograd.grad(dudt, t, torch.ones_like(dudt), create_graph=True)[0]
    loss = ((d2 + 4 * u) ** 2).mean() + ((u[0] - 1) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
y = torch.tensor([[1.0, 0.0]], device=device)
A = nn.Parameter(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], device=device))
for _ in range(10):
    k1 = y @ A.T
    k2 = (y + 0.05 * k1) @ A.T
    y = y + 0.1 * k2
y.sum().backward()
m = torch.randn(5, 5, device=device)
spd = m @ m.T + 5 * torch.eye(5, device=device)
L = torch.linalg.cholesky(spd)
x = torch.cholesky_solve(torch.ones(5, 1, device=device), L)
torch.testing.assert_close(spd @ x, torch.ones(5, 1, device=device), atol=1e-4, rtol=1e-4)
U, S, Vh = torch.linalg.svd(m, full_matrices=False)
torch.testing.assert_close(U @ S.diag() @ Vh, m, atol=1e-4, rtol=1e-4)
q, r = torch.linalg.qr(m)
w, v = torch.linalg.eigh(spd)
print(
    A.grad.norm().item(),
    torch.linalg.slogdet(spd)[1].item(),
    torch.linalg.lstsq(m, m[:, 0:1]).solution.flatten().tolist()[0],
    torch.matrix_exp(A.detach()).tolist()[0],
)

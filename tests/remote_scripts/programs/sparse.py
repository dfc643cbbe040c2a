"""Sparse matrices and gradients: products, their gradients, optimizers, formats, files; and what is refused by name."""

import copy
import io

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
places, values = torch.randint(0, 5, (2, 12)), torch.randn(12)
here = torch.sparse_coo_tensor(places, values, (5, 5))
wide, dense = torch.randn(5, 3), here.to_dense()
a, x = here.to(device), wide.to(device)


def same(made, wanted):
    made = made.to_dense() if made.layout is not torch.strided else made
    torch.testing.assert_close(made.cpu(), wanted)


for made in (a, here.to(device=device), torch.sparse_coo_tensor(places, values, (5, 5), device=device), a.cpu(), +a):
    same(made, dense)
print(a.layout, a.is_sparse, a.is_cuda == (device == "cuda"), a.shape, a._nnz(), a.is_coalesced(), a.sparse_dim())
for made in (a @ x, torch.sparse.mm(a, x), torch.spmm(a, x), a.to_sparse_csr() @ x):
    same(made, dense @ wide)
same(a.t() @ x, dense.t() @ wide)
same(a @ x[:, 0], dense @ wide[:, 0])
same(x.t() @ a, wide.t() @ dense)
same(torch.sparse.addmm(x, a, x, beta=2, alpha=3), 2 * wide + 3 * (dense @ wide))
same(a * 2 + a / 2, dense * 2.5)
same(-a, -dense)
same(torch.ones(5, 5, device=device) + a, 1 + dense)
same(dense.to(device).to_sparse(), dense)
same(a.double().float(), dense)
same(torch.sparse.sum(a), dense.sum())
ordered = a.coalesce()
same(ordered.indices(), here.coalesce().indices())
same(ordered.values(), here.coalesce().values())
rows = a.to_sparse_csr()
print(rows.layout, rows.crow_indices().tolist(), rows.col_indices().tolist())
file = io.BytesIO()
torch.save(a, file)
file.seek(0)
again = torch.load(file)
same(again, dense)
print(again.device == a.device, again.layout)
same(copy.deepcopy(a), dense)

left, right = wide.clone().requires_grad_(), wide.to(device).requires_grad_()
(here.coalesce() @ left).pow(2).sum().backward()
(a @ right).pow(2).sum().backward()
same(right.grad, left.grad)


def trained(optimizer, made, steps=3):
    torch.manual_seed(1)
    layer = made().to(device)
    chosen = optimizer(layer.parameters())
    for _ in range(steps):
        chosen.zero_grad()
        loss = layer(torch.tensor([[1, 2, 2, 7]], device=device)).pow(2).sum()
        loss = loss + layer(torch.tensor([[3, 2]], device=device)).sum()
        loss.backward()
        assert layer.weight.grad.layout is torch.sparse_coo
        chosen.step()
    print([round(each, 5) for each in layer.weight.detach().cpu().flatten().tolist()])


for optimizer in (lambda p: torch.optim.SparseAdam(list(p), lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)):
    trained(optimizer, lambda: nn.Embedding(10, 2, sparse=True))
trained(lambda p: torch.optim.Adagrad(p, lr=0.1), lambda: nn.Embedding(10, 2, sparse=True, padding_idx=2))
trained(lambda p: torch.optim.SGD(p, lr=0.1), lambda: nn.EmbeddingBag(10, 2, sparse=True, mode="sum"))

if device == "cuda":
    for refused in (lambda: torch.sparse.mm(a, a), lambda: torch.sparse.softmax(a, 1), lambda: a.sin()):
        try:
            refused()
        except NotImplementedError as error:
            assert "docs/remote-scripts.md" in str(error), error
        else:
            raise AssertionError("it was done")

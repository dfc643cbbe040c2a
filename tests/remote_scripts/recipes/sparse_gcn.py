"""A graph network with a sparse adjacency matrix, scatter and index_add, and products of COO and CSR matrices."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
n = 30
edges = torch.randint(0, n, (2, 90))
edges = torch.cat([edges, edges.flip(0), torch.arange(n).repeat(2, 1)], 1)
adj = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (n, n)).coalesce()
degree = torch.sparse.sum(adj, dim=1).to_dense()
norm = torch.sparse_coo_tensor(adj.indices(), adj.values() / degree[adj.indices()[0]], (n, n)).to(device)
features, labels = torch.randn(n, 8, device=device), torch.randint(0, 3, (n,), device=device)


class GraphConvolution(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fin, fout))
        self.bias = nn.Parameter(torch.zeros(fout))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return torch.spmm(adj, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(8, 16), GraphConvolution(16, 3)

    def forward(self, x, adj):
        x = F.dropout(F.relu(self.gc1(x, adj)), 0.3, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


model = GCN().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
for epoch in range(20):
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, norm), labels)
    loss.backward()
    optimizer.step()
print(loss.item())
src, dst = edges.to(device)
messages = features[src]
summed = torch.zeros(n, 8, device=device).index_add_(0, dst, messages)
mean = torch.zeros(n, 8, device=device).scatter_reduce_(
    0, dst[:, None].expand(-1, 8), messages, "mean", include_self=False
)
torch.testing.assert_close(summed / torch.bincount(dst, minlength=n)[:, None], mean)
dense = norm.to_dense()
torch.testing.assert_close(torch.sparse.mm(norm, features), dense @ features)
torch.testing.assert_close(norm.to_sparse_csr() @ features, dense @ features)
print(norm.is_cuda, norm._nnz(), norm.coalesce().values().shape)
embedding = nn.Embedding(50, 4, sparse=True).cuda()
sparse_opt = torch.optim.SparseAdam(list(embedding.parameters()), lr=0.1)
embedding(torch.tensor([1, 2, 2], device=device)).sum().backward()
sparse_opt.step()
print(embedding.weight.grad.is_sparse)

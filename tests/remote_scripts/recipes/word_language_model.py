"""An LSTM language model with tied weights, repackaged hidden states, clipping, and the whole model saved and loaded."""

import math
import tempfile

import torch
import torch.nn as nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.2, tie_weights=True):
        super().__init__()
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i, bptt=8):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


torch.manual_seed(1111)
device = torch.device("cuda")
train_data = batchify(torch.arange(400) % 20, 5)
model = RNNModel(20, 16, 16, 2).to(device)
criterion = nn.NLLLoss()


def evaluate(model):
    model.eval()
    total_loss, hidden = 0.0, model.init_hidden(5)
    with torch.no_grad():
        for i in range(0, train_data.size(0) - 1, 8):
            data, targets = get_batch(train_data, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(train_data) - 1)


lr, best = 5.0, None
path = tempfile.mkdtemp() + "/model.pt"
for epoch in range(4):
    model.train()
    hidden = model.init_hidden(5)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, 8)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    val = evaluate(model)
    print(f"epoch {epoch} loss {val:.3f} ppl {math.exp(val):.2f}")
    if not best or val < best:
        with open(path, "wb") as f:
            torch.save(model, f)
        best = val
    else:
        lr /= 4.0
with open(path, "rb") as f:
    model = torch.load(f, weights_only=False)
    model.rnn.flatten_parameters()
assert abs(evaluate(model) - best) < 1e-5
input = torch.randint(20, (1, 1), dtype=torch.long).to(device)
hidden = model.init_hidden(1)
words = []
with torch.no_grad():
    for i in range(10):
        output, hidden = model(input, hidden)
        word_idx = torch.multinomial(output.squeeze().div(1.0).exp().cpu(), 1)[0]
        input.fill_(word_idx)
        words.append(int(word_idx))
print(words)

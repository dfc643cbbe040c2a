"""Text: EmbeddingBag with offsets, a BiLSTM-CRF tagger, a CNN over embeddings, TF-IDF by hand, metrics through NumPy."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataset import random_split

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for _label, _text in batch:
        label_list.append(_label)
        text_list.append(torch.tensor(_text, dtype=torch.int64))
        offsets.append(len(_text))
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    return torch.tensor(label_list).to(device), torch.cat(text_list).to(device), offsets.to(device)


rng = np.random.default_rng(0)
data = [(i % 4, (rng.integers(0, 20, 5 + i % 3) + 20 * (i % 4)).tolist()) for i in range(80)]
train_, valid_ = random_split(data, [64, 16])
model = TextClassificationModel(80, 16, 4).to(device)
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.9)
for epoch in range(3):
    start = time.time()
    for idx, (label, text, offsets) in enumerate(
        DataLoader(train_, batch_size=8, shuffle=True, collate_fn=collate_batch)
    ):
        optimizer.zero_grad()
        loss = criterion(model(text, offsets), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for label, text, offsets in DataLoader(valid_, batch_size=8, collate_fn=collate_batch):
            predicted = model(text, offsets)
            correct += (predicted.argmax(1) == label).sum().item()
            total += label.size(0)
    scheduler.step()
    print(f"epoch {epoch} accuracy {correct / total:.3f} in {time.time() - start:.1f} s")
model = model.to("cpu")
print(model(torch.tensor([1, 2, 3]), torch.tensor([0])).argmax(1).item())


class BiLSTM_CRF(nn.Module):
    def __init__(self, tags=4):
        super().__init__()
        self.embeds, self.lstm, self.hidden2tag = (
            nn.Embedding(30, 8),
            nn.LSTM(8, 4, bidirectional=True),
            nn.Linear(8, tags),
        )
        self.transitions = nn.Parameter(torch.randn(tags, tags))
        self.transitions.data[0, :] = -10000
        self.tags = tags

    def features(self, sentence):
        hidden = (torch.randn(2, 1, 4).to(sentence.device), torch.randn(2, 1, 4, device=sentence.device))
        out, _ = self.lstm(self.embeds(sentence).view(len(sentence), 1, -1), hidden)
        return self.hidden2tag(out.view(len(sentence), 8))

    def loss(self, sentence, tags):
        feats = self.features(sentence)
        alpha = torch.full((1, self.tags), -10000.0, device=feats.device)
        alpha[0][1] = 0.0
        for feat in feats:
            alpha = torch.logsumexp(alpha.t() + self.transitions + feat, dim=0, keepdim=True)
        score = torch.zeros(1, device=feats.device)
        for i, feat in enumerate(feats[:-1]):
            score = score + self.transitions[tags[i], tags[i + 1]] + feat[tags[i]]
        return (torch.logsumexp(alpha, dim=1) - score).sum()

    def viterbi(self, sentence):
        feats, path = self.features(sentence), []
        score = feats[0]
        for feat in feats[1:]:
            best, index = (score.unsqueeze(1) + self.transitions).max(dim=0)
            path.append(index)
            score = best + feat
        tag = int(score.argmax())
        found = [tag]
        for index in reversed(path):
            tag = index[tag].item()
            found.insert(0, tag)
        return found


crf = BiLSTM_CRF().to(device)
sentence, tags = torch.randint(0, 30, (7,), device=device), torch.randint(1, 4, (7,), device=device)
opt = torch.optim.SGD(crf.parameters(), lr=0.05, weight_decay=1e-4)
for _ in range(3):
    crf.zero_grad()
    loss = crf.loss(sentence, tags)
    loss.backward()
    opt.step()
print(loss.item(), crf.viterbi(sentence))
counts = torch.zeros(5, 30, device=device).scatter_add_(
    1, torch.randint(0, 30, (5, 12), device=device), torch.ones(5, 12, device=device)
)
idf = torch.log(5 / (1 + (counts > 0).sum(0)))
values, indices = torch.topk(counts * idf, 3)
print(
    np.asarray(values.cpu()).shape,
    torch.histc(counts, bins=4).tolist(),
    torch.unique(indices, return_counts=True)[1].sum().item(),
    torch.quantile(values, 0.5).item(),
)

"""A language model by LSTM and GRU: packed sequences, hidden states carried on, gradients clipped."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(5)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    """Both kinds of recurrence, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 10, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(20, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(self.gru(x)[0])


sequences = [torch.randint(1, 30, (length,)) for length in (7, 5, 9, 3)]
ids, lengths = pad_sequence(sequences, batch_first=True), torch.tensor([len(each) for each in sequences])
tags = (ids % 5).masked_fill(ids == 0, -100)
model = Tagger().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
ids, tags = ids.to(device), tags.to(device)
for step in range(6):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(ids, lengths).transpose(1, 2), tags, ignore_index=-100)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    print(step, round(float(loss), 5))

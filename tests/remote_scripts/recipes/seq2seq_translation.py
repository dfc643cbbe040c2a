"""Translation with attention: encoder, Bahdanau attention, teacher forcing, and nn.Transformer with masks and greedy decoding."""

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOS_token, EOS_token, MAX_LENGTH = 0, 1, 8
random.seed(0)
torch.manual_seed(0)


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.embedding, self.gru = (
            nn.Embedding(input_size, hidden_size),
            nn.GRU(hidden_size, hidden_size, batch_first=True),
        )
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa, self.Ua, self.Va = (
            nn.Linear(hidden_size, hidden_size),
            nn.Linear(hidden_size, hidden_size),
            nn.Linear(hidden_size, 1),
        )

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(output_size, hidden_size), BahdanauAttention(hidden_size)
        self.gru, self.out = nn.GRU(2 * hidden_size, hidden_size, batch_first=True), nn.Linear(hidden_size, output_size)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long, device=device).fill_(SOS_token)
        hidden, outputs = encoder_hidden, []
        for i in range(MAX_LENGTH):
            embedded = self.embedding(decoder_input)
            context, _ = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
            output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
            output = self.out(output)
            outputs.append(output)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1), hidden


source = torch.randint(2, 20, (16, MAX_LENGTH), device=device)
target = source.flip(1)
encoder, decoder = EncoderRNN(20, 32).to(device), AttnDecoderRNN(32, 20).to(device)
encoder_optimizer, decoder_optimizer = (optim.Adam(m.parameters(), lr=1e-2) for m in (encoder, decoder))
for step in range(15):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    outputs, hidden = encoder(source)
    teacher = target if random.random() < 0.5 else None
    decoded, _ = decoder(outputs, hidden, teacher)
    loss = nn.NLLLoss()(decoded.view(-1, decoded.size(-1)), target.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
print(loss.item())


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=50):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position, self.generator = nn.Embedding(20, 32), PositionalEncoding(32), nn.Linear(32, 20)
        self.transformer = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        pad = src == 19
        out = self.transformer(
            self.position(self.embed(src)),
            self.position(self.embed(tgt)),
            tgt_mask=mask,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
            tgt_is_causal=True,
        )
        return self.generator(out)


model = Seq2Seq().to(device)
optimizer = optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) ** -0.5, (s + 1) * 5**-1.5))
for step in range(10):
    logits = model(source, target[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 20), target[:, 1:].reshape(-1), ignore_index=19, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
model.eval()
ys = torch.full((1, 1), SOS_token).type_as(source.data)
with torch.no_grad():
    for i in range(MAX_LENGTH - 1):
        next_word = model(source[:1], ys)[:, -1].argmax(-1).item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(source.data).fill_(next_word)], dim=1)
print(loss.item(), ys.tolist())

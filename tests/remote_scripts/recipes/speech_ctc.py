"""Speech recognition: log-mel features by stft, a convolution and a bidirectional GRU over packed sequences, CTC, greedy decoding."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def mel_filters(n_fft, n_mels, rate):
    top = 2595 * math.log10(1 + rate / 2 / 700)
    hz = 700 * (10 ** (torch.linspace(0, top, n_mels + 2) / 2595) - 1)
    bins = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self, n_fft=128, hop=64, n_mels=20, rate=4000):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("filters", mel_filters(n_fft, n_mels, rate))

    def forward(self, wave):
        spec = torch.stft(
            wave, self.n_fft, self.hop, window=self.window, center=True, pad_mode="reflect", return_complex=True
        )
        return torch.log(self.filters @ spec.abs().pow(2) + 1e-6)


class Recogniser(nn.Module):
    def __init__(self, n_mels=20, classes=6):
        super().__init__()
        self.features = LogMel(n_mels=n_mels)
        self.conv = nn.Sequential(nn.Conv1d(n_mels, 32, 3, padding=1), nn.BatchNorm1d(32), nn.GELU())
        self.rnn = nn.GRU(32, 24, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(48, classes)

    def forward(self, waves, lengths):
        mels = self.features(waves)
        mels = (mels - mels.mean(-1, keepdim=True)) / (mels.std(-1, keepdim=True) + 1e-5)
        frames = lengths // 64 + 1
        packed = pack_padded_sequence(
            self.conv(mels).transpose(1, 2), frames.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = self.rnn(packed)
        out, frames = pad_packed_sequence(out, batch_first=True)
        return self.head(out).log_softmax(-1), frames


waves, texts = [], []
for i in range(8):
    text = torch.randint(1, 6, (3,))
    waves.append(torch.cat([torch.sin(torch.arange(600) * 0.1 * t) for t in text.tolist()])[: 1500 + 40 * i])
    texts.append(text)
lengths = torch.tensor([len(w) for w in waves])
waves = pad_sequence(waves, batch_first=True).to(device)
targets, target_lengths = torch.cat(texts).to(device), torch.tensor([len(t) for t in texts], device=device)
model = Recogniser().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
history = []
for step in range(15):
    log_probs, frames = model(waves, lengths)
    loss = ctc(log_probs.transpose(0, 1), targets, frames.to(device), target_lengths)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step(loss.item())
    history.append(loss.item())
print(history[0], history[-1])
assert history[-1] < history[0]
best = log_probs.argmax(-1)[0]
decoded = [t for t in torch.unique_consecutive(best).tolist() if t]
print(decoded)
wave = torch.randn(2, 1000, device=device)
spec = torch.stft(wave, 128, 32, window=torch.hann_window(128, device=device), return_complex=True)
back = torch.istft(spec, 128, 32, window=torch.hann_window(128, device=device), length=1000)
torch.testing.assert_close(back, wave, atol=1e-4, rtol=1e-4)

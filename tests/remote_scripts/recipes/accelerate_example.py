"""Hugging Face's accelerate in a loop of one's own: prepare, accumulate, clip, gather, save_state, load_state."""

import os
import tempfile

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(3)
x = torch.randn(64, 8)
y = (x.sum(1) > 0).long()
train = DataLoader(TensorDataset(x, y), shuffle=True, batch_size=8)
evaluation = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40)
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
accelerator.print(accelerator.state)
model, optimizer, train, evaluation, scheduler = accelerator.prepare(model, optimizer, train, evaluation, scheduler)
assert accelerator.device.type == "cuda"
folder = tempfile.mkdtemp()
for epoch in range(3):
    model.train()
    total = 0
    for batch in train:
        with accelerator.accumulate(model):
            inputs, labels = batch
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(inputs), labels)
            total += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    hits = []
    for inputs, labels in evaluation:
        with torch.no_grad():
            predictions = model(inputs).argmax(-1)
        predictions, references = accelerator.gather_for_metrics((predictions, labels))
        hits.append((predictions == references).float())
    accelerator.print(
        f"epoch {epoch}: loss {total.item() / len(train):.4f} accuracy {torch.cat(hits).mean().item():.3f}"
    )
    accelerator.save_state(os.path.join(folder, f"epoch_{epoch}"))
before = [p.detach().cpu().clone() for p in model.parameters()]
accelerator.load_state(os.path.join(folder, "epoch_1"))
assert any(not torch.equal(a, b.cpu()) for a, b in zip(before, model.parameters()))
accelerator.load_state(os.path.join(folder, "epoch_2"))
assert all(torch.equal(a, b.cpu()) for a, b in zip(before, model.parameters()))
unwrapped = accelerator.unwrap_model(model)
accelerator.save(unwrapped.state_dict(), os.path.join(folder, "model.pt"))
accelerator.save_model(model, folder)
accelerator.free_memory()

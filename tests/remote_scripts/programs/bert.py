"""BERT of `transformers` with random weights: training steps on a device that is called cuda."""

import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
about = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
)  # fmt: skip
model = BertForSequenceClassification(about).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids, labels = torch.randint(1, 60, (4, 10)), torch.randint(0, 3, (4,))
mask = torch.ones_like(ids)
mask[0, 7:] = 0
for step in range(3):
    batch = {"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, round(loss.item(), 5))

"""T5 of `transformers` with random weights: a training step and generation."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
about = T5Config(
    vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0,
)  # fmt: skip
model = T5ForConditionalGeneration(about).to(device)
ids = torch.randint(3, 60, (2, 6)).to(device)
loss = model(input_ids=ids, labels=ids).loss
loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(round(loss.item(), 4))
print(model.eval().generate(input_ids=ids, max_new_tokens=5, do_sample=False).tolist())

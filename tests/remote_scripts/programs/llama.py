"""Llama of `transformers` with random weights: a training step and generation."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
about = LlamaConfig(
    vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
model = LlamaForCausalLM(about).to(device)
ids = torch.randint(3, 60, (2, 6)).to(device)
loss = model(ids, labels=ids).loss
loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(round(loss.item(), 5))
print(model.eval().generate(ids, max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(ids)).tolist())

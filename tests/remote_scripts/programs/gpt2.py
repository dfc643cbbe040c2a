"""GPT-2 of `transformers` with random weights: a training step, then generation with a cache and by beams."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
about = GPT2Config(
    vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
model = GPT2LMHeadModel(about).to(device)
ids = torch.randint(3, 60, (2, 6)).to(device)
loss = model(ids, labels=ids).loss
loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(round(loss.item(), 5))
model.eval()
print(model.generate(ids, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(ids)).tolist())
print(model.generate(ids, max_new_tokens=4, num_beams=2, attention_mask=torch.ones_like(ids)).tolist())

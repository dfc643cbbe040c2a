"""Trainer of a causal language model with bf16, gradient checkpointing, a collator, fused AdamW, and compute of perplexity."""

import math
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

torch.manual_seed(0)
blocks = [
    {
        "input_ids": (torch.arange(16) + i) % 50,
        "labels": (torch.arange(16) + i) % 50,
        "attention_mask": torch.ones(16).long(),
    }
    for i in range(32)
]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=12,
    per_device_train_batch_size=8,
    bf16=True,
    gradient_checkpointing=True,
    optim="adamw_torch_fused",
    lr_scheduler_type="cosine",
    learning_rate=5e-3,
    max_grad_norm=1.0,
    logging_steps=3,
    save_steps=6,
    report_to="none",
)
trainer = Trainer(
    model=model, args=args, train_dataset=blocks, eval_dataset=blocks[:8], data_collator=default_data_collator
)
trainer.train()
metrics = trainer.evaluate()
print("perplexity", math.exp(metrics["eval_loss"]))
assert metrics["eval_loss"] < 3.5
model.eval()
out = model.generate(torch.tensor([[1, 2, 3]], device=model.device), max_new_tokens=5, do_sample=False, pad_token_id=0)
print(out.tolist())

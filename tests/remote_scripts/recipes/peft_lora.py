"""LoRA by peft on a causal model: train, save the adapter, load it, merge, switch off."""

import tempfile

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

torch.manual_seed(0)
device = "cuda"
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
base = LlamaForCausalLM(config)
folder = tempfile.mkdtemp()
base.save_pretrained(folder + "/base")
peft_config = LoraConfig(
    task_type=TaskType.CAUSAL_LM,
    inference_mode=False,
    r=4,
    lora_alpha=16,
    lora_dropout=0.05,
    target_modules=["q_proj", "v_proj"],
)
model = get_peft_model(base, peft_config)
model.print_trainable_parameters()
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
ids = torch.randint(0, 64, (8, 16)).to(device)
losses = []
for step in range(20):
    model.train()
    outputs = model(input_ids=ids, labels=ids)
    loss = outputs.loss
    losses.append(loss.detach().float())
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(torch.stack(losses).mean().item(), losses[-1].item())
assert losses[-1] < losses[0]
model.save_pretrained(folder + "/adapter")
model.eval()
with torch.no_grad():
    tuned = model(ids).logits
    with model.disable_adapter():
        plain = model(ids).logits
assert not torch.allclose(tuned, plain)
loaded = (
    PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(folder + "/base"), folder + "/adapter").to(device).eval()
)
with torch.no_grad():
    torch.testing.assert_close(loaded(ids).logits, tuned)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, tuned, rtol=1e-3, atol=1e-4)
print(merged.generate(ids[:1, :4], max_new_tokens=6, do_sample=True, top_p=0.9, pad_token_id=0).shape)

"""Mixed precision as scripts write it: autocast, GradScaler, events, memory; prints what holds on every machine."""

import torch
from torch import nn

torch.manual_seed(6)
device = "cuda"
assert torch.cuda.is_available()
assert torch.cuda.device_count() == 1
assert torch.cuda.current_device() == 0
torch.cuda.set_device(0)
about = torch.cuda.get_device_properties(0)
assert torch.cuda.get_device_name(0) == about.name
free, total = torch.cuda.mem_get_info()
assert free == total == about.total_memory
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).cuda()
held = torch.cuda.memory_allocated()
assert held == sum(parameter.numel() * 4 for parameter in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cuda")
inputs, wanted = torch.randn(32, 8).pin_memory(), torch.randn(32, 1)
began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
side = torch.cuda.Stream()
began.record()
losses = []
for _ in range(8):
    with torch.cuda.stream(side):
        x, y = inputs.cuda(non_blocking=True), wanted.to("cuda:0", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        told = model(x)
        assert told.dtype == torch.bfloat16
        loss = nn.functional.mse_loss(told, y)
        assert loss.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
ended.record()
torch.cuda.synchronize()
assert began.elapsed_time(ended) > 0
assert losses[-1] < losses[0]
assert torch.cuda.max_memory_allocated() > held
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
with torch.cuda.amp.autocast(enabled=False):
    assert model(x).dtype == torch.float32
state = torch.cuda.get_rng_state()
first = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(first, torch.rand(4, device="cuda"))
assert str(first.device) == "cuda:0"
assert first.is_cuda
assert "device='cuda:0'" in repr(first)
print("mixed precision:", round(losses[0], 2) > round(losses[-1], 2), model[0].weight.device)

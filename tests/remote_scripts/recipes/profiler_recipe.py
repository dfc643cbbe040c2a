"""torch.profiler with schedule, labels, memory and a trace file, as its recipe has it."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).cuda()
inputs = torch.randn(5, 3, 8, 8).cuda()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, profile_memory=True) as prof:
    with record_function("model_inference"):
        model(inputs)
print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=5)[:40])
print(prof.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total", row_limit=3)[:40])
folder = tempfile.mkdtemp()
prof.export_chrome_trace(os.path.join(folder, "trace.json"))
assert os.path.getsize(os.path.join(folder, "trace.json")) > 0


def trace_handler(p):
    print("steps", p.step_num)


with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=trace_handler,
) as p:
    for idx in range(6):
        model(inputs).sum().backward()
        p.step()
with torch.autograd.profiler.profile(use_cuda=True) as old:
    model(inputs)
print(len(old.function_events) > 0)
with torch.cuda.nvtx.range("inference"), torch.autograd.profiler.emit_nvtx(enabled=False):
    model(inputs)
from torch.utils.benchmark import Compare, Timer

results = [
    Timer("x @ x", globals={"x": torch.ones(n, n, device="cuda")}, label="mm", description=str(n)).timeit(5)
    for n in (8, 16)
]
Compare(results).print()

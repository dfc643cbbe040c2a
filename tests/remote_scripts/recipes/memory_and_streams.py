"""What CUDA's notes show: streams, events, memory in numbers, out of memory caught, devices as contexts, generators, graphs' absence."""

import gc

import torch

cuda = torch.device("cuda")
cuda0 = torch.device("cuda:0")
x = torch.tensor([1.0, 2.0], device=cuda0)
y = torch.tensor([1.0, 2.0]).cuda()
with torch.cuda.device(0):
    a = torch.tensor([1.0, 2.0], device=cuda)
    b = torch.tensor([1.0, 2.0]).to(device=cuda)
    assert (a + b).device == torch.device("cuda:0")
s = torch.cuda.Stream()
A = torch.empty((100, 100), device=cuda).normal_(0.0, 1.0)
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    B = torch.sum(A)
A.record_stream(s)
torch.cuda.current_stream().wait_stream(s)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
C = A @ A
end.record()
end.synchronize()
assert start.elapsed_time(end) >= 0 and end.query()
print(
    torch.cuda.get_device_name(0),
    torch.cuda.get_device_capability(),
    torch.cuda.get_device_properties(0).total_memory > 0,
)
torch.cuda.empty_cache()
before = torch.cuda.memory_allocated()
big = torch.zeros(1 << 20, dtype=torch.uint8, device=cuda)
assert torch.cuda.memory_allocated() - before >= 1 << 20
del big
gc.collect()
assert torch.cuda.memory_allocated() <= before
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(total * 2, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print("out of memory", "CUDA out of memory" in str(error))
print(torch.cuda.memory_summary(abbreviated=True)[:20], torch.cuda.max_memory_reserved() >= 0)
g = torch.Generator(device="cuda").manual_seed(3)
first = torch.randn(3, device="cuda", generator=g)
g.manual_seed(3)
assert torch.equal(first, torch.randn(3, device="cuda", generator=g))
state = torch.cuda.get_rng_state()
one = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(one, torch.rand(4, device="cuda"))
with torch.random.fork_rng(devices=[0]):
    torch.rand(9, device="cuda")
torch.cuda.manual_seed_all(5)
x = torch.arange(10.0).cuda()
print(
    x,
    x[x > 4].sum().item(),
    f"{x.mean():.2f}",
    x.to("cpu", non_blocking=True).sum(),
    x.cpu().numpy().sum(),
    len(x),
    x.device.index,
)
assert x.__repr__().endswith("device='cuda:0')")
for module in (torch.backends.cudnn, torch.backends.cuda.matmul):
    print(module.allow_tf32)
with (
    torch.backends.cudnn.flags(enabled=True, benchmark=True),
    torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
):
    q = torch.randn(1, 2, 4, 8, device="cuda", dtype=torch.float16)
    print(torch.nn.functional.scaled_dot_product_attention(q, q, q).dtype)
torch.cuda.synchronize()
torch.cuda.ipc_collect()
try:
    x + torch.ones(10)
except RuntimeError as error:
    print("cuda:0" in str(error) and "cpu" in str(error))

"""The programs that hardware.py runs in a lease: each prints what it found as one JSON object."""

TORCH = """
    import json, os, sys
    import torch
    LEASE = int(os.environ["LEASE_BYTES"])
    answer = {"torch": torch.__version__}
    free, total = torch.cuda.mem_get_info()
    answer["sees_lease"] = total == LEASE
    answer["properties_total_is_lease"] = torch.cuda.get_device_properties(0).total_memory == LEASE
    held = []
    try:
        while len(held) < 1000:
            held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
        answer["refused"] = None
    except Exception as error:
        answer["refused"] = type(error).__name__
    torch.cuda.synchronize()
    import pynvml
    pynvml.nvmlInit()
    # A fresh process asks for us: ours is told about the lease.
    answer["allocated_mib"] = len(held) * 256
    answer["free_at_limit_mib"] = torch.cuda.mem_get_info()[0] >> 20
    print(json.dumps(answer | {"pid": os.getpid(), "stage": "full"}), flush=True)
    sys.stdin.readline()
    del held
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    again = torch.empty(LEASE // 2, dtype=torch.uint8, device="cuda")
    answer["half_again"] = True
    del again
    torch.cuda.empty_cache()
    if os.environ.get("WITH_GRAPH"):
        x = torch.randn(2048, 2048, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                y = (x @ x).relu()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x @ x).relu()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        answer["graph_replayed"] = bool(torch.isfinite(y).all())
    print(json.dumps(answer), flush=True)
"""

CUPY = """
    import json, os, sys
    import cupy
    LEASE = int(os.environ["LEASE_BYTES"])
    answer = {"cupy": cupy.__version__}
    free, total = cupy.cuda.runtime.memGetInfo()
    answer["sees_lease"] = total == LEASE
    kind = os.environ["ALLOCATOR"]
    if kind == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    elif kind == "managed":
        cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    held = []
    try:
        while len(held) < 200:
            held.append(cupy.empty(256 << 20, dtype=cupy.uint8))
        answer["refused"] = None
    except Exception as error:
        answer["refused"] = type(error).__name__
    answer["allocated_mib"] = len(held) * 256
    print(json.dumps(answer | {"pid": os.getpid(), "stage": "full"}), flush=True)
    sys.stdin.readline()
    del held
    cupy.get_default_memory_pool().free_all_blocks()
    a = cupy.ones((1024, 1024), dtype=cupy.float32)
    answer["computes"] = float((a @ a)[0, 0]) == 1024.0
    print(json.dumps(answer), flush=True)
"""

TRAINING = """
    import json, time
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    x = torch.randn(512, 1024, device="cuda")
    def step():
        optimiser.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimiser.step()
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    rounds = []
    for _ in range(7):
        begun = time.perf_counter()
        for _ in range(200):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begun) / 200 * 1e6)
    print(json.dumps({"step_us": sorted(rounds)[len(rounds) // 2], "rounds_us": rounds}))
"""

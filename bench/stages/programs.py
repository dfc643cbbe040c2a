"""The programs of stages. Each says what it found by a document a line, on `CARD`; `REHEARSAL` makes it small."""

MODEL = """
import json, os, sys, time
import torch
CARD, SMALL = os.environ["CARD"], bool(os.environ["REHEARSAL"])
WIDTH, LAYERS, BATCH, LENGTH = (32, 1, 2, 16) if SMALL else (1024, 8, 8, 256)
def synchronize():
    if CARD == "cuda":
        torch.cuda.synchronize()
def model(card=CARD):
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
              for _ in range(LAYERS)]
    return torch.nn.Sequential(torch.nn.Embedding(256, WIDTH), *layers, torch.nn.Linear(WIDTH, 256)).to(card)
def batch(card=CARD):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (BATCH, LENGTH), generator=generator).to(card)
def step_of(card=CARD, **options):
    net, tokens = model(card), batch(card)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=True, **options)
    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step
def say(**found):
    print(json.dumps(found), flush=True)
"""

TOKENS = (
    MODEL
    + """
net, tokens = model().eval(), batch()
seconds = float(os.environ["SECONDS"])
with torch.inference_mode():
    for _ in range(3):
        net(tokens)
    synchronize()
    say(ready=True)
    sys.stdin.readline()
    done, begun = 0, time.perf_counter() + float(os.environ.get("SETTLE_S", "0"))
    while (took := time.perf_counter() - begun) < seconds:
        net(tokens)
        synchronize()
        done += tokens.numel() * (took >= 0)
say(tokens_per_s=round(done / took, 1), tokens=done, seconds=round(took, 3))
"""
)
"""How many tokens a model reads a second, from `SETTLE_S` after a word on standard input on."""

LOOP = (
    MODEL
    + """
steps, pause_s = int(os.environ["STEPS"]), float(os.environ["PAUSE_S"])
held = torch.ones(int(os.environ["HELD_BYTES"]), dtype=torch.uint8, device=CARD)
step, losses = step_of(), []
for number in range(steps):
    losses.append(step().item().hex())
    say(step=number)
    time.sleep(pause_s)
say(losses=losses, held_sum=int(held.sum(dtype=torch.int64)))
"""
)
"""Trains, step by step, and says every loss to the last bit."""

BUSY = """
import os
import torch
a = torch.randn(*[64 if os.environ["REHEARSAL"] else 8192] * 2, device=os.environ["CARD"], dtype=torch.bfloat16)
print('{"ready": true}', flush=True)
while True:
    for _ in range(200):
        a = a @ a
        a = a / a.norm()
"""
"""Always has work in flight."""

STEADY = """
import json, os, time
import torch
x = torch.randn(512, 512, device=os.environ["CARD"])
for number in range(int(os.environ["STEPS"])):
    y = (x @ x).sum().item()
    if number == 0:
        print('{"ready": true}', flush=True)
    time.sleep(0.05)
print(json.dumps({"done": number + 1, "finite": y == y}), flush=True)
"""
"""A neighbour: a small product twenty times a second."""

HERE_OR_ELSEWHERE = (
    MODEL
    + """
count = 4 if SMALL else 50
def timed(step, device_synchronize):
    losses = [step().item() for _ in range(4)]
    device_synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        last = step()
    losses.append(last.item())
    return {"ms_a_step": round((time.perf_counter() - begun) / count * 1e3, 3), "losses": losses}
if os.environ["WHERE"] == "here":
    found = {"eager": timed(step_of(), synchronize)}
    found["capturable"] = timed(step_of(capturable=CARD == "cuda"), synchronize)
else:
    import aliquot.remote.torch as remote_torch
    from aliquot import remote
    with remote.connect() as session:
        device = remote_torch.attach(session.open(engine="torch"))
        channel = remote_torch.session_of(device)
        found = {"eager": timed(step_of(device), channel.synchronize)}
        found["captured"] = timed(remote_torch.capture(step_of(device, capturable=True)), channel.synchronize)
        found["model"] = session.parts[0].device_model
say(**found)
"""
)
"""A training step by each way of saying it, here or on a leased part elsewhere."""

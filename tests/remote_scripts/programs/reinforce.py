"""Policy gradients in a world of its own: one `.item()` an action, tensors of changing sizes, a replay of the episode."""

import random

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
random.seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.03)
for episode in range(6):
    place, target, rewards, logs, entropies = random.uniform(-1, 1), 0.0, [], [], []
    for _ in range(random.randint(5, 12)):
        state = torch.tensor([place, target], dtype=torch.float32, device=device).unsqueeze(0)
        chances = Categorical(logits=policy(state))
        action = chances.probs.argmax(dim=1)
        place += 0.2 if action.item() else -0.2
        rewards.append(-abs(place - target))
        logs.append(chances.log_prob(action))
        entropies.append(chances.entropy())
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    wanted = torch.tensor(returns, device=device)
    wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-6)
    loss = -(torch.cat(logs) * wanted).sum() - 0.01 * torch.cat(entropies).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, len(rewards), round(sum(rewards), 5), loss.item())

"""Deep Q-learning on a small world, as the tutorial has it: replay memory, epsilon, target network by soft updates, SmoothL1."""

import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(0)
torch.manual_seed(0)


class Line:
    """Walk to the right end of a line."""

    def reset(self):
        self.at = 0
        return [self.at / 5, 1.0]

    def step(self, action):
        self.at += 1 if action else -1
        done = self.at >= 5 or self.at <= -3
        return [self.at / 5, 1.0], 1.0 if self.at >= 5 else -0.1, done


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(n_observations, 32), nn.Linear(32, n_actions)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


env, memory = Line(), deque([], maxlen=1000)
policy_net, target_net = DQN(2, 2).to(device), DQN(2, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
steps_done = 0


def select_action(state):
    global steps_done
    eps = 0.05 + 0.85 * math.exp(-steps_done / 60)
    steps_done += 1
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)


def optimize_model(batch_size=16):
    if len(memory) < batch_size:
        return
    batch = Transition(*zip(*random.sample(memory, batch_size)))
    non_final_mask = torch.tensor(
        tuple(map(lambda s: s is not None, batch.next_state)), device=device, dtype=torch.bool
    )
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch, action_batch, reward_batch = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(batch_size, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * 0.9) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


returns = []
for i_episode in range(15):
    state = torch.tensor(env.reset(), dtype=torch.float32, device=device).unsqueeze(0)
    total = 0.0
    for t in range(25):
        action = select_action(state)
        observation, reward, done = env.step(action.item())
        total += reward
        reward = torch.tensor([reward], device=device)
        next_state = None if done else torch.tensor(observation, dtype=torch.float32, device=device).unsqueeze(0)
        memory.append(Transition(state, action, next_state, reward))
        state = next_state
        optimize_model()
        target, policy = target_net.state_dict(), policy_net.state_dict()
        for key in policy:
            target[key] = policy[key] * 0.05 + target[key] * 0.95
        target_net.load_state_dict(target)
        if done:
            break
    returns.append(total)
print([round(r, 2) for r in returns])

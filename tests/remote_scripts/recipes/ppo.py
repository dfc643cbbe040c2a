"""PPO with distributions, generalised advantages, vectorised small worlds and annealed learning rate."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical, Normal, kl_divergence


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(4, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(4, 32)), nn.Tanh(), layer_init(nn.Linear(32, 3), std=0.01))

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


np.random.seed(1)
torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() and True else "cpu")
num_envs, num_steps = 4, 16
agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4)).to(device)
actions, logprobs, rewards, dones, values = (torch.zeros((num_steps, num_envs)).to(device) for _ in range(5))
next_obs = torch.Tensor(np.random.randn(num_envs, 4)).to(device)
next_done = torch.zeros(num_envs).to(device)
for update in range(1, 4):
    optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / 3) * 2.5e-3
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        reward = (action.cpu().numpy() == 1).astype(np.float32)
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs = torch.Tensor(np.random.randn(num_envs, 4)).to(device)
        next_done = torch.Tensor(np.random.rand(num_envs) < 0.1).to(device)
    with torch.no_grad():
        next_value = agent.critic(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        last = 0
        for t in reversed(range(num_steps)):
            nonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            nextvalues = next_value if t == num_steps - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * nextvalues * nonterminal - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * nonterminal * last
        returns = advantages + values
    b_obs, b_logprobs, b_actions = obs.reshape((-1, 4)), logprobs.reshape(-1), actions.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(num_envs * num_steps)
    for epoch in range(2):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), 16):
            mb = b_inds[start : start + 16]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
            logratio = newlogprob - b_logprobs[mb]
            ratio = logratio.exp()
            with torch.no_grad():
                approx_kl = ((ratio - 1) - logratio).mean()
            adv = b_advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    y_pred, y_true = b_values = values.reshape(-1).cpu().numpy(), b_returns.cpu().numpy()
    print(update, rewards.mean().item(), approx_kl.item(), 1 - np.var(y_true - y_pred) / np.var(y_true))
p, q = Normal(torch.zeros(3, device=device), 1.0), Normal(torch.ones(3).cuda(), torch.full((3,), 2.0).cuda())
print(kl_divergence(p, q).sum().item(), p.rsample().shape, q.log_prob(torch.zeros(3).cuda()).mean().item())

"""An image classifier: convolutions, batch norm, a DataLoader with workers and pinned memory, a schedule, a checkpoint."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Block(nn.Module):
    """Two convolutions, and around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(images + self.body(images))


model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    Block(8),
    nn.MaxPool2d(2),
    Block(8),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(8, 4),
)
images, labels = torch.randn(64, 1, 12, 12), torch.randint(0, 4, (64,))
loader = DataLoader(
    TensorDataset(images, labels), batch_size=16, shuffle=True, num_workers=2, pin_memory=device.type == "cuda"
)
model = model.to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
for epoch in range(3):
    model.train()
    torch.manual_seed(epoch)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(epoch)
    batches = list(loader)
    torch.manual_seed(100 + epoch)
    total = torch.zeros((), device=device)
    for inputs, targets in batches:
        inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(inputs.to(device)).argmax(1) == targets.to(device)).sum().item() for inputs, targets in loader
        )
    print(epoch, total.item(), right)
path = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoint.pt")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
saved = torch.load(path, map_location=device)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
print(sum(parameter.double().sum().item() for parameter in model.parameters()))

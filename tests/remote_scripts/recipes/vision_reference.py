"""Classification in the manner of torchvision's reference: EMA, mixup, label smoothing, warm-up, metric logger, grouped decay, AMP."""

import copy
import datetime
import time
from collections import defaultdict, deque

import torch
import torch.nn as nn
import torch.utils.data


class SmoothedValue:
    def __init__(self, window_size=20, fmt="{median:.4f} ({global_avg:.4f})"):
        self.deque, self.total, self.count, self.fmt = deque(maxlen=window_size), 0.0, 0, fmt

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    @property
    def median(self):
        return torch.tensor(list(self.deque)).median().item()

    @property
    def global_avg(self):
        return self.total / self.count

    def __str__(self):
        return self.fmt.format(median=self.median, global_avg=self.global_avg)


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **kwargs):
        for k, v in kwargs.items():
            if isinstance(v, torch.Tensor):
                v = v.item()
            assert isinstance(v, (float, int))
            self.meters[k].update(v)

    def log_every(self, iterable, print_freq, header):
        start = time.time()
        MB = 1024.0 * 1024.0
        for i, obj in enumerate(iterable):
            yield obj
            if i % print_freq == 0:
                print(
                    header,
                    i,
                    " ".join(f"{k}: {v}" for k, v in self.meters.items()),
                    f"max mem: {torch.cuda.max_memory_allocated() / MB:.1f}",
                )
        print(header, "Total time:", str(datetime.timedelta(seconds=int(time.time() - start))))


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device="cpu"):
        super().__init__(model, device, lambda avg, p, n: decay * avg + (1 - decay) * p, use_buffers=True)


def mixup(batch, target, classes, alpha=0.2):
    target = nn.functional.one_hot(target, num_classes=classes).to(dtype=batch.dtype)
    batch_rolled, target_rolled = batch.roll(1, 0), target.roll(1, 0)
    lam = float(torch._sample_dirichlet(torch.tensor([alpha, alpha]))[0])
    return batch_rolled.mul_(1.0 - lam).add_(batch.mul(lam)), target_rolled.mul_(1.0 - lam).add_(target.mul(lam))


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        maxk, batch_size = max(topk), target.size(0)
        if target.ndim == 2:
            target = target.max(dim=1)[1]
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / batch_size) for k in topk]


def set_weight_decay(model, weight_decay):
    norms, others = [], []
    for module in model.modules():
        for p in module.parameters(recurse=False):
            (norms if isinstance(module, nn.modules.batchnorm._BatchNorm) else others).append(p)
    return [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": weight_decay}]


def collate(batch):
    return mixup(*torch.utils.data.default_collate(batch), 5)


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, model_ema, scaler):
    model.train()
    metric_logger = MetricLogger()
    for i, (image, target) in enumerate(metric_logger.log_every(data_loader, 2, f"Epoch: [{epoch}]")):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model_ema.update_parameters(model)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        metric_logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"], acc1=acc1.item())


def evaluate(model, criterion, data_loader, device):
    model.eval()
    logger = MetricLogger()
    with torch.inference_mode():
        for image, target in data_loader:
            image = image.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(image)
            logger.update(loss=criterion(output, target), acc1=accuracy(output, target)[0])
    print(logger.meters["acc1"])


if __name__ == "__main__":
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    data = [(torch.randn(3, 16, 16) + i % 5, i % 5) for i in range(40)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, shuffle=True, num_workers=2, pin_memory=True, collate_fn=collate
    )
    test = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Hardswish(inplace=True),
        nn.Conv2d(8, 8, 3, 2, groups=8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 5),
    ).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(set_weight_decay(model, 1e-4), lr=0.1, momentum=0.9, nesterov=True)
    main_lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers=[warmup, main_lr], milestones=[1])
    scaler = torch.amp.GradScaler("cuda")
    model_ema = ExponentialMovingAverage(model, device=device, decay=0.9)
    for epoch in range(3):
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, model_ema, scaler)
        lr_scheduler.step()
        evaluate(model_ema, criterion, test, device)
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "epoch": epoch,
            "model_ema": model_ema.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(checkpoint, "/tmp/vision-reference.pth")
    loaded = torch.load("/tmp/vision-reference.pth", map_location="cpu", weights_only=True)
    copy.deepcopy(model).load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])

"""Vision pieces: a ViT by hand, SimCLR's loss, distillation, FGSM, style by Gram matrices, U-Net with Dice, anchors and NMS by hand."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"


class ViT(nn.Module):
    def __init__(self, dim=32, classes=4, patch=4, image=16):
        super().__init__()
        self.to_patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.to_patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.encoder(x)[:, 0])


images, labels = torch.rand(16, 3, 16, 16, device=device), torch.randint(0, 4, (16,), device=device)
teacher = ViT().to(device)
opt = torch.optim.AdamW(teacher.parameters(), lr=1e-3)
for _ in range(5):
    loss = F.cross_entropy(teacher(images), labels)
    opt.zero_grad(), loss.backward(), opt.step()
student = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)).to(
    device
)
with torch.no_grad():
    soft = F.softmax(teacher.eval()(images) / 2, -1)
kd = F.kl_div(F.log_softmax(student(images) / 2, -1), soft, reduction="batchmean") * 4
kd.backward()
z = F.normalize(torch.randn(8, 16, device=device, requires_grad=True), dim=1)
similarity = z @ z.T / 0.5
mask = torch.eye(8, dtype=torch.bool, device=device)
similarity = similarity.masked_fill(mask, float("-inf"))
positives = (torch.arange(8, device=device) + 4) % 8
print(F.cross_entropy(similarity, positives).item())
images.requires_grad = True
F.cross_entropy(teacher(images), labels).backward()
attacked = torch.clamp(images + 0.05 * images.grad.data.sign(), 0, 1)
print((attacked - images).abs().max().item())
features = student[:2](images.detach())
b, c, h, w = features.shape
flat = features.view(b, c, h * w)
gram = flat.bmm(flat.transpose(1, 2)).div(c * h * w)
target = images.detach().clone().requires_grad_(True)
style = torch.optim.LBFGS([target], max_iter=3)


def closure():
    style.zero_grad()
    out = student[:2](target)
    loss = F.mse_loss(out.flatten(2) @ out.flatten(2).mT / (c * h * w), gram.detach() * 0.5)
    loss.backward()
    return loss


print(style.step(closure).item())
down, up, last = (
    nn.Conv2d(3, 8, 3, 2, 1).to(device),
    nn.ConvTranspose2d(8, 8, 2, 2).to(device),
    nn.Conv2d(11, 1, 1).to(device),
)
prob = torch.sigmoid(last(torch.cat([up(down(images.detach())), images.detach()], 1)))
truth = (images.detach().mean(1, keepdim=True) > 0.5).float()
dice = 1 - (2 * (prob * truth).sum() + 1) / (prob.sum() + truth.sum() + 1)
(dice + F.binary_cross_entropy(prob, truth)).backward()
boxes = torch.rand(20, 2, device=device)
boxes = torch.cat([boxes, boxes + 0.3], 1)
scores = torch.rand(20, device=device)
lt, rb = torch.max(boxes[:, None, :2], boxes[None, :, :2]), torch.min(boxes[:, None, 2:], boxes[None, :, 2:])
inter = (rb - lt).clamp(min=0).prod(2)
iou = inter / (0.18 - inter)
keep, order = [], scores.argsort(descending=True)
while order.numel() > 0:
    i = order[0]
    keep.append(i.item())
    order = order[1:][iou[i, order[1:]] <= 0.5]
print(len(keep), F.interpolate(images.detach(), scale_factor=2, mode="bicubic", align_corners=False).shape)
theta = torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]], device=device).repeat(16, 1, 1)
warped = F.grid_sample(images.detach(), F.affine_grid(theta, images.shape, align_corners=False), align_corners=False)
print(warped.mean().item(), nn.PixelShuffle(2)(torch.rand(1, 4, 3, 3).cuda()).shape, F.unfold(images.detach(), 3).shape)

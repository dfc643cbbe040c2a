"""Unconditional diffusion by diffusers on a tiny U-Net: train with EMA, save the pipeline, load it, sample by two schedulers."""

import tempfile

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).to("cuda")
noise_scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=8)
ema = EMAModel(model.parameters(), inv_gamma=1.0, power=0.75)
for step in range(8):
    clean_images = torch.rand(4, 1, 8, 8, device="cuda") * 2 - 1
    noise = torch.randn(clean_images.shape, device=clean_images.device)
    timesteps = torch.randint(
        0, noise_scheduler.config.num_train_timesteps, (4,), device=clean_images.device, dtype=torch.int64
    )
    noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
    noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
    loss = F.mse_loss(noise_pred, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    ema.step(model.parameters())
    print({"loss": loss.detach().item(), "lr": lr_scheduler.get_last_lr()[0], "step": step})
ema.copy_to(model.parameters())
folder = tempfile.mkdtemp()
DDPMPipeline(unet=model, scheduler=noise_scheduler).save_pretrained(folder)
pipeline = DDPMPipeline.from_pretrained(folder).to("cuda")
pipeline.set_progress_bar_config(disable=True)
images = pipeline(batch_size=2, generator=torch.Generator(device="cpu").manual_seed(0), num_inference_steps=5).images
print(images[0].size)
images = pipeline(
    batch_size=1, generator=torch.Generator("cuda").manual_seed(0), num_inference_steps=3, output_type="np"
).images
assert images.shape == (1, 8, 8, 1)
pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
half = pipeline.to(torch.float16) if False else pipeline
print(half(batch_size=1, num_inference_steps=3).images[0].size)

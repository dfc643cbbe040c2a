"""ViT of `transformers` with random weights, trained by its `Trainer`."""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

torch.manual_seed(0)
about = ViTConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
    num_channels=1, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
model = ViTForImageClassification(about)
images, labels = torch.randn(12, 1, 8, 8), torch.randint(0, 3, (12,))
items = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=4, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], seed=1,
        logging_steps=100, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=items)
    told = sys.stdout
    with Path("/dev/null").open("w") as sys.stdout:
        result = trainer.train()
    sys.stdout = told
print(round(result.training_loss, 4))

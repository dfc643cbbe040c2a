"""Hugging Face's Trainer: train with checkpoints, resume from the last, evaluate, predict, save, load."""

import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, 100, (n, 12), generator=g)
        self.labels = (self.ids.sum(1) % 2).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.labels[i]}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


set_seed(42)
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)
out = tempfile.mkdtemp()
args = TrainingArguments(
    output_dir=out,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=2,
    learning_rate=1e-3,
    warmup_steps=2,
    weight_decay=0.01,
    gradient_accumulation_steps=2,
    save_total_limit=2,
    load_best_model_at_end=True,
    dataloader_num_workers=1,
    report_to=[],
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Sentences(48),
    eval_dataset=Sentences(16),
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
)
result = trainer.train()
print(result.metrics["train_loss"])
assert trainer.args.device.type == "cuda", trainer.args.device
print(trainer.evaluate())
predictions = trainer.predict(Sentences(10))
print(predictions.predictions.shape)

args.num_train_epochs = 3
again = Trainer(
    model=BertForSequenceClassification(config),
    args=args,
    train_dataset=Sentences(48),
    eval_dataset=Sentences(16),
    compute_metrics=compute_metrics,
)
again.train(resume_from_checkpoint=True)
assert again.state.epoch == 3.0
again.save_model(os.path.join(out, "final"))
loaded = AutoModelForSequenceClassification.from_pretrained(os.path.join(out, "final")).to("cuda")
ids = Sentences(2).ids.cuda()
torch.testing.assert_close(loaded.eval()(ids).logits, again.model.eval()(ids).logits)

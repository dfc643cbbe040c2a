"""Lightning: a module, a data module, callbacks, checkpoints, resume, test, predict, on accelerator='gpu'."""

import os
import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy


class Data(L.LightningDataModule):
    def setup(self, stage):
        g = torch.Generator().manual_seed(1)
        x = torch.randn(96, 20, generator=g)
        y = x[:, :3].argmax(1)
        self.train, self.val = random_split(TensorDataset(x, y), [64, 32], generator=g)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=16)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class Classifier(L.LightningModule):
    def __init__(self, width=32, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 3))
        self.accuracy = MulticlassAccuracy(num_classes=3)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", self.accuracy, on_epoch=True)

    def test_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)}


if __name__ == "__main__":
    L.seed_everything(7)
    folder = tempfile.mkdtemp()
    best = ModelCheckpoint(dirpath=folder, monitor="val_loss", save_last=True)
    common = dict(accelerator="gpu", devices=1, default_root_dir=folder, enable_progress_bar=False, log_every_n_steps=1)
    trainer = L.Trainer(
        max_epochs=3,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        callbacks=[best, EarlyStopping("val_loss", patience=5), LearningRateMonitor()],
        logger=CSVLogger(folder),
        **common,
    )
    model, data = Classifier(), Data()
    trainer.fit(model, datamodule=data)
    print(trainer.test(model, datamodule=data))
    resumed = L.Trainer(max_epochs=5, logger=False, enable_checkpointing=False, **common)
    resumed.fit(Classifier(), datamodule=data, ckpt_path=os.path.join(folder, "last.ckpt"))
    assert resumed.current_epoch == 5
    loaded = Classifier.load_from_checkpoint(best.best_model_path)
    print(loaded.device, loaded.hparams)
    print(torch.cat(resumed.predict(loaded, datamodule=data)).shape)

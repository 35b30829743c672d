"""Hugging Face Trainer: BERT that classifies, padding, metrics, the best model at last."""

import tempfile

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(1)
samples = []
for number in range(80):
    length = 5 + number % 9
    words = torch.randint(1, 50, (length,))
    samples.append({"input_ids": words, "labels": int((words < 25).sum() * 2 > length)})


def together(some):
    words = torch.nn.utils.rnn.pad_sequence([one["input_ids"] for one in some], batch_first=True)
    labels = torch.tensor([one["labels"] for one in some])
    return {"input_ids": words, "attention_mask": (words > 0).long(), "labels": labels}


def accuracy(predicted):
    return {"accuracy": float((np.argmax(predicted[0], 1) == predicted[1]).mean())}


model = BertForSequenceClassification(
    BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
               intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0, num_labels=2)
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model, data_collator=together, compute_metrics=accuracy,
        train_dataset=samples[:64], eval_dataset=samples[64:],
        args=TrainingArguments(
            output_dir=folder, max_steps=24, per_device_train_batch_size=9, logging_steps=1,
            learning_rate=2e-3, eval_strategy="steps", eval_steps=8, save_steps=8,
            load_best_model_at_end=True, metric_for_best_model="accuracy", report_to="none",
            disable_tqdm=True, label_smoothing_factor=0.1, optim="adamw_torch_fused",
        ),
    )  # fmt: skip
    trainer.train()
    for one in trainer.state.log_history:
        for name in ("loss", "eval_loss", "eval_accuracy", "grad_norm"):
            if name in one:
                print("figure", name, one[name])
    print("figure", "predicted", float(np.abs(trainer.predict(samples[64:]).predictions).sum()))
    print("device", trainer.args.device)

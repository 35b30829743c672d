"""Hugging Face Trainer: GPT-2 from a config, accumulation, evaluation, saved and gone on with."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(1)
words = torch.randint(0, 61, (90, 24))
words[:, 1::2] = (words[:, ::2] + 7) % 61  # something to learn
samples = [{"input_ids": one, "labels": one} for one in words]


def model():
    torch.manual_seed(2)
    sizes = {"vocab_size": 61, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **still, bos_token_id=0, eos_token_id=0))


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, num_train_epochs=3, per_device_train_batch_size=7,
        gradient_accumulation_steps=2, learning_rate=3e-3, lr_scheduler_type="cosine",
        warmup_steps=3, weight_decay=0.1, logging_steps=2, eval_strategy="epoch",
        save_strategy="epoch", report_to="none", disable_tqdm=True, seed=3,
    )  # fmt: skip
    data = {"train_dataset": samples[:75], "eval_dataset": samples[75:]}
    first = Trainer(model=model(), args=arguments, **data)
    first.train()
    again = Trainer(model=model(), args=arguments, **data)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-12")
    for trainer in (first, again):
        for one in trainer.state.log_history:
            for name in ("loss", "eval_loss", "grad_norm"):
                if name in one:
                    print("figure", name, one[name])
    print("figure", "evaluated", again.evaluate()["eval_loss"])
    print("device", again.args.device, next(again.model.parameters()).device)

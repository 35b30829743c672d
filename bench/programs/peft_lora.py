"""PEFT: LoRA of a Llama made here, with gradient checkpointing, merged at the end."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(12)
base = LlamaForCausalLM(LlamaConfig(
    vocab_size=71, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    bos_token_id=0, eos_token_id=0,
))  # fmt: skip
lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
model = get_peft_model(base, lora).to(device)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 0.01)
for step in range(10):
    words = torch.randint(0, 71, (3 + step % 4, 20))
    words[:, 1::2] = (words[:, ::2] * 3) % 71
    words = words.to(device)
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("figure", "loss", loss.item())
model = model.merge_and_unload().eval()
with torch.no_grad():
    made = model.generate(words[:2, :5], max_new_tokens=8, do_sample=False, pad_token_id=0,
                          attention_mask=torch.ones_like(words[:2, :5]))  # fmt: skip
print("figure", "made", made.sum().item())
print("device", made.device)

"""Fine-tuning of a small Llama on conversations by trl's SFTTrainer: data/sft/."""

import json

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
import trl

from common import DATA, VERSIONS, fresh, make_llama, save_llama, write_json

OUT = DATA / "sft"
STEPS, BATCH, LENGTH, LR = 50, 4, 176, 2e-3
WORDS = "red blue green one two three tea milk bread cheese night day sun moon yes no".split()


def conversation(number):
    words = [WORDS[(number * 7 + k * k) % len(WORDS)] for k in range(2 + number % 5)]
    messages = [] if number % 3 else [{"role": "system", "content": "Answer in order."}]
    for turn in range(1 + number % 2):
        messages.append({"role": "user", "content": "Say " + " and ".join(words[turn:])})
        messages.append({"role": "assistant", "content": ", ".join(words[turn:]) + "."})
    return {"messages": messages}


class Trainer(SFTTrainer):
    """In the order of the file, with the loss of each step as it is computed."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.seen = []

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.seen.append(loss.item())
        return loss


def make_tokenizer():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizers" / "byte_level.json"),
                                        eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = (DATA / "chat" / "marked.jinja").read_text()
    return tokenizer


def make_model(tokenizer):
    return make_llama(5, 0.1, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
                      bos_token_id=None, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False)


def save_initial(model, tokenizer):
    folder = OUT / "initial"
    save_llama(model, folder)
    (folder / "tokenizer.json").write_bytes((DATA / "tokenizers" / "byte_level.json").read_bytes())
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": tokenizer.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def with_updates(model):
    """Without PEFT's zeros in B, so that the update has a part in the first step already."""
    torch.manual_seed(2)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                        "up_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_B" in key:
                p.copy_(0.05 * torch.randn(p.shape))
    folder = fresh(OUT / "adapter")
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    stored = json.loads((folder / "adapter_config.json").read_text())
    stored["base_model_name_or_path"] = None
    (folder / "adapter_config.json").write_text(json.dumps(stored, indent=2) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    return model


def curve(name, model, tokenizer, chats, **more):
    arguments = SFTConfig(
        output_dir="/tmp/sft_curves", max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=LR,
        lr_scheduler_type="constant", warmup_steps=0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8,
        weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch", logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, max_length=LENGTH, packing=False,
        assistant_only_loss=True, seed=1)
    trainer = Trainer(model=model, args=arguments, processing_class=tokenizer,
                      train_dataset=load_dataset("json", data_files=str(chats), split="train"))
    batch = next(iter(trainer.get_train_dataloader()))
    trained = [int((row != -100).sum()) for row in batch["labels"]]
    trainer.train()
    norms = [float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]
    write_json(OUT / f"{name}.json", {
        "name": name, "initial_model": "initial", "chats": "chats.jsonl", "steps": STEPS, "batch": BATCH,
        "seq_len": LENGTH, "lr": LR, "betas": [0.9, 0.95], **more, "first_rows_trained": trained,
        "losses": trainer.seen, "grad_norms": norms, "made_with": VERSIONS | {"trl": trl.__version__}})
    print(f"{name:6} loss {trainer.seen[0]:.4f} -> {trainer.seen[-1]:.4f}, norm {min(norms):.3f} .. {max(norms):.3f}")


def main():
    fresh(OUT)
    tokenizer = make_tokenizer()
    chats = OUT / "chats.jsonl"
    chats.write_text("".join(json.dumps(conversation(i)) + "\n" for i in range(40)))
    model = make_model(tokenizer)
    save_initial(model, tokenizer)
    curve("full", model, tokenizer, chats)
    curve("lora", with_updates(make_model(tokenizer)), tokenizer, chats, adapter="adapter", rank=4, alpha=8.0)


main()

"""Fine-tuning of a small Llama on conversations by trl's SFTTrainer: data/sft/."""

import json

from datasets import load_dataset
from torch.utils.data import SequentialSampler
from trl import SFTConfig, SFTTrainer
import trl

from common import DATA, VERSIONS, fresh, write_json
from tuning import make_model, make_tokenizer, save_initial, with_updates

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
    model = make_model(tokenizer, LENGTH)
    save_initial(model, tokenizer, OUT / "initial")
    curve("full", model, tokenizer, chats)
    curve("lora", with_updates(make_model(tokenizer, LENGTH), OUT / "adapter"), tokenizer, chats, adapter="adapter", rank=4, alpha=8.0)


main()

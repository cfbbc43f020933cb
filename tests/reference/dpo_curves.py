"""Preferences learned by a small Llama with trl's DPOTrainer: data/dpo/. sft_curves.py made the model and the adapter
that it starts from."""

import copy
import json

from datasets import load_dataset
from peft import PeftModel
from torch.utils.data import SequentialSampler
from trl import DPOConfig, DPOTrainer
import trl

from common import DATA, VERSIONS, fresh, load_llama, write_json
from tuning import make_tokenizer

OUT = DATA / "dpo"
START = DATA / "sft"
STEPS, BATCH, LENGTH, LR, BETA = 24, 4, 96, 1e-3, 0.2
WORDS = "red blue green one two three tea milk bread cheese night day sun moon yes no".split()
MEASURES = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"]


def pair(number):
    words = [WORDS[(number * 5 + k * k) % len(WORDS)] for k in range(2 + number % 4)]
    return "Say " + " and ".join(words), ", ".join(words) + ".", " ".join(reversed(words)) + (" please" * (number % 3))


def said(role, text):
    return {"role": role, "content": text}


def conversation(number):
    prompt, chosen, rejected = pair(number)
    before = [said("user", "Hello"), said("assistant", "Yes?")] if number % 2 else []
    return {"prompt": before + [said("user", prompt)], "chosen": [said("assistant", chosen)],
            "rejected": [said("assistant", rejected)]}


def text(number):
    prompt, chosen, rejected = pair(number)
    return {"prompt": prompt + ":", "chosen": " " + chosen, "rejected": " " + rejected}


class Trainer(DPOTrainer):
    """In the order of the file, with what each step measures as it is computed."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.seen = []

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.seen.append([loss.item()] + [self._metrics["train"][name][-1] for name in MEASURES])
        return loss


def curve(name, model, reference_model, records, **more):
    tokenizer = make_tokenizer()
    arguments = DPOConfig(
        output_dir="/tmp/dpo_curves", max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=LR,
        per_device_eval_batch_size=BATCH, lr_scheduler_type="constant", warmup_steps=0, adam_beta1=0.9, adam_beta2=0.95,
        adam_epsilon=1e-8, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch", logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
        max_length=LENGTH, beta=BETA, seed=1)
    rows = [load_dataset("json", data_files=str(OUT / f"{records}{part}.jsonl"), split="train")
            for part in ("", "-held-out")]
    trainer = Trainer(model=model, ref_model=reference_model, args=arguments, processing_class=tokenizer,
                      train_dataset=rows[0], eval_dataset=rows[1])
    if reference_model is None and more["reference"] == "adapter_off":
        trainer.accelerator.unwrap_model(trainer.model).delete_adapter("ref")  # a copy of the adapter
    trainer.train()
    norms = [float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]
    held_out = trainer.evaluate()
    columns = list(zip(*trainer.seen))
    write_json(OUT / f"{name}.json", {
        "name": name, "records": records, "steps": STEPS, "batch": BATCH, "seq_len": LENGTH, "lr": LR, "beta": BETA,
        "betas": [0.9, 0.95], **more, "losses": columns[0], "grad_norms": norms, **dict(zip(MEASURES, columns[1:])),
        "validation_loss": held_out["eval_loss"],
        **{f"validation_{measure}": held_out[f"eval_{measure}"] for measure in MEASURES},
        "made_with": VERSIONS | {"trl": trl.__version__}})
    print(f"{name:12} loss {trainer.seen[0][0]:.4f} -> {trainer.seen[-1][0]:.4f}, margin {trainer.seen[-1][3]:.4f}, "
          f"accuracy {trainer.seen[-1][4]}, norm {min(norms):.3f} .. {max(norms):.3f}, {held_out['eval_loss']:.4f}")


def with_adapter():
    return PeftModel.from_pretrained(load_llama(START / "initial"), START / "adapter", is_trainable=True)


def main():
    fresh(OUT)
    for name, make in (("conversations", conversation), ("texts", text)):
        for part, numbers in (("", range(40)), ("-held-out", range(40, 48))):
            (OUT / f"{name}{part}.jsonl").write_text("".join(json.dumps(make(i)) + "\n" for i in numbers))
    model = load_llama(START / "initial")
    curve("full", model, copy.deepcopy(model), "conversations", reference="copy")
    updates = {"rank": 4, "alpha": 8.0}
    curve("adapter_off", with_adapter(), None, "texts", reference="adapter_off", **updates)
    curve("adapter_copy", with_adapter(), None, "texts", reference="copy", **updates)


main()

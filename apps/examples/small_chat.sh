#!/usr/bin/env bash
# Trains a small model of two conversations, which it then repeats, and exports it: the folders chat and model. The
# pages docs/generation.md, docs/evaluation.md and docs/serving.md use it. `tessera` must be on the PATH.
set -euo pipefail
mkdir -p tokenizer
{
  printf '{"version": "1.0", "added_tokens": ['
  printf '{"id": 256, "content": "<|end|>", "special": true},'
  printf '{"id": 257, "content": "<|user|>", "special": true},'
  printf '{"id": 258, "content": "<|model|>", "special": true}],'
  printf '"normalizer": null, "pre_tokenizer": null, "post_processor": null,'
  printf '"decoder": {"type": "ByteFallback"},'
  printf '"model": {"type": "BPE", "byte_fallback": true, "merges": [], "vocab": {'
  for i in $(seq 0 255); do
    printf '%s"<0x%02X>": %d' "$([ "$i" = 0 ] || echo ,)" "$i" "$i"
  done
  printf '}}}'
} > tokenizer/tokenizer.json
cat > tokenizer/chat_template.jinja <<'END'
{%- for message in messages -%}
{{ '<|model|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}<|end|>
{%- endfor -%}
{{ '<|model|>' if add_generation_prompt else '' }}
END
echo '{"eos_token": "<|end|>"}' > tokenizer/tokenizer_config.json
cat > chats.jsonl <<'END'
{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
{"messages": [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you."}]}
END
cat > chat.toml <<'END'
[model]
dim = 32
layers = 2
heads = 4
[data]
tokenizer = "tokenizer"
jsonl = ["chats.jsonl"]
seq_len = 32
validation = 0
[train]
steps = 80
batch = 2
[optimizer]
lr = 1e-2
warmup = 5
[checkpoint]
folder = "chat"
END
tessera train chat.toml
tessera checkpoint export chat/step-00000080 --to model

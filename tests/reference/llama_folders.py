"""Tiny Llama folders as transformers writes them, with the logits they give, and configs to refuse: data/folders/."""

import json

import torch

from common import DATA, evaluate, fresh, load_llama, make_llama, save_llama, write_expected

OUT = DATA / "folders"
SIZES = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=52,
             num_hidden_layers=2, max_position_embeddings=32)


def edit(path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def to_old_form(config):
    """config.json as transformers 4 wrote it: rope_theta at the top, torch_dtype, no head_dim."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.40.0"
    del config["head_dim"]


def to_first_form(config):
    """As the first Llamas had it: the rotary base and the number of key heads are left to their defaults."""
    to_old_form(config)
    for key in ("rope_theta", "rope_scaling", "num_key_value_heads", "attention_bias", "mlp_bias", "attention_dropout"):
        del config[key]


def folder(number, name, theta=10000.0, dtype=torch.float32, change=None, options={}, **sizes):
    model = make_llama(100 + number, 0.25, theta, **(SIZES | sizes)).to(dtype)
    path = fresh(OUT / name)
    save_llama(model, path, **options)
    if change:
        edit(path / "config.json", change)
    loaded = load_llama(path)  # the truth is what transformers reads back, in float32
    assert loaded.config.rope_parameters["rope_theta"] == theta
    ids = torch.randint(0, SIZES["vocab_size"], (2, 10), generator=torch.Generator().manual_seed(200 + number))
    more = {}
    if dtype != torch.float32:
        logits, loss = evaluate(load_llama(path, dtype), ids)
        more = {"logits_computed_in_bf16": logits.tolist(), "loss_computed_in_bf16": loss}
    write_expected(path / "expected.json", loaded, ids, **more)


def refused(name, key, value, reason, changes):
    """why.txt: the key and the value that the message must name, then the reason."""
    path = fresh(OUT / "refused" / name)
    (path / "config.json").write_text((OUT / "plain" / "config.json").read_text())

    def change(config):
        if "rope_scaling" in changes:  # transformers 4 had no rope_parameters
            config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config.update(changes)

    edit(path / "config.json", change)
    (path / "why.txt").write_text(f"{key}\n{value}\n{reason}\n")


def main():
    fresh(OUT)
    folder(0, "plain", theta=20000.0)
    folder(1, "old_config", theta=500.0, change=to_old_form)
    folder(2, "head_dim", head_dim=6, num_key_value_heads=4)
    folder(3, "sharded_files", options=dict(max_shard_size="20KB"), num_key_value_heads=1)
    folder(4, "bf16", dtype=torch.bfloat16)
    folder(5, "tied", tie_word_embeddings=True)
    folder(6, "first_config", change=to_first_form, num_key_value_heads=4)

    spiral = dict(factor=4.0, original_max_position_embeddings=16, rope_type="spiral")
    rope = "other rotary embeddings change every position's angles"
    refused("angles_old", "rope", "spiral", rope, dict(rope_scaling=spiral))
    refused("angles_new", "rope", "spiral", rope, dict(rope_parameters=spiral | dict(rope_theta=10000.0)))
    refused("hidden_act", "hidden_act", "gelu", "the feed-forward is silu(gate) * up", dict(hidden_act="gelu"))
    refused("model_type", "model_type", "mpt", "a model of another kind",
            dict(model_type="mpt", architectures=["MPTForCausalLM"]))


main()

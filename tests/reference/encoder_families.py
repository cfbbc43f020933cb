"""Tiny random encoders that classify (texts and images), as families.py does for decoders: data/families/."""

import copy
import functools

import numpy
import torch
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from common import VERSIONS, fresh, write_json, write_tensors
from families import OUT, curves, gradients, make, short
from family_configs import PLAIN
from llama_curves import BATCH, SEQ, batch
from wide import Wide

LABELS = 3
TEXT = dict(vocab_size=96, hidden_size=32, num_attention_heads=4, max_position_embeddings=64, pad_token_id=0)
ENCODERS = {
    "bert": dict(TEXT, num_hidden_layers=2, intermediate_size=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-3),
    "modernbert": dict(TEXT, num_hidden_layers=2, intermediate_size=20, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, classifier_pooling="mean",
                       local_attention=6, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
                       layer_types=["full_attention", "sliding_attention"],
                       rope_parameters={"full_attention": PLAIN | {"rope_theta": 3000.0}, "sliding_attention": PLAIN}),
    "vit": dict(hidden_size=32, num_attention_heads=4, intermediate_size=28, num_hidden_layers=2, image_size=12, patch_size=4, num_channels=3, layer_norm_eps=1e-3),
}


def texts(name, seed):
    """Rows of different lengths: what is behind a row's length is hidden by its mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([10, 7, 4, 10])
    inputs = {"input_ids": torch.randint(3, TEXT["vocab_size"], (len(lengths), 10), generator=generator),
              "attention_mask": (torch.arange(10) < lengths[:, None]).long()}
    inputs["input_ids"] *= inputs["attention_mask"]
    if name == "bert":
        inputs["token_type_ids"] = (torch.arange(10) >= 3).long().expand(4, 10).contiguous()
    return inputs


def images(seed):
    config = ENCODERS["vit"]
    pixels = torch.randn(4, config["num_channels"], config["image_size"], config["image_size"], generator=torch.Generator().manual_seed(seed))
    return {"pixel_values": (pixels * 64).round() / 64}


def reference(name, seed, tokens):
    image = name == "vit"
    folder = fresh(OUT / name)
    classes = AutoModelForImageClassification if image else AutoModelForSequenceClassification
    model = make(name, seed, folder, classes, dict(ENCODERS[name], num_labels=LABELS)).eval()
    double = copy.deepcopy(model).double()
    inputs = images(seed) if image else texts(name, seed)
    labels = torch.tensor([0, 2, 1, 1])

    def loss_of(model):
        wide = next(model.parameters()).dtype
        logits = model(**{key: value.to(wide) if value.is_floating_point() else value for key, value in inputs.items()}).logits
        return logits, torch.nn.functional.cross_entropy(logits, labels)

    def loss_of_step(model, step):
        if image:
            return loss_of(model)[1]
        rows, targets = batch(tokens, step)
        return torch.nn.functional.cross_entropy(model(input_ids=rows).logits, targets[:, -1] % LABELS)

    with torch.no_grad():
        logits, loss = loss_of(model)
        with Wide() as wide:
            logits64, loss64 = loss_of(double)
            hidden = double.base_model(**{key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}).last_hidden_state
    assert logits64.dtype == torch.float64 and not wide.narrowed, (name, wide.narrowed)
    apart, curve = curves(model, double, loss_of_step, wide)
    found, without = gradients(double, functools.partial(loss_of, double))
    write_tensors(OUT / f"{name}.safetensors", {**inputs, "logits": logits64.float(), "last_hidden_state": hidden.float()})
    error = (logits - logits64).abs().max().item()
    write_json(OUT / f"{name}.json", {
        "name": name, "type": name, "initial_model": name, "num_labels": LABELS, **curve,
        "data": dict(meaning="every step has the stored images and labels", batch=4) if image else dict(
            tokens="tokens.npy", seq_len=SEQ, batch=BATCH, order="sequential", meaning="label of a row: the token after it, modulo 3; no mask, no token types"),
        "labels": labels.tolist(), "loss": loss.item(), "loss_f64": loss64.item(), "largest_f32_error": short(error), "gradients": found,
        "parameters_without_gradient": without, "made_with": VERSIONS})
    size = sum(p.stat().st_size for p in [*folder.iterdir(), OUT / f"{name}.json", OUT / f"{name}.safetensors"])
    print(f"{name:22} {size / 1000:5.1f} kB, loss {curve['losses'][0]:.3f} -> {curve['losses'][-1]:.3f}; f32 against f64: logits {error:.1e}, losses {apart:.1e}", flush=True)


def main():
    tokens = numpy.load(OUT / "tokens.npy")
    for number, name in enumerate(ENCODERS):
        reference(name, 200 + number, tokens)


if __name__ == "__main__":
    main()

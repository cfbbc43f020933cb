"""Tiny random encoders that classify (texts and images), as families.py does for decoders: data/families/."""

import copy
import functools
import string
import sys

import numpy
import torch
from transformers import AutoModel, AutoModelForImageClassification, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertTokenizer

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


TEXTS_OF_LINES = ["The cat sat on the mat.", "a red house by the sea", "Ships!", " ".join(["the sea and the sun"] * 20)]


def tokenizer_of(folder):
    """A WordPiece of a BERT with as many tokens as the models have."""
    letters = string.ascii_lowercase
    words = "the a an and of on in by to is was it we you they he she not but with from as at cat dog house sea sun sat mat red blue big small day night ship fish tree star".split()
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters[1:], *("##" + letter for letter in letters)]
    vocab += [word for word in words if word not in vocab]
    vocab = vocab[:TEXT["vocab_size"]]
    assert len(vocab) == TEXT["vocab_size"], len(vocab)
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(vocab)})
    tokenizer.save_pretrained(folder)
    return tokenizer


def embedded(double, folder):
    """Vectors of lines of text: the mean of the tokens that are shown, and the first token."""
    tokens = tokenizer_of(folder)(TEXTS_OF_LINES, padding=True, truncation=True, max_length=TEXT["max_position_embeddings"], return_tensors="pt")
    with torch.no_grad(), Wide():
        hidden = double(**{key: tokens[key] for key in ("input_ids", "attention_mask")}).last_hidden_state
    shown = tokens["attention_mask"][:, :, None].double()
    return {"texts": TEXTS_OF_LINES, "ids": tokens["input_ids"].tolist(), "lengths": tokens["attention_mask"].sum(1).tolist(),
            "mean": short(((hidden * shown).sum(1) / shown.sum(1)).tolist()), "first": short(hidden[:, 0].tolist())}


def other_head(name, kind, classes, seed):
    """The same family with another head: a folder, its outputs, and gradients where it has a loss."""
    folder = fresh(OUT / f"{name}_{kind}")
    model = make(name, seed, folder, classes, ENCODERS[name]).eval()
    double = copy.deepcopy(model).double()
    inputs = images(seed) if name == "vit" else texts(name, seed)
    wide_inputs = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    stored = dict(inputs)
    found = {"name": f"{name}_{kind}", "type": name, "made_with": VERSIONS}
    with torch.no_grad(), Wide():
        out = double(**wide_inputs)
    if kind == "masked":
        hidden = torch.rand(inputs["input_ids"].shape, generator=torch.Generator().manual_seed(seed)) < 0.4
        labels = torch.where(hidden & inputs["attention_mask"].bool(), (inputs["input_ids"] * 7 + 5) % TEXT["vocab_size"], -100)

        def loss_of():
            logits = double(**wide_inputs).logits
            return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

        stored |= {"labels": labels, "logits": out.logits.float()}
        found["loss_f64"] = loss_of()[1].item()
        found["gradients"], found["parameters_without_gradient"] = gradients(double, loss_of)
    else:
        stored |= {"last_hidden_state": out.last_hidden_state.float(), "pooler_output": out.pooler_output.float()}
    if name == "bert" and kind == "base":
        found |= embedded(double, folder)
    write_tensors(OUT / f"{name}_{kind}.safetensors", stored)
    write_json(OUT / f"{name}_{kind}.json", found)


def main():
    for seed, (name, kind, classes) in enumerate([
            ("bert", "masked", AutoModelForMaskedLM), ("modernbert", "masked", AutoModelForMaskedLM),
            ("bert", "base", AutoModel), ("vit", "base", AutoModel)], 300):
        other_head(name, kind, classes, seed)
    if sys.argv[1:] == ["heads"]:
        return
    tokens = numpy.load(OUT / "tokens.npy")
    for number, name in enumerate(ENCODERS):
        reference(name, 200 + number, tokens)


if __name__ == "__main__":
    main()

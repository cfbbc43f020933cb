#!/usr/bin/env python3
"""Programs of torch.export, and what they compute under PyTorch: outputs, gradients, and 20 steps of SGD.

    exported_programs.py FOLDER [NAME...]      some or all of the 30 programs of docs/exported-programs.md, small, random
    exported_programs.py --stored              those that are stored in data/exported
    exported_programs.py --count FOLDER        how often each operator is in the programs of a folder

Needs timm and torchvision besides requirements.txt. NAME.pt2 is the program, NAME.safetensors has in.*, target.*, out.*,
grad.* (of the first step), exact.* (the same gradients computed in float64; not of the stored ones), after.* (parameters and
buffers after the steps) and losses.
The loss is the mean over the outputs of mean((out - target)^2)."""

import collections
import copy
import sys
import warnings

from common import DATA, write_json, write_tensors

import pathlib

import torch
import transformers as hf

warnings.filterwarnings("ignore")
Dim = torch.export.Dim
STEPS, MOMENTUM = 20, 0.9
RATES = {"resnet18": 0.001, "densenet121": 0.0002}  # others: 0.05


class Only(torch.nn.Module):
    """A model whose result is a tensor or a tuple of tensors: these members of its output."""

    def __init__(self, model, *members, inputs=("input_ids",)):
        super().__init__()
        self.model, self.members, self.names = model, members, inputs

    def forward(self, *inputs):
        out = self.model(**dict(zip(self.names, inputs)))
        return tuple(getattr(out, member) for member in self.members)


class UNet(torch.nn.Module):
    """A U-Net of two levels with group norms and skip connections."""

    def __init__(self, wide=16):
        super().__init__()
        block = lambda i, o: torch.nn.Sequential(
            torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.GroupNorm(4, o), torch.nn.SiLU(),
            torch.nn.Conv2d(o, o, 3, padding=1), torch.nn.GroupNorm(4, o), torch.nn.SiLU())
        self.first, self.second, self.middle = block(3, wide), block(wide, 2 * wide), block(2 * wide, 4 * wide)
        self.up_second, self.up_first = block(6 * wide, 2 * wide), block(3 * wide, wide)
        self.last = torch.nn.Conv2d(wide, 3, 1)

    def forward(self, x):
        pool, up = torch.nn.functional.max_pool2d, torch.nn.functional.interpolate
        a = self.first(x)
        b = self.second(pool(a, 2))
        c = self.middle(pool(b, 2))
        b = self.up_second(torch.cat([up(c, scale_factor=2), b], 1))
        return self.last(self.up_first(torch.cat([up(b, scale_factor=2), a], 1)))


def tokens(vocab, batch=4, length=8):
    return torch.randint(3, vocab, (batch, length))


def text_model(make, config, members=("logits",), inputs=1, names=("input_ids",), length=8, lengths=None, **settings):
    """Of tokens [batch, length], both dynamic unless `lengths` is False."""
    model = make(config(**settings))
    values = tuple(tokens(settings["vocab_size"], length=length) for _ in range(inputs))
    shapes = ({0: Dim("batch", min=2, max=64)} if lengths is False
              else {0: Dim("batch", min=2, max=64), 1: Dim("length", min=4, max=32)})
    return Only(model, *members, inputs=names), values, (tuple(shapes for _ in values),)


def image_model(model, size=32, batch=4, channels=3):
    return model, (torch.randn(batch, channels, size, size),), ({0: Dim("batch", min=2, max=64)},)


def timm_model(name, size=32, **settings):
    import timm

    return image_model(timm.create_model(name, num_classes=10, **settings), size)


def mixer():
    from timm.models.mlp_mixer import MlpMixer

    return image_model(MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=32, num_classes=10))


def vision_model(name, size=32, **settings):
    import torchvision

    return image_model(getattr(torchvision.models, name)(num_classes=10, **settings), size)


SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=32)
QUIET = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
TWO = dict(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
           decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, dropout=0.0,
           attention_dropout=0.0, activation_dropout=0.0)
PAIR = dict(inputs=2, names=("input_ids", "decoder_input_ids"))


def clip():
    text = dict(SMALL, projection_dim=16, eos_token_id=2, bos_token_id=1, pad_token_id=0)
    vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8,
                  projection_dim=16)
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    ids = tokens(64)
    ids[:, -1] = 2
    return (Only(model, "text_embeds", "image_embeds", inputs=("input_ids", "pixel_values")),
            (ids, torch.randn(4, 3, 16, 16)), (({0: Dim("batch", min=2, max=64)},) * 2,))


def whisper():
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(
        **dict(TWO, max_source_positions=16, max_target_positions=32, num_mel_bins=8, pad_token_id=0, bos_token_id=1,
               eos_token_id=2, decoder_start_token_id=1)))
    return (Only(model, "logits", inputs=("input_features", "decoder_input_ids")), (torch.randn(4, 8, 32), tokens(64)),
            (({0: Dim("batch", min=2, max=64)},) * 2,))


def wav2vec():
    model = hf.Wav2Vec2Model(hf.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(4, 2),
        conv_kernel=(8, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0, mask_feature_prob=0.0, apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0))
    return (Only(model, "last_hidden_state", inputs=("input_values",)), (torch.randn(4, 200),),
            (({0: Dim("batch", min=2, max=64)},),))


SWIN = dict(img_size=32, patch_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4)
VIT = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)

PROGRAMS = {
    "llama": lambda: text_model(hf.LlamaForCausalLM, hf.LlamaConfig, **SMALL, num_key_value_heads=2, use_cache=False),
    "gpt2": lambda: text_model(hf.GPT2LMHeadModel, hf.GPT2Config, vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32,
                               resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False),
    "bert": lambda: text_model(hf.BertForMaskedLM, hf.BertConfig, **SMALL, **QUIET),
    "vit": lambda: timm_model("vit_tiny_patch16_224", **VIT),
    "resnet18": lambda: vision_model("resnet18", 32),
    "convnext": lambda: timm_model("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    "efficientnet_b0": lambda: timm_model("efficientnet_b0"),
    "mobilenet_v3_small": lambda: vision_model("mobilenet_v3_small", dropout=0.0),
    "swin": lambda: timm_model("swin_tiny_patch4_window7_224", **SWIN),
    "deit": lambda: timm_model("deit_tiny_distilled_patch16_224", **VIT),
    "mixer": mixer,
    "regnet_y_400mf": lambda: vision_model("regnet_y_400mf"),
    "densenet121": lambda: vision_model("densenet121"),
    "roberta": lambda: text_model(hf.RobertaForSequenceClassification, hf.RobertaConfig,
                                  **dict(SMALL, max_position_embeddings=40), **QUIET, num_labels=3, pad_token_id=1),
    "distilbert": lambda: text_model(hf.DistilBertForMaskedLM, hf.DistilBertConfig, vocab_size=64, dim=32, n_layers=2, n_heads=4,
                                     hidden_dim=64, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0),
    "albert": lambda: text_model(hf.AlbertForMaskedLM, hf.AlbertConfig, **SMALL, **QUIET, embedding_size=16),
    "electra": lambda: text_model(hf.ElectraForPreTraining, hf.ElectraConfig, **SMALL, **QUIET, embedding_size=16),
    "deberta_v2": lambda: text_model(hf.DebertaV2ForMaskedLM, hf.DebertaV2Config, **SMALL, **QUIET, relative_attention=True,
                                     pos_att_type=["p2c", "c2p"], lengths=False),
    "modernbert": lambda: text_model(hf.ModernBertForMaskedLM, hf.ModernBertConfig, **SMALL, pad_token_id=0, bos_token_id=1,
                                     eos_token_id=2, cls_token_id=1, sep_token_id=2),
    "t5": lambda: text_model(hf.T5ForConditionalGeneration, hf.T5Config, **PAIR, vocab_size=64, d_model=32, d_kv=8, d_ff=64,
                             num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False),
    "bart": lambda: text_model(hf.BartForConditionalGeneration, hf.BartConfig, **PAIR, **TWO, use_cache=False),
    "marian": lambda: text_model(hf.MarianMTModel, hf.MarianConfig, **PAIR, **TWO, use_cache=False, pad_token_id=0,
                                 decoder_start_token_id=0, eos_token_id=1),
    "gpt_neox": lambda: text_model(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, **SMALL, use_cache=False, hidden_dropout=0.0,
                                   attention_dropout=0.0),
    "opt": lambda: text_model(hf.OPTForCausalLM, hf.OPTConfig, vocab_size=64, hidden_size=32, num_hidden_layers=2,
                              num_attention_heads=4, ffn_dim=64, max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0,
                              use_cache=False),
    "bloom": lambda: text_model(hf.BloomForCausalLM, hf.BloomConfig, vocab_size=64, hidden_size=32, n_layer=2, n_head=4,
                                hidden_dropout=0.0, attention_dropout=0.0, use_cache=False),
    "mamba": lambda: text_model(hf.MambaForCausalLM, hf.MambaConfig, vocab_size=64, hidden_size=32, state_size=8,
                                num_hidden_layers=2, time_step_rank=4, use_cache=False, lengths=False),
    "clip": clip,
    "whisper": whisper,
    "wav2vec2": wav2vec,
    "unet": lambda: image_model(UNet(), 16),
}


class Convolutions(torch.nn.Module):
    """Convolutions with batch norms that train: buffers change in each call."""

    def __init__(self):
        super().__init__()
        layers = lambda i, o: torch.nn.Sequential(torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.BatchNorm2d(o), torch.nn.ReLU())
        self.first, self.second, self.head = layers(3, 8), layers(8, 8), torch.nn.Linear(8, 5)

    def forward(self, x):
        x = self.second(torch.nn.functional.max_pool2d(self.first(x), 2))
        return self.head(x.mean((2, 3)))


class OwnLoss(torch.nn.Module):
    """A model of the next token with a loss of its own: targets are smoothed."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64)

    def forward(self, input_ids, targets):
        logits = self.head(torch.tanh(self.embedding(input_ids)))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1), logits


class Changed(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


class Complex(torch.nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs()


STORED = ("gpt2", "bert", "convolutions")
REFUSED = {"changed": Changed, "branches": Branches, "complex": Complex}  # what cannot be read; stored too
CORE = ("bert", "vit")  # in the operators that remain after all decompositions


def make(name):
    """The model in evaluation mode with random weights that differ from what initialises it, its inputs, its dynamic dims."""
    torch.manual_seed(list(PROGRAMS).index(name) + 1 if name in PROGRAMS else 100)
    model, inputs, shapes = PROGRAMS[name]() if name in PROGRAMS else image_model(Convolutions(), 8)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape))
    return model.train(name not in PROGRAMS), inputs, shapes


def export(model, inputs, shapes, core=False):
    """As docs/exported-programs.md says; `core`: everything is decomposed."""
    table = torch.export.default_decompositions()
    aten = torch.ops.aten
    for kept in () if core else (aten.linear.default, aten.layer_norm.default, aten.scaled_dot_product_attention.default):
        table.pop(kept)
    return torch.export.export(model, inputs, dynamic_shapes=shapes).run_decompositions(table)


def as_list(out):
    return [out] if isinstance(out, torch.Tensor) else list(out)


def loss_of(outputs, targets):
    return sum((o - t).square().mean() for o, t in zip(outputs, targets)) / len(outputs)


def exact_gradients(model, inputs, targets):
    """Those of the same numbers in float64."""
    double = lambda x: x.double() if x.is_floating_point() else x
    exact = copy.deepcopy(model).double()
    loss_of(as_list(exact(*map(double, inputs))), [double(t) for t in targets]).backward()
    return {f"exact.{n}": p.grad for n, p in exact.named_parameters() if p.grad is not None}


def write(name, folder, exact=True):
    model, inputs, shapes = make(name)
    program = export(model, inputs, shapes, core=name in CORE)
    torch.export.save(program, folder / f"{name}.pt2")
    outputs = as_list(copy.deepcopy(model)(*inputs))
    stored = {f"in.{i}": x for i, x in enumerate(inputs)}
    stored |= {f"out.{i}": x.detach() for i, x in enumerate(outputs)}
    targets = [x.detach() + 0.1 * torch.randn(x.shape) for x in outputs]
    stored |= {f"target.{i}": x for i, x in enumerate(targets)}
    stored |= exact_gradients(model, inputs, targets) if exact else {}
    parameters = {n: p for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(parameters.values(), lr=RATES.get(name, 0.05), momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(as_list(model(*inputs)), targets)
        loss.backward()
        if step == 0:
            stored |= {f"grad.{n}": p.grad.clone() for n, p in parameters.items() if p.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    stored |= {f"after.{n}": p.detach() for n, p in [*parameters.items(), *model.named_buffers()]}
    stored["rate"] = torch.tensor([RATES.get(name, 0.05)], dtype=torch.float64)
    stored["losses"] = torch.tensor(losses, dtype=torch.float64)
    write_tensors(folder / f"{name}.safetensors", {n: x.clone().contiguous() for n, x in stored.items()})
    return program


def write_next_token(folder):
    """The losses of 20 steps of AdamW on 12 rows of 16 tokens by two programs, for runs with model.from."""
    torch.manual_seed(7)
    ids = torch.randint(0, 64, (12 * 16 + 1,))
    inputs, targets = ids[:-1].view(12, 16), ids[1:].view(12, 16)
    gpt2 = make("gpt2")[0]
    own = OwnLoss()
    rows = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=4, max=32)}
    torch.export.save(export(own, (inputs, targets), (rows, rows)), folder / "own_loss.pt2")

    def losses(model, loss_of):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
        all_losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            all_losses.append(loss.item())
        return all_losses

    entropy = lambda model: torch.nn.functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())
    write_json(folder / "next_token.json", {"tokens": ids.tolist(), "gpt2": losses(gpt2, entropy),
                                            "own_loss": losses(own, lambda model: model(inputs, targets)[0])})


def count(folder):
    total, programs = collections.Counter(), collections.Counter()
    for path in sorted(pathlib.Path(folder).glob("*.pt2")):
        graph = torch.export.load(path).graph
        names = collections.Counter(str(node.target) for node in graph.nodes if node.op == "call_function")
        total += names
        programs += collections.Counter(names.keys())
    for name, number in total.most_common():
        print(f"{number:6} {programs[name]:3} {name}")


def main(arguments):
    if arguments[0] == "--count":
        return count(arguments[1])
    stored = arguments[0] == "--stored"
    folder = DATA / "exported" if stored else pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    if stored:
        for name, model in REFUSED.items():
            torch.export.save(export(model(), (torch.randn(4, 6),), None), folder / f"{name}.pt2")
        write_next_token(folder)
    for name in STORED if stored else arguments[1:] or PROGRAMS:
        try:
            write(name, folder, exact=not stored)
            print(f"{name}: written", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

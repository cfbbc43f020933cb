#!/usr/bin/env python3
"""Classifiers of images under transformers, as `tessera train` trains them with train.objective=classification.

data/image_classification: a ViT (`vit`, of image_size 12) with its preprocessor_config.json, images in PNG and JPEG files
(grey, palettes, transparency, progressive) with their labels, and curves.json with the losses of 12 steps of AdamW (8 rows a
step, in order), and the loss and accuracy of the validation after them; pixels.json has images as Pillow decodes them and
resizes them by each filter, and pixel_values of the processor. Needs Pillow before 13, which may pass over columns first."""

import json
import random

import numpy
import torch
from PIL import Image
from transformers import AutoImageProcessor, ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from common import DATA, VERSIONS, fresh, write_json

OUT = DATA / "image_classification"
STEPS, BATCH, SIZE = 12, 8, 12
CLASSES = ["bars", "disc", "wave"]


def picture(label, draw):
    """An image of one class as bytes [height, width, 3], with noise."""
    height, width = draw.randint(9, 30), draw.randint(9, 30)
    y, x = numpy.mgrid[0:height, 0:width]
    if label == "bars":
        shape = ((x * 8 // width + draw.randint(0, 1)) % 2).astype(float)
    elif label == "disc":
        shape = (((x - width / 2) / width) ** 2 + ((y - height / 2) / height) ** 2 < 0.1).astype(float)
    else:
        shape = 0.5 + 0.5 * numpy.sin(y * 9.0 / height + draw.random())
    noise = numpy.random.default_rng(draw.randint(0, 1 << 30)).random((height, width, 3))
    colour = numpy.array([draw.random() for _ in range(3)])
    return numpy.clip(255 * (0.7 * shape[..., None] * colour + 0.3 * noise), 0, 255).astype(numpy.uint8)


def saved(pixels, number):
    """One of the forms that files have, by number."""
    image, name = Image.fromarray(pixels), f"{number:02}"
    form = number % 7
    if form == 0:
        name += ".jpg"
        image.save(OUT / "images" / name, quality=85)
    elif form == 1:
        name += ".png"
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=32).save(OUT / "images" / name)
    elif form == 2:
        name += ".png"
        image.convert("L").save(OUT / "images" / name)
    elif form == 3:
        name += ".jpg"
        image.convert("L").save(OUT / "images" / name, progressive=True, quality=60)
    elif form == 4:
        name += ".png"
        alpha = image.convert("RGBA")
        alpha.putalpha(100)
        alpha.save(OUT / "images" / name)
    else:
        name += ".png"
        image.save(OUT / "images" / name)
    return f"images/{name}"


def records(name, count, seed, first):
    draw = random.Random(seed)
    found = []
    for number in range(first, first + count):
        label = draw.choice(CLASSES)
        found.append({"image": saved(picture(label, draw), number), "label": label})
    (OUT / name).write_text("".join(json.dumps(record) + "\n" for record in found))
    return found


def opened(record):
    return Image.open(OUT / record["image"]).convert("RGB")


def rows(processor, found):
    pixels = processor([opened(record) for record in found], return_tensors="pt")["pixel_values"]
    return pixels, torch.tensor([CLASSES.index(record["label"]) for record in found])


def curve(model, training, validation):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH % len(training[0]), step * BATCH % len(training[0]) + BATCH)
        optimizer.zero_grad()
        loss = model(pixel_values=training[0][part].double(), labels=training[1][part]).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        out = model(pixel_values=validation[0].double(), labels=validation[1])
    accuracy = (out.logits.argmax(-1) == validation[1]).double().mean().item()
    return {"losses": losses, "validation": {"loss": out.loss.item(), "accuracy": accuracy}}


def pixels_of(processor, found):
    """Decoded, and resized by each filter."""
    cases = []
    for record in found:
        image = opened(record)
        case = {"image": record["image"], "width": image.width, "height": image.height,
                "pixels": numpy.asarray(image).flatten().tolist()}
        for name, number in (("lanczos", 1), ("bilinear", 2), ("bicubic", 3)):
            case[name] = numpy.asarray(image.resize((12, 17), number)).flatten().tolist()
        cases.append(case)
    values = processor(opened(found[0]), return_tensors="np")["pixel_values"][0]
    return {"cases": cases, "width": 12, "height": 17, "values": [float(value) for value in values.flatten()]}


def main():
    fresh(OUT)
    (OUT / "images").mkdir()
    torch.manual_seed(3)
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=SIZE, patch_size=4,
                       id2label=dict(enumerate(CLASSES)), label2id={name: i for i, name in enumerate(CLASSES)}, initializer_range=0.2)
    model = ViTForImageClassification(config)
    model.save_pretrained(OUT / "vit")
    (OUT / "vit" / "model.safetensors").chmod(0o644)
    ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}, image_mean=[0.4, 0.5, 0.6], image_std=[0.25, 0.3, 0.5]).save_pretrained(OUT / "vit")
    processor = AutoImageProcessor.from_pretrained(OUT / "vit", backend="pil")
    training, validation = records("images.jsonl", 40, 1, 0), records("validation.jsonl", 16, 2, 40)
    write_json(OUT / "pixels.json", pixels_of(processor, training[:7]))
    found = curve(model.double().train(), rows(processor, training), rows(processor, validation))
    write_json(OUT / "curves.json", {"vit": found, "made_with": VERSIONS})
    print([round(loss, 4) for loss in found["losses"]], found["validation"])


if __name__ == "__main__":
    main()

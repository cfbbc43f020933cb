"""Chat templates of real models: what a run makes of their conversations, beside transformers.

    python real_chat_templates.py TESSERA FOLDER... > docs/chat-templates-real.md's table

Each folder has *.jinja files; its name is the source's. They are not a part of this repository: those of the table are in
the packages axolotl, trl and unsloth (chat_templates.py) on PyPI. A template gets a tokenizer of bytes and of the special
tokens that it writes, and three conversations go through `tessera data show` with train_on = "all": the ids are decoded and
compared with transformers' text. Then answers are looked for (train_on = "answers").
"""

import collections
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from transformers.utils import chat_template_utils

BOS, EOS = "<s>", "</s>"
OPTIONS = {"date_string": "26 Jul 2024"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather at a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}
CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "It is 2."}]},
    "turns": {"messages": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "beta"},
                           {"role": "user", "content": "gamma"}, {"role": "assistant", "content": "delta 🏠"}]},
    "tools": {"tools": [TOOL], "messages": [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {
            "name": "weather", "arguments": {"place": "Köln"}}}]},
        {"role": "tool", "content": "{\"sky\": \"grey\"}", "name": "weather", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "Grey clouds."}]},
}


def parts(conversation):
    """With contents as lists of parts, which some templates take alone."""
    messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in conversation["messages"]]
    return {**conversation, "messages": messages}


def theirs(template, conversation):
    text = rendered(template, conversation)
    if isinstance(text, str) and conversation["messages"][0]["content"] not in text:
        return rendered(template, parts(conversation))
    return text


def rendered(template, conversation):
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        return chat_template_utils._render_with_assistant_indices(
            compiled, conversation["messages"], conversation.get("tools"), None, False, bos_token=BOS, eos_token=EOS, **OPTIONS)[0]
    except Exception as error:
        return error


def tokenizer(folder, template, texts):
    """Bytes, and every token between bars or angles that the template writes."""
    names = sorted(set(re.findall(r"<\|?[A-Za-z_][\w .:-]*\|?>|<\|[^|\n]{1,30}\|>|<start_of_turn>|<end_of_turn>|\[/?[A-Z_]+\]",
                                  template + " ".join(texts))) - {BOS, EOS})
    special = [BOS, EOS, *[n for n in names if len(n) < 40]]
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, s in enumerate(special)]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "ByteFallback"}, "model": {"type": "BPE", "byte_fallback": True, "merges": [],
                                                       "vocab": {f"<0x{i:02X}>": i for i in range(256)}}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))
    (folder / "chat_template.jinja").write_text(template)
    return special


def ours(tessera, folder, special, conversation, train_on, ends):
    """The text of the row, or why the run is refused."""
    (folder / "d.jsonl").write_text(json.dumps(conversation) + "\n")
    (folder / "run.toml").write_text(
        "[model]\ndim = 32\nlayers = 1\nheads = 2\n[data]\ntokenizer = \".\"\njsonl = [\"d.jsonl\"]\nseq_len = 16384\n"
        f"validation = 0.0\ntrain_on = \"{train_on}\"\nend_tokens = {json.dumps(ends)}\n"
        f"template_options = {{ date_string = \"26 Jul 2024\", now = \"{datetime.date.today()}\" }}\n[train]\nsteps = 1\nbatch = 1\n"
        "[checkpoint]\nfolder = \"\"\n[log]\nmetrics = \"\"\n")
    done = subprocess.run([tessera, "data", "show", str(folder / "run.toml"), "--rows", "1"], capture_output=True, text=True)
    if done.returncode:
        return None, re.sub(r"^error: .*?d\.jsonl:1: |^error: ", "", done.stderr.strip().split("\n")[0])
    ids = [int(i) for i in re.findall(r"\|(\d+)\}?(?= |$)", done.stdout, re.M)]
    return b"".join(bytes([i]) if i < 256 else special[i - 256].encode() for i in ids).decode(errors="replace"), ""


def reason(text):
    """A reason without what is particular to the template."""
    text = re.sub(r"^.*?chat template of tokenizer.json of \S+: (line \d+: )?", "", text)
    text = re.sub(r" of message \d+|message \d+ |: '.*|; .*|, see byte.*|, so the model would.*", "", text)
    return text[:100]


def main():
    tessera, *folders = sys.argv[1:]
    groups = collections.defaultdict(list)
    differences = 0
    for file in sorted(f for folder in folders for f in pathlib.Path(folder).glob("*.jinja")):
        template = file.read_text()
        cells = []
        for name, conversation in CONVERSATIONS.items():
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                want = theirs(template, conversation)
                texts = [want] if isinstance(want, str) else []
                special = tokenizer(folder, template, texts)
                got, why = ours(tessera, folder, special, conversation, "all", [])
                if got is None:
                    both = "refused by the template itself" if isinstance(want, Exception) else "refused: " + reason(why)
                    cells.append(both)
                    continue
                if got != want:
                    differences += 1
                    print(f"{file}: {name}: {got!r} and {want!r}", file=sys.stderr)
                    cells.append("DIFFERENT")
                    continue
                ends = [s for s in special if re.search(r"eot|end|eos|im_end|return|EOT|END", s) and s in want]
                answers, why = ours(tessera, folder, special, conversation, "answers", ends)
                cells.append("equal" if answers is not None else "equal; answers: " + reason(why))
        groups[tuple(cells)].append(f"{file.parent.name}/{file.stem}")
    print("| one question | two turns | a call of a tool | templates |\n| --- | --- | --- | --- |")
    for cells, names in sorted(groups.items(), key=lambda g: -len(g[1])):
        row = [c.replace("|", "\\|") for c in cells]
        print("| " + " | ".join(row) + f" | {len(names)}: " + ", ".join(names) + " |")
    sys.exit(differences > 0)


main()

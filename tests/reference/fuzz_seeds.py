#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into tests/fuzz/corpus, from what the program writes itself and from small texts.
Run from the project's root after ./dev build; inputs that were found (found-*) stay."""
import json, os, shutil, struct, subprocess, tempfile, time
CORPUS = "tests/fuzz/corpus"
PROGRAM = os.path.abspath("build/release/bin/tessera")


def write(target, name, content):
    os.makedirs(f"{CORPUS}/{target}", exist_ok=True)
    with open(f"{CORPUS}/{target}/{name}", "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def lines(target, name, records):
    for number, record in enumerate(records):
        write(target, f"{name}-{number}", json.dumps(record))


def of_runs():
    """A run's metrics, trace and checkpoint, and the black box of one that fails."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/a.txt", "w") as file:
            file.write("the quick brown fox jumps over the lazy dog\n" * 40)
        sizes = ["model.dim=4", "model.ffn_dim=4", "model.layers=1", "model.heads=1", "data.text=[a.txt]", "data.seq_len=4",
                 "train.batch=2", "train.steps=3", "data.validation=0", "optimizer.name=sgd", "trace.file=trace.json",
                 "trace.steps=[2,2]", "mesh.axes=[shard]", "mesh.shape=[2]", 'parallel=[{style=FSDP,axis=shard,on=["."]}]',
                 "log.blackbox=boxes"]
        with open(f"{folder}/run.toml", "w") as file:
            file.write("")
        subprocess.run([PROGRAM, "train", "run.toml", *sizes], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        metrics = open(f"{folder}/metrics.jsonl").read()
        write("metrics", "run.jsonl", metrics)
        trace = json.load(open(f"{folder}/trace.json"))
        kept = trace["traceEvents"]
        ranks = sorted({event["pid"] for event in kept})
        trace["traceEvents"] = [event for rank in ranks for event in [e for e in kept if e["pid"] == rank][:45]]
        write("trace", "run.json", json.dumps(trace, separators=(",", ":")))
        at = f"{folder}/checkpoints/step-00000003"
        for file in os.listdir(at):
            if file == "checkpoint.json" or file.startswith("rank-"):
                write("checkpoint", file, open(f"{at}/{file}", "rb").read())
        index = open(f"{at}/checkpoint.json").read()
        meta = json.loads(index)["meta"]
        write("model_meta", "run.json", json.dumps(meta))
        environment = {**os.environ, "TESSERA_TIMEOUT": "1"}
        run = subprocess.Popen([PROGRAM, "train", "run.toml", *sizes, "train.steps=1000000", "trace.file=", "trace.steps=[]"], cwd=folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        while not os.path.exists(f"{folder}/metrics.jsonl") or open(f"{folder}/metrics.jsonl").read().count("\n") < 20:
            time.sleep(0.05)
        rank = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()[0]
        os.kill(int(rank), 9)
        run.wait()
        box = json.load(open(f"{folder}/boxes/{os.listdir(f'{folder}/boxes')[0]}"))
        box["machine"] = "machine"
        for one in box["ranks"]:
            one["calls"] = one["calls"][-4:]
        write("black_box", "killed.json", json.dumps(box))


def plugin():
    """What is read of a shared library: its headers, stamp and dynamic section, with zeros in place of the rest."""
    data = bytearray(open("build/release/lib/tessera/plugins/Replicate.so", "rb").read())
    shoff, = struct.unpack_from("<Q", data, 40)
    shentsize, shnum, shstrndx = struct.unpack_from("<HHH", data, 58)
    sections = [list(struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shentsize)) for i in range(shnum)]
    names = sections[shstrndx]
    name_of = lambda s: bytes(data[names[4] + s[0]:]).split(b"\0")[0].decode()
    kept = [s for i, s in enumerate(sections) if i in (0, shstrndx) or "tessera" in name_of(s) or name_of(s) in (".dynamic", ".dynstr")]
    phoff, = struct.unpack_from("<Q", data, 32)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    programs = [list(struct.unpack_from("<IIQQQQQQ", data, phoff + i * phentsize)) for i in range(phnum)]
    out = bytearray(data[:64]) + b"\0" * (phentsize * 2)
    moved = {}
    for s in kept[1:]:
        while len(out) % 16:
            out += b"\0"
        moved[s[4]] = len(out)
        body = bytes(data[s[4]:s[4] + s[5]])
        s[4] = len(out)
        out += body
    dynamic = next(s for s in kept if name_of_moved(out, kept, data, names, s) == ".dynamic")
    dynstr = next(s for s in kept if name_of_moved(out, kept, data, names, s) == ".dynstr")
    # One segment maps the string table at its address, one is the dynamic section.
    load = [1, 4, 0, 0, 0, 0, 0, 4096]
    load[2] = dynstr[4]; load[3] = load[4] = dynstr[3]; load[5] = load[6] = dynstr[5]
    struct.pack_into("<IIQQQQQQ", out, 64, *load)
    struct.pack_into("<IIQQQQQQ", out, 64 + phentsize, 2, 4, dynamic[4], dynamic[3], dynamic[3], dynamic[5], dynamic[5], 8)
    while len(out) % 16:
        out += b"\0"
    at = len(out)
    for s in kept:
        out += struct.pack("<IIQQQQIIQQ", *s)
    struct.pack_into("<Q", out, 32, 64)
    struct.pack_into("<Q", out, 40, at)
    struct.pack_into("<HHHHH", out, 54, phentsize, 2, shentsize, len(kept), kept.index(names))
    write("plugin_file", "replicate.so", bytes(out))


def name_of_moved(out, kept, data, names, section):
    return bytes(out[names[4] + section[0]:]).split(b"\0")[0].decode()


def texts():
    user = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": "Hello \u00e9"}
    lines("records", "record", [
        {"messages": [{"role": "system", "content": "Be kind."}, user, answer, user, answer]},
        {"messages": [user, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                      {"role": "tool", "content": "3", "tool_call_id": "1"}, answer], "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"prompt": "2 + 2 = ", "completion": "4"}, {"prompt": [user], "completion": [answer]}, {"text": "Some text."},
        {"prompt": "a", "chosen": "b", "rejected": "c"}, {"chosen": [user, answer], "rejected": [user, {"role": "assistant", "content": "No"}]},
        {"prompt": [user], "chosen": [answer], "rejected": [{"role": "assistant", "content": "No"}]}])
    header = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    write("npy", "u16.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\1\0\2\0\3\0")
    header = header.replace("<u2", "<i4")
    write("npy", "i32.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) + 0) + header.encode() + b"\1\0\0\0" * 3)
    lines("tokenizer_config", "config", [
        {"bos_token": "[UNK]", "eos_token": {"content": "[UNK]", "lstrip": False}, "unk_token": "[UNK]", "chat_template": "{{ messages }}",
         "added_tokens_decoder": {"0": {"content": "[UNK]", "special": True}}, "eos_token_id": [0, 1]},
        {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "additional_special_tokens": ["[UNK]"]}])
    lines("tekken", "tekken", [
        {"config": {"pattern": "[^ ]+| ", "num_vocab_tokens": 261, "default_vocab_size": 264, "default_num_special_tokens": 3, "version": "v3"},
         "vocab": [{"rank": i, "token_bytes": __import__("base64").b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)] +
                  [{"rank": 256, "token_bytes": "aGU=", "token_str": "he"}],
         "special_tokens": [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(("<unk>", "<s>", "</s>"))]}])
    write("layouts", "two-axes", "mesh(shard=2, tensor=2)\n[Shard(0), Shard(1)]\n[Replicate, Partial(sum)]")
    write("layouts", "strided", "mesh(a=2, b=2) of ranks 3 2 1 0\n[StridedShard(0, 2), Shard(0)]\n[Shard(0), Shard(0)]")
    write("schedules", "1f1b", "schedule 1f1b\nmicro_batches 2\nstages 0 1\nkept 2 1\nrank 0: F0.0 >F0.0 F0.1 >F0.1 <B0.0 B0.0 <B0.1 B0.1\n"
          "rank 1: <F1.0 F1.0 B1.0 >B1.0 <F1.1 F1.1 B1.1 >B1.1\n")
    write("schedules", "halves", "schedule halves\nmicro_batches 2\nstages 0 1\nrank 0: F0.0 F0.1 I0.0 I0.1 W0.0 W0.1\nrank 1: F1.0 I1.0 F1.1 I1.1 W1.0 W1.1\n")
    for number, text in enumerate(("train.steps=5", "mesh.shape=[2,2]\nmesh.axes=[a,b]", "parallel=[{style=FSDP,axis=a,on=[\".\"]}]", "optimizer.options={betas=[0.9,0.95]}",
                                   "data.text=[a.txt, \"b c.txt\"]")):
        write("config_override", f"override-{number}", text)
    lines("chat_request", "request", [
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["\n"],
         "stream": True, "stream_options": {"include_usage": True}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stop": "x", "n": 1, "max_completion_tokens": 3}])
    write("questions", "questions.jsonl", "\n".join(map(json.dumps, (
        {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}, {"question": "Q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question": "Capital?", "answer": "Bern"}))) + "\n")


if __name__ == "__main__":
    of_runs()
    plugin()
    texts()
    print(subprocess.run(["du", "-sh", CORPUS], capture_output=True, text=True).stdout)

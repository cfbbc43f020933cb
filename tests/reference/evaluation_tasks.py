"""Scores that lm-evaluation-harness gives a tiny random model on tasks with every part that Tessera reads.

    evaluation_tasks.py
    evaluation_tasks.py check PROGRAM [TASK...]   its own tasks (or those named), with documents made up here: PROGRAM must
                                                  give the same scores

Writes data/evaluation/{model, tasks, data, expected.json}. Needs lm_eval besides requirements.txt.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from common import DATA, fresh, write_json

OUT = DATA / "evaluation"
WORDS = "the a cat dog house river stone blue green old small runs sees eats likes under over and with Paris Rome seven".split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def make_model(folder):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizers" / "byte_level.json"), eos_token="<|endoftext|>")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=640, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape) if p.dim() > 1 else 1 + 0.1 * torch.randn(p.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


TASKS = {
    "letters": """
task: letters
output_type: multiple_choice
training_split: train
validation_split: validation
doc_to_text: "{{question.strip()}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:"
doc_to_choice: ['A', 'B']
doc_to_target: key
num_fewshot: 2
""",
    "endings": """
include: shared_yaml
task: endings
num_fewshot: 3
""",
    "shared_yaml": """
output_type: multiple_choice
test_split: test
doc_to_text: "{% if stem %}{{stem}}\\n{% endif %}Then"
doc_to_choice: "{{endings.text}}"
doc_to_target: "{{endings.label.index(key)}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: yes
  - metric: acc_norm
  - metric: acc_bytes
  - metric: exact_match
""",
    "blanks": """
task: blanks
output_type: multiple_choice
validation_split: validation
doc_to_text: answer
doc_to_choice: "{{[before + first, before + second]}}"
doc_to_target: after
metric_list: [{metric: acc}]
""",
    "last_word": """
task: last_word
output_type: loglikelihood
test_split: test
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{ending or ' ' + text.split(' ')[-1]}}"
""",
    "documents": """
task: documents
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{page}}"
""",
    "sums": """
task: sums
output_type: generate_until
training_split: train
fewshot_split: train
fewshot_config: {sampler: first_n}
test_split: test
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{answer}}"
num_fewshot: 4
generation_kwargs: {until: ["Q:", "zz"], do_sample: false, temperature: 0.0, max_gen_toks: 24}
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "([a-z]+) ([a-z]+)"}
      - {function: take_first}
  - name: last
    filter:
      - {function: regex, regex_pattern: "[a-z]", group_select: -1}
      - {function: take_first}
metric_list:
  - metric: exact_match
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
""",
    "names": """
task: names
output_type: generate_until
validation_split: validation
description: "Answer:\\n\\n"
doc_to_text: "Q: {{question}}?\\nA:"
doc_to_target: "{{aliases}}"
fewshot_delimiter: "\\n"
num_fewshot: 2
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 3}
filter_list:
  - name: short
    filter: [{function: remove_whitespace}, {function: lowercase}, {function: take_first}]
metric_list:
  - {metric: exact_match, ignore_case: true, ignore_punctuation: true, ignore_numbers: true}
""",
    "prefixed": """
task: prefixed
output_type: multiple_choice
test_split: test
fewshot_config:
  sampler: first_n
  samples:
    - {stem: "the cat", endings: {text: ["runs", "eats"], label: ["x", "y"]}, key: "y"}
    - {stem: "a dog", endings: {text: ["sees", "likes"], label: ["x", "y"]}, key: "x"}
num_fewshot: 2
doc_to_text: "{{stem}}"
gen_prefix: "It"
doc_to_choice: "{{endings.text}}"
doc_to_target: "{{endings.label.index(key)}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
}


def make_documents():
    rng = random.Random(3)

    def ending(choices=3):
        return {"stem": words(rng, rng.choice([0, 4])), "endings": {"text": [words(rng, rng.randint(1, 5)) for _ in range(choices)],
                "label": ["x", "y", "z"][:choices]}, "key": rng.choice(["x", "y", "z"][:choices])}

    return {
        "letters": {split: [{"question": words(rng, 6) + " ", "choices": [words(rng, 2), words(rng, 3)], "key": rng.choice("AB")}
                            for _ in range(n)] for split, n in [("train", 30), ("validation", 12)]},
        "endings": {"test": [ending() for _ in range(14)]},
        "blanks": {"validation": [{"answer": rng.randint(0, 1), "before": words(rng, 3) + " ", "first": words(rng, 1),
                                   "second": words(rng, 1), "after": words(rng, 3)} for _ in range(10)]},
        "last_word": {"test": [{"text": words(rng, 8)} for _ in range(10)]},
        "documents": {"test": [{"page": words(rng, n) + "\n"} for n in (5, 40, 700)]},
        "sums": {split: [{"question": words(rng, 5), "answer": words(rng, 6) + " #### " + words(rng, 1)} for _ in range(n)]
                 for split, n in [("train", 8), ("test", 8)]},
        "names": {"validation": [{"question": words(rng, 4), "aliases": [words(rng, 1), "It's", chr(97 + i), chr(65 + 2 * i)]}
                                 for i in range(9)]},
        "prefixed": {"test": [ending(2) for _ in range(9)]},
    }


def write_task(folder, name, text, documents):
    (folder / "tasks").mkdir(exist_ok=True, parents=True)
    files = ""
    if documents:
        data = folder / "data" / name
        data.mkdir(parents=True, exist_ok=True)
        files = "dataset_path: json\ndataset_kwargs:\n  data_files:\n"
        for split, docs in documents.items():
            (data / f"{split}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
            files += f"    {split}: ../data/{name}/{split}.jsonl\n"
    (folder / "tasks" / (name if "yaml" in name else name + ".yaml")).write_text(files + text.lstrip())


# How questions are asked, with the options of the harness and of the program.
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
SYSTEM = "Answer in a word."
FORMS = {
    "plain": ({}, []),
    "system": ({"system_instruction": SYSTEM}, ["--system", SYSTEM]),
    "chat": ({"apply_chat_template": True}, ["--chat"]),
    "turn": ({"apply_chat_template": True, "fewshot_as_multiturn": False, "system_instruction": SYSTEM},
             ["--chat", "--one-turn", "--system", SYSTEM]),
}


def evaluated(model_folder, manager, tasks, form="plain"):
    model = LlamaForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.chat_template = TEMPLATE
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu")
    return lm_eval.simple_evaluate(model=lm, tasks=tasks, task_manager=manager, bootstrap_iters=10, log_samples=True, **FORMS[form][0])


def scores_of(model_folder, manager, tasks, form="plain"):
    results = evaluated(model_folder, manager, tasks, form)["results"]
    scores = {}
    for task in tasks:
        for key, value in results[task].items():
            if "," in key and not isinstance(value, str):
                metric, name = key.split(",")
                of = metric.removesuffix("_stderr")
                if metric != of and of.endswith("perplexity"):
                    continue  # from random samples
                key = of + ("" if name == "none" else "," + name) + ("" if metric == of else "_error")
                scores.setdefault(task, {})[key] = float(value)
    return scores


def say_endings(documents):
    """Gives some texts the ending that the model finds likeliest, where its token is one behind the text."""
    model = LlamaForCausalLM.from_pretrained(OUT / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(OUT / "model")
    said = 0
    for doc in documents:
        doc["ending"] = ""
        context = " ".join(doc["text"].split(" ")[:-1])
        ids = tokenizer.encode(context)
        with torch.no_grad():
            token = model(torch.tensor([ids])).logits[0, -1].argmax().item()
        ending = tokenizer.decode([token])
        if said < 4 and ending and tokenizer.encode(context + ending) == ids + [token]:
            doc["ending"] = ending
            said += 1
    assert said > 1


def own_scores():
    fresh(OUT)
    make_model(OUT / "model")
    documents = make_documents()
    for name, text in TASKS.items():
        write_task(OUT, name, text, documents.get(name))
    # The harness reads paths from the working directory.
    import os
    os.chdir(OUT / "tasks")
    manager = TaskManager(include_path=str(OUT / "tasks"), include_defaults=False)
    say_endings(documents["last_word"]["test"])
    write_task(OUT, "last_word", TASKS["last_word"], documents["last_word"])
    # A random model is never right: some answers become what it says.
    for name, split, member in [("sums", "test", "answer"), ("names", "validation", "aliases")]:
        samples = evaluated(OUT / "model", manager, [name])["samples"][name]
        for sample in samples:
            doc = documents[name][split][sample["doc_id"]]
            said = sample["filtered_resps"][0]
            if name == "names" and sample["doc_id"] % 3 < 2:
                doc[member].append(said.upper() + "!7")
            elif name == "sums" and sample["doc_id"] % 2 == (sample["filter"] == "last"):
                doc[member] = words(random.Random(1), 3) + " #### " + said.upper() + "."
        write_task(OUT, name, TASKS[name], documents[name])
    names = list(documents)
    scores = scores_of(OUT / "model", manager, names)
    (OUT / "chat.jinja").write_text(TEMPLATE)
    forms = {form: scores_of(OUT / "model", manager, names, form) for form in FORMS if form != "plain"}
    write_json(OUT / "expected.json", {"lm_eval": lm_eval.__version__ if hasattr(lm_eval, "__version__") else "", "scores": scores,
                                       "system": SYSTEM, "forms": forms})
    for name, values in scores.items():
        print(name, values)


# Documents for the harness' own tasks: the members that their templates read.
def choices(rng, count, labels):
    return {"text": [words(rng, rng.randint(1, 4)) for _ in range(count)], "label": list(labels[:count])}


REAL = {
    "arc/arc_easy.yaml": lambda r: {"question": words(r, 8), "choices": choices(r, 4, "ABCD"), "answerKey": r.choice("ABCD")},
    "arc/arc_challenge.yaml": lambda r: {"question": words(r, 9), "choices": choices(r, 4, "1234"), "answerKey": r.choice("1234")},
    "super_glue/boolq/default.yaml": lambda r: {"passage": words(r, 20), "question": words(r, 5), "label": r.randint(0, 1)},
    "openbookqa/openbookqa.yaml": lambda r: {"question_stem": words(r, 6), "choices": choices(r, 4, "ABCD"), "answerKey": r.choice("ABCD")},
    "piqa/piqa.yaml": lambda r: {"goal": words(r, 6), "sol1": words(r, 5), "sol2": words(r, 4), "label": r.randint(0, 1)},
    "sciq/sciq.yaml": lambda r: {"support": " " + words(r, 9), "question": words(r, 6), "distractor1": words(r, 1), "distractor2": words(r, 2),
                                 "distractor3": words(r, 1), "correct_answer": words(r, 2)},
    "lambada/lambada_openai.yaml": lambda r: {"text": words(r, 15)},
    "gsm8k/gsm8k.yaml": lambda r: {"question": words(r, 10), "answer": words(r, 5) + "\n#### " + str(r.randint(1, 99))},
    "triviaqa/default.yaml": lambda r: {"question": words(r, 6), "answer": {"aliases": [words(r, 1), words(r, 2)]}},
    "nq_open/nq_open.yaml": lambda r: {"question": words(r, 6), "answer": [words(r, 1), words(r, 1)]},
    "commonsense_qa/default.yaml": lambda r: {"question": words(r, 7), "choices": choices(r, 5, "ABCDE"), "answerKey": r.choice("ABCDE")},
    "super_glue/rte/default.yaml": lambda r: {"premise": words(r, 9), "hypothesis": words(r, 5), "label": r.randint(0, 1)},
    "glue/qnli/default.yaml": lambda r: {"question": words(r, 5), "sentence": words(r, 9), "label": r.randint(0, 1)},
    "glue/sst2/default.yaml": lambda r: {"sentence": words(r, 9), "label": r.randint(0, 1)},
    "truthfulqa/truthfulqa_mc1.yaml": lambda r: {"question": words(r, 6), "mc1_targets": {"choices": [words(r, 4) for _ in range(4)], "labels": [1, 0, 0, 0]}},
    "mmlu/default/mmlu_anatomy.yaml": lambda r: {"question": " " + words(r, 7), "choices": [words(r, 2) for _ in range(4)], "answer": r.randint(0, 3)},
    "swag/swag.yaml": lambda r: {"startphrase": words(r, 6), **{f"ending{i}": words(r, 5) for i in range(4)}, "label": r.randint(0, 3)},
    "anli/anli_r1.yaml": lambda r: {"premise": words(r, 12), "hypothesis": words(r, 6), "label": r.randint(0, 2)},
    "asdiv/default.yaml": lambda r: {"body": words(r, 12), "question": words(r, 6), "answer": words(r, 1) + " (x)"},
}


def check(program, wanted):
    """The harness' own YAML files, with their data set named in files of documents that are made up."""
    import yaml
    base = pathlib.Path(lm_eval.__file__).parent / "tasks"
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        make_model(folder / "model")
        for file, document in REAL.items():
            rng = random.Random(7)
            text = (base / file).read_text()
            config = yaml.safe_load(text)
            included = base / file
            while "include" in config:
                included = included.parent / config.pop("include")
                config = {**yaml.safe_load(included.read_text()), **config}
            name = config["task"]
            if wanted and name not in wanted:
                continue
            splits = {config.get(key) for key in ("training_split", "validation_split", "test_split", "fewshot_split")} - {None}
            (folder / "data" / name).mkdir(parents=True)
            paths = {}
            for split in sorted(splits):
                paths[split] = folder / "data" / name / f"{split}.jsonl"
                paths[split].write_text("".join(json.dumps(document(rng)) + "\n" for _ in range(12)))
            (folder / "chat.jinja").write_text(TEMPLATE)
            own = config.get("num_fewshot") or 0
            for shots, form in sorted({(own, "plain"), (3, "plain"), (own, "chat"), (3, "system"), (3, "chat"), (3, "turn")}):
                # The harness needs the files named; the program finds them by the task's name.
                given = {**config, "dataset_path": "json", "num_fewshot": shots,
                         "dataset_kwargs": {"data_files": {split: str(path) for split, path in paths.items()}}}
                given.pop("dataset_name", None)
                tasks = fresh(folder / "tasks")
                (tasks / "one.yaml").write_text(yaml.safe_dump(given, allow_unicode=True))
                expected = scores_of(folder / "model", TaskManager(include_path=str(tasks), include_defaults=False), [name], form)[name]
                run = subprocess.run([program, "evaluate", folder / "model", "--tasks", base / file, "--task-data", folder / "data",
                                      "--shots", str(shots), "--chat-template", folder / "chat.jinja", "--json", *FORMS[form][1]], capture_output=True, text=True)
                got = json.loads(run.stdout)["results"][0] if run.returncode == 0 else {}
                differ = [key for key, value in expected.items() if abs(got.get(key, 1e9) - value) > 1e-4 * max(1, abs(value))]
                wrong += bool(differ)
                print(f"{name:20} shots {shots} {form}: {'equal' if not differ else 'DIFFERS'} {expected}", flush=True)
                if differ:
                    print("   ", got or run.stderr)
    sys.exit(1 if wrong else 0)


if sys.argv[1:2] == ["check"]:
    check(sys.argv[2], sys.argv[3:])
else:
    own_scores()

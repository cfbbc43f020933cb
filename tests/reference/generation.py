"""What transformers generates: logits and greedy texts of the small models of data/decoders, data/gpt2 and data/mixtral, and the
probabilities that its settings of sampling give: data/generation/."""

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                                                    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

from common import DATA, VERSIONS, fresh, write_json

OUT = DATA / "generation"
FOLDERS = ["decoders/llama3", "decoders/mistral", "decoders/qwen2", "decoders/qwen3", "decoders/gemma2", "decoders/gemma3",
           "decoders/phi3", "gpt2/tied", "gpt2/untied", "mixtral/four", "decoders/qwen3_moe"]
TOKENS = 24
PENALTY = 1.5  # small models would repeat one token
LENGTHS = [1, 3, 9, 14]  # shorter and longer than the windows, which have 5 to 7 tokens


def continued(model, prompt):
    """The likeliest tokens after the penalty by whole passes, and the smallest distance of the two likeliest."""
    ids, margin = prompt, 1e9
    for _ in range(min(TOKENS, model.config.max_position_embeddings - prompt.shape[1])):
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        best = RepetitionPenaltyLogitsProcessor(PENALTY)(ids, logits)[0].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        ids = torch.cat([ids, best.indices[:1, None]], 1)
    return ids, margin


def greedy(folder):
    """Texts without a token that ends them and without near ties; transformers' cache gives them too."""
    model = AutoModelForCausalLM.from_pretrained(DATA / folder, dtype=torch.float32, attn_implementation="eager").eval()
    stop = model.generation_config.eos_token_id
    stop = {stop} if isinstance(stop, int) else set(stop or [])
    generator = torch.Generator().manual_seed(len(folder))
    texts = []
    for length in LENGTHS:
        while True:
            prompt = torch.randint(3, model.config.vocab_size, (1, length), generator=generator)
            ids, margin = continued(model, prompt)
            tokens = ids[0, length:].tolist()
            if margin > 1e-4 and not stop & set(tokens):
                break
        cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=len(tokens),
                                use_cache=True, repetition_penalty=PENALTY, eos_token_id=None, pad_token_id=0)
        assert cached[0].tolist() == ids[0].tolist(), (folder, length)
        texts.append({"prompt": prompt[0].tolist(), "tokens": tokens, "smallest_margin": margin})
    print(folder, min(t["smallest_margin"] for t in texts), [len(set(t["tokens"])) for t in texts])
    return {"folder": folder, "texts": texts}


def logits(folder):
    """The logits of each token of a text that is longer than the windows."""
    model = AutoModelForCausalLM.from_pretrained(DATA / folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(3, model.config.vocab_size, (1, 12), generator=torch.Generator().manual_seed(len(folder)))
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False).logits[0]
    return {"folder": folder, "tokens": ids[0].tolist(), "logits": [[round(value, 7) for value in row] for row in found.tolist()]}


def sampling():
    generator = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(40, generator=generator, dtype=torch.float64)
    before = [3, 7, 7, 21, 39]
    cases = []
    for temperature, top_k, top_p, penalty, min_p in [
            (1, 0, 1, 1, 0), (0.7, 0, 1, 1, 0), (1.3, 5, 1, 1, 0), (1, 0, 0.8, 1, 0), (0.9, 12, 0.5, 1, 0), (1, 0, 0.05, 1, 0),
            (1, 0, 1, 1.4, 0), (0.8, 10, 0.9, 1.2, 0), (1, 0, 0.99, 0.7, 0), (1.3, 0, 1, 1, 0.1), (0.9, 12, 0.9, 1.2, 0.3),
            (1, 0, 1, 1, 1)]:
        scores = logits[None].clone()
        ids = torch.tensor([before])
        if penalty != 1:
            scores = RepetitionPenaltyLogitsProcessor(float(penalty))(ids, scores)
        scores = TemperatureLogitsWarper(float(temperature))(ids, scores)
        if top_k:
            scores = TopKLogitsWarper(top_k)(ids, scores)
        if top_p < 1:
            scores = TopPLogitsWarper(top_p)(ids, scores)
        if min_p > 0:
            scores = MinPLogitsWarper(min_p)(ids, scores)
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": penalty,
                      "probabilities": scores.softmax(-1)[0].tolist()})
    return {"logits": logits.tolist(), "before": before, "cases": cases, "made_with": VERSIONS}


SHOTS_MODEL = "decoders/llama3"
QUESTIONS = [
    {"question": "Which is a colour?", "choices": ["red", "seven", "to run"], "answer": 0},
    {"question": "What is 2 + 2?", "choices": ["3", "4"], "answer": 1},
    {"question": "A cat is", "choices": ["an animal", "a tool", "a day", "a town"], "answer": 0},
    {"question": "The last month?", "choices": ["May", "December"], "answer": 1},
    {"question": "Is ice cold?", "choices": ["yes", "no"], "answer": 0},
]
EXAMPLES = [
    {"question": "Is fire cold?", "choices": ["yes", "no"], "answer": 1},
    {"question": "The first letter?", "choices": ["b", "a", "z"], "answer": 1},
    {"question": "What comes after 3?", "choices": ["4", "2"], "answer": 0},
]


def shots():
    """Few-shot prompts as lm-evaluation-harness joins them (doc_to_text, target_delimiter " ", fewshot_delimiter "\n\n";
    sampler first_n), and log-likelihoods of " " and each choice after them, with each printable character as a token."""
    from tokenizers import Tokenizer, models
    characters = ["\n"] + [chr(c) for c in range(32, 127)]
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(characters)}, []))
    tokenizer.save(str(OUT / "characters.json"))
    model = AutoModelForCausalLM.from_pretrained(DATA / SHOTS_MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    text = "Question: {}\nAnswer:".format
    target = lambda question: " " + question["choices"][question["answer"]]
    cases = []
    for count, own in [(0, False), (2, False), (3, False), (2, True)]:
        answers = []
        for i, question in enumerate(QUESTIONS):
            pool = QUESTIONS[:i] + QUESTIONS[i + 1:] if own else EXAMPLES
            prompt = "".join(text(e["question"]) + target(e) + "\n\n" for e in pool[:count]) + text(question["question"])
            start = len(tokenizer.encode(prompt).ids)
            likelihoods = []
            for choice in question["choices"]:
                ids = torch.tensor([tokenizer.encode(prompt + " " + choice).ids])
                with torch.no_grad():
                    logs = model(input_ids=ids).logits[0].double().log_softmax(-1)
                likelihoods.append(sum(logs[t - 1, ids[0, t]].item() for t in range(start, ids.shape[1])))
            answers.append({"prompt": prompt, "likelihoods": likelihoods})
        right = [max(range(len(a["likelihoods"])), key=a["likelihoods"].__getitem__) == q["answer"]
                 for a, q in zip(answers, QUESTIONS)]
        cases.append({"shots": count, "own": own, "accuracy": sum(right) / len(right), "answers": answers})
    return {"folder": SHOTS_MODEL, "questions": QUESTIONS, "examples": EXAMPLES, "cases": cases, "made_with": VERSIONS}


def main():
    fresh(OUT)
    write_json(OUT / "greedy.json", [greedy(folder) for folder in FOLDERS])
    write_json(OUT / "logits.json", [logits(folder) for folder in FOLDERS])
    write_json(OUT / "sampling.json", sampling())
    write_json(OUT / "shots.json", shots())


main()

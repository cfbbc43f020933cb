"""Talks to `tessera serve` with OpenAI's client: a whole answer, a streamed one, a conversation, errors, the models.

    check_client.py ADDRESS [TOKEN]      # http://127.0.0.1:8080/v1
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
model = client.models.list().data[0].id
question = [{"role": "user", "content": "What is the capital of France?"}]
settings = {"model": model, "temperature": 0, "max_tokens": 24}

whole = client.chat.completions.create(messages=question, **settings)
answer = whole.choices[0].message.content
assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant"
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens <= whole.usage.prompt_tokens + 24

parts = list(client.chat.completions.create(messages=question, stream=True, stream_options={"include_usage": True}, **settings))
streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
assert streamed == answer, (streamed, answer)
assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens

more = question + [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of Italy?"}]
assert client.chat.completions.create(messages=more, **settings).choices[0].message.content
stopped = client.chat.completions.create(messages=question, stop=[answer.split()[1]], **settings)
assert answer.split()[1] not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop"

for wrong in ({"n": 2}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"logprobs": True}):
    try:
        client.chat.completions.create(messages=question, **settings, **wrong)
        raise SystemExit(f"{wrong} was accepted")
    except openai.BadRequestError as error:
        assert next(iter(wrong)) in str(error), error
if len(sys.argv) > 2:
    try:
        openai.OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list()
        raise SystemExit("a wrong token was accepted")
    except openai.AuthenticationError:
        pass
print(f"OpenAI's client {openai.__version__}: {answer!r}, {len(parts)} parts")

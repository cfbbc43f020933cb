"""Talks to `tessera serve` with OpenAI's client: a whole answer, a streamed one, a conversation, a schema,
tools, errors, the models.

    check_client.py ADDRESS [TOKEN]      # http://127.0.0.1:8080/v1; a server with a template that writes tools
"""

import json
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
stop = answer[1:3]
stopped = client.chat.completions.create(messages=question, stop=[stop], **settings)
assert stop not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop"

person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
longer = {"model": model, "temperature": 1, "max_tokens": 400}
for seed in range(5):
    answer_format = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": person}}
    described = client.chat.completions.create(messages=question, response_format=answer_format, seed=seed, **longer).choices[0]
    value = json.loads(described.message.content)
    assert described.finish_reason == "stop" and list(value) == ["name", "age"] and 0 <= value["age"] <= 150, value

tools = [{"type": "function", "function": {"name": "describe", "description": "A person", "parameters": person}}]
called = client.chat.completions.create(messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=1, **longer).choices[0]
call = called.message.tool_calls[0]
assert called.finish_reason == "tool_calls" and called.message.content is None and call.function.name == "describe"
assert 0 <= json.loads(call.function.arguments)["age"] <= 150
deltas = [part.choices[0].delta for part in client.chat.completions.create(
    messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=1, stream=True, **longer)]
streamed_calls = [one for delta in deltas for one in delta.tool_calls or []]
assert [(one.index, one.function.name, one.function.arguments) for one in streamed_calls] == [(0, "describe", call.function.arguments)]
results = question + [called.message, {"role": "tool", "tool_call_id": call.id, "content": "right"}]
assert client.chat.completions.create(messages=results, tools=tools, tool_choice="none", **settings).choices[0].message.content is not None

for wrong in ({"n": 0}, {"tools": [{"type": "function"}]}, {"response_format": {"type": "xml"}}):
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

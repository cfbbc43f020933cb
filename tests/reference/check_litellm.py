"""Talks to `tessera serve` by litellm: whole answers and streams, tools, embeddings, errors, many at the same time; and by
its proxy, where that is installed (litellm[proxy]), with OpenAI's client.

    check_litellm.py ADDRESS [TOKEN]      # http://127.0.0.1:8080/v1; a server with a template that writes tools
"""

import asyncio
import importlib.util
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
os.environ["NO_PROXY"] = "127.0.0.1"
import litellm
import openai

litellm.telemetry = False
litellm.num_retries = 0
address = sys.argv[1]
token = sys.argv[2] if len(sys.argv) > 2 else "none"
name = openai.OpenAI(base_url=address, api_key=token, max_retries=0).models.list().data[0].id
question = [{"role": "user", "content": "Say two"}]
person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "describe", "description": "A person", "parameters": person}}]


def check_chat(complete, settings):
    """What litellm and its proxy both give: `complete` has the arguments of a chat completion."""
    whole = complete(messages=question, **settings)
    answer = whole.choices[0].message.content
    assert answer == "two 😀2" and whole.choices[0].finish_reason == "stop", whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0, whole.usage
    parts = list(complete(messages=question, stream=True, stream_options={"include_usage": True}, **settings))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == answer, parts
    ends = [part.choices[0].finish_reason for part in parts if part.choices and part.choices[0].finish_reason]
    assert ends == ["stop"], ends
    usages = [part.usage for part in parts if getattr(part, "usage", None)]
    assert usages and usages[-1].completion_tokens == whole.usage.completion_tokens, usages
    likely = complete(messages=question, logprobs=True, top_logprobs=3, **settings).choices[0].logprobs
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 3 for one in likely.content), likely

    asked = {**settings, "max_tokens": 400, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": 1}
    called = complete(messages=question, **asked).choices[0]
    call = called.message.tool_calls[0]
    assert called.finish_reason == "tool_calls" and call.function.name == "describe", called
    assert set(json.loads(call.function.arguments)) == {"name", "age"}, call
    streamed = [one for part in complete(messages=question, stream=True, **asked) if part.choices
                for one in part.choices[0].delta.tool_calls or []]
    assert "".join(one.function.arguments or "" for one in streamed if one.index == 0) == call.function.arguments, streamed
    results = question + [called.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "right"}]
    assert complete(messages=results, **{**asked, "tool_choice": "none"}).choices[0].message.content is not None

    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": person}}
    described = complete(messages=question, response_format=schema, **{**settings, "max_tokens": 400}).choices[0].message.content
    assert list(json.loads(described)) == ["name", "age"], described
    return answer


def check_library():
    settings = {"model": "openai/" + name, "api_base": address, "api_key": token, "max_tokens": 24, "temperature": 0}
    answer = check_chat(litellm.completion, settings)
    parts = list(litellm.completion(messages=question, stream=True, **settings))
    assert litellm.stream_chunk_builder(parts, messages=question).choices[0].message.content == answer

    text = litellm.text_completion(prompt="Question: colour of grass\nAnswer:", **{**settings, "model": "text-completion-openai/" + name})
    assert text.choices[0].text.startswith(" green"), text

    of = {"model": "openai/" + name, "api_base": address, "api_key": token}
    vectors = litellm.embedding(input=["Say one", "Say two"], **of).data
    again = litellm.embedding(input=["Say two"], encoding_format="base64", **of).data
    shorter = litellm.embedding(input=["Say two"], dimensions=8, **{**of, "allowed_openai_params": ["dimensions"]}).data[0]["embedding"]
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]["embedding"]) - 1) < 1e-5
    assert len(shorter) == 8 and again

    for wrong, error in (({"top_p": 7}, litellm.BadRequestError), ({"messages": []}, litellm.BadRequestError)):
        try:
            litellm.completion(**{"messages": question, **settings, **wrong})
            raise SystemExit(f"{wrong} was accepted")
        except error:
            pass
    if token != "none":
        try:
            litellm.completion(messages=question, **{**settings, "api_key": "wrong"})
            raise SystemExit("a wrong token was accepted")
        except litellm.AuthenticationError:
            pass

    async def many():
        all_ = [litellm.acompletion(messages=question, **settings) for _ in range(50)]
        return [one.choices[0].message.content for one in await asyncio.gather(*all_)]

    assert set(asyncio.run(many())) == {answer}
    return len(parts)


def check_proxy():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = "sk-" + secrets.token_hex(24)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.yaml"
        config.write_text(json.dumps({
            "model_list": [{"model_name": "small", "litellm_params": {"model": "openai/" + name, "api_base": address, "api_key": token}}],
            "general_settings": {"master_key": key}, "litellm_settings": {"telemetry": False}}))
        environment = {**os.environ, "HOME": folder}
        program = pathlib.Path(sys.executable).parent / "litellm"
        log = open(pathlib.Path(folder) / "log", "w")
        proxy = subprocess.Popen([program, "--config", config, "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"],
                                 stdout=log, stderr=log, env=environment)
        try:
            for _ in range(240):
                if proxy.poll() is not None:
                    raise SystemExit("the proxy has ended: " + pathlib.Path(log.name).read_text()[-2000:])
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).read()
                    break
                except OSError:
                    time.sleep(0.5)
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=60)
            check_chat(client.chat.completions.create, {"model": "small", "max_tokens": 24, "temperature": 0})
            vector = client.embeddings.create(model="small", input="Say two").data[0].embedding
            assert abs(sum(x * x for x in vector) - 1) < 1e-5
        finally:
            proxy.terminate()
            proxy.wait()


parts = check_library()
proxied = all(importlib.util.find_spec(package) for package in ("fastapi", "uvicorn", "backoff"))
if proxied:
    check_proxy()
print(f"litellm: a stream of {parts} parts", "and its proxy" if proxied else "(litellm[proxy] is not installed)")

"""How chat templates of real models write calls of tools, rendered by transformers.

    tool_calls.py FOLDER   with *.jinja, such as models/templates of llama.cpp

Writes data/chat/tool_calls.json: of each template that writes calls, the answer with one call and with two.
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

OUT = pathlib.Path(__file__).resolve().parent / "data" / "chat" / "tool_calls.json"
ARGUMENTS = [{"place": "Rome \"{[", "days": [1, {"a": None}]}, {}]
TOOLS = [{"type": "function", "function": {"name": name, "description": "of a place", "parameters": {
    "type": "object", "properties": {
        "place": {"type": "string", "description": "its name"}, "days": {"type": "array"}}}}} for name in ("weather", "time")]
QUESTION = "Which weather does Rome have?"


def rendered(template, count, as_text):
    calls = [{"id": f"call0000{i}", "type": "function",
              "function": {"name": TOOLS[i]["function"]["name"], "arguments": json.dumps(a) if as_text else a}}
             for i, a in enumerate(ARGUMENTS[:count])]
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "", "tool_calls": calls}]
    return _compile_jinja_template(template).render(
        messages=messages, tools=TOOLS, bos_token="<s>", eos_token="</s>", add_generation_prompt=False)


def main(folder):
    entries = []
    for file in sorted(pathlib.Path(folder).glob("*.jinja")):
        for count in (1, 2):
            for as_text in (False, True):
                try:
                    text = rendered(file.read_text(), count, as_text)
                except Exception:  # the template takes no such conversation
                    continue
                answer = text[text.rfind(QUESTION) + len(QUESTION):]
                names = [tool["function"]["name"] for tool in TOOLS[:count]]
                # Some write one call only. Gemma 4 writes values in a notation of its own.
                days = (json.dumps(ARGUMENTS[0]["days"]), "[1,{a:None}]")
                if QUESTION not in text or not all(part in answer for part in (*names, "place")) or not any(
                        part in answer for part in days):
                    continue
                entries.append({"template": file.stem, "text": answer, "calls": [
                    {"name": TOOLS[i]["function"]["name"], "arguments": a} for i, a in enumerate(ARGUMENTS[:count])]})
                break
    OUT.write_text("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries) + "\n]\n")
    print(len(entries), "answers of", len({e["template"] for e in entries}), "templates")


main(sys.argv[1])

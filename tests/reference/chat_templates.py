"""What transformers makes of conversations with chat templates: texts, and the parts that {% generation %} marks.

Writes data/chat/expected.json for the templates in data/chat/ and for single expressions, and data/chat/more.json for the
pieces of data/chat/pieces.json, which may be refused but never differ. With a folder of *.jinja files,
it writes expected.json there instead, for the long test (TESSERA_CHAT_TEMPLATES): the templates of real models are not a
part of this repository.
"""

import json
import pathlib
import sys

from transformers.utils import chat_template_utils

OUT = pathlib.Path(__file__).resolve().parent / "data" / "chat"
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 Jan 2026"}

TOOL = {"type": "function", "function": {
    "name": "weather", "description": "The weather at a place: \"now\" & <later>",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1.5}},
                   "required": ["place"]}}}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "question": {"messages": [message("user", "What is 1 + 1?")]},
    "one": {"messages": [message("user", "  What is 1 + 1? \n"), message("assistant", " It is 2.\n")]},
    "system": {"messages": [message("system", "Answer \"briefly\".\n"), message("user", "Was heißt „Haus“?"),
                            message("assistant", "A house 🏠.")]},
    "several": {"messages": [message("user", "a"), message("assistant", "b"), message("user", "c\n\nd"),
                             message("assistant", "<think>\nhm\n</think>\n\ne"), message("user", "f"), message("assistant", "g")]},
    "parts": {"messages": [message("user", [{"type": "text", "text": "one"}, {"type": "text", "text": " two "}]),
                           message("assistant", "three")]},
    "tools": {"tools": [TOOL, TOOL], "messages": [
        message("system", "Use tools."), message("user", "Weather in Köln?"),
        message("assistant", "", tool_calls=[{"type": "function", "id": "abcdefghi", "function": {
            "name": "weather", "arguments": {"place": "Köln", "days": 2, "exact": True, "more": None, "list": [1, 2.5]}}}]),
        message("tool", "{\"sky\": \"grey\"}", name="weather", tool_call_id="abcdefghi"), message("assistant", "Grey.")]},
    "two users": {"messages": [message("user", "a"), message("user", "b"), message("assistant", "c")]},
    "empty": {"messages": []},
}

# Each is a template of its own, with x, s, m, l and n as variables.
EXPRESSIONS = [
    "1 + 2 * 3 - -4", "7 // 2", "-7 // 2", "-7 % 3", "7 % -3", "7 / 2", "2 ** 10", "2 ** -1", "1.5 * 2", "1e3 if false else 0.1",
    "'a' ~ 1 ~ none ~ true ~ 2.0", "'a' + 'b'", "'ab' * 3", "'a' + 1", "[1] + [2]", "1 == 1.0", "true == 1", "'1' == 1",
    "1 < 2", "'a' < 'b'", "1 < 'a'", "not 1 == 2", "not x is defined", "1 in [1, 2]", "'a' in 'cat'", "'z' not in s", "'k' in m",
    "3 not in l", "true and 0 or 'q'", "none or 5", "l[0]", "l[-1]", "l[9]", "l[9] is defined", "l[1:]", "l[:-1]", "l[::-1]",
    "l[::2]", "s[1:3]", "s[0]", "s[-1]", "s[::-1]", "m.k", "m['k']", "m.missing", "m.missing is none", "m.missing.deeper",
    "missing.member", "m.items() | map('first') | list", "m | items | map('last') | list", "m.keys() | list", "m.get('k')", "m.get('z', 7)", "m.values() | list",
    "s | upper", "s | lower", "s | title", "s | capitalize", "s | length", "l | length", "m | length", "n | length",
    "'  a b '.strip() ~ '|'", "'xxaxx'.strip('x')", "'  a '.lstrip() ~ '|'", "'  a '.rstrip() ~ '|'", "'\u00a0a\u2003' | trim ~ '|'",
    "'a,b,,c'.split(',')", "'a b  c'.split()", "'a,b,c'.split(',', 1)", "'a,b,c'.rsplit(',', 1)", "s.startswith('H')",
    "s.endswith(('x', '!'))", "'a-b'.replace('-', '+')", "'aaa'.replace('a', 'b', 2)", "', '.join(['a', 'b'])", "l | join('-')",
    "[{'n': 1}, {'n': 2}] | join(',', attribute='n')", "l | first", "l | last", "l | reverse | list", "l | tojson", "m | tojson",
    "m | tojson(indent=2)", "n | tojson", "s | tojson", "'é\\n\\t\"\\\\/' | tojson", "1.0 | tojson", "true | tojson", "missing | tojson",
    "missing", "missing | default('d')", "'' | default('d')", "'' | default('d', true)", "none | default('d')", "'7' | int", "'x' | int",
    "3.9 | int", "'2.5' | float", "-3 | abs", "l | map('string') | join('')", "[{'a': 1}] | map(attribute='a') | list",
    "l | select('odd') | list", "l | reject('odd') | list", "[{'r': 'u'}, {'r': 'a'}] | selectattr('r', 'equalto', 'a') | list",
    "[{'r': 'u'}, {'a': 1}] | selectattr('r', 'defined') | list", "[{'r': 'u'}, {'r': 'a'}] | rejectattr('r', 'equalto', 'a') | list",
    "1 is odd", "4 is even", "9 is divisibleby 3", "9 is divisibleby(2)", "s is string", "1 is string", "1 is number",
    "true is number", "1 is integer", "true is integer", "1.0 is float", "m is mapping", "l is sequence", "s is iterable",
    "1 is iterable", "none is none", "x is undefined", "true is true", "1 is true", "s is not none", "1 is eq 1", "1 is in [1]",
    "'a' if x is defined else 'b'", "'a' if false", "1 if 1 else 2 if 0 else 3", "{'a': 1, 'b': [none, 'x']}", "['it\\'s', \"q\"]",
    "(1, 2)[1]", "() | length", "'\\x41\\u00e9\\n'", "'a' 'b'", "1 < 2 and 2 < 3", "range(3) | list", "range(1, 7, 2) | list", "l is defined and l",
    "s | replace('l', 'L')", "'a\\nb\\n\\nc' | indent(2)", "'a\\nb' | indent(2, true)", "l.count(2)", "s.count('l')", "s.find('l')",
    "'12'.isdigit()", "'a\\nb'.splitlines()", "(l | length) - 1", "l | length - 1", "'%s' | string", "dict(a=1)", "-2 ** 2",
    "namespace(a=1).a", "raise_exception('no')", "1 // 0", "l[0] + l[1] ~ 'x'", "not not l", "s.split('l')[-1]", "m.k | upper",
]

PIECES = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}x{% endif %}  \n y", "a  {%- if true -%}  b  {%- endif -%}  c",
    "a {{- 1 -}} b", "a\n  {{ 1 }}\n  b", "a\n  {# note #}\n  b", "{#- x -#} a", "a  {%+ if true %}b{% endif +%}\nc",
    "{% for i in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ i }},{% else %}none{% endfor %}",
    "{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index0 }}/{{ loop.length }} {% endfor %}",
    "{% for a, b in m.items() %}{{ a }}={{ b }};{% endfor %}", "{% for k in m %}{{ k }}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
    "{% set y = 1 %}{% for i in l %}{% set y = y + i %}{{ y }}{% endfor %}{{ y }}",
    "{% set ns = namespace(y=1) %}{% for i in l %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }}",
    "{% if false %}a{% elif 1 %}b{% else %}c{% endif %}", "{% set t %}  x{{ 1 }}\n{% endset %}[{{ t }}]",
    "{% macro f(a, b='q') %}<{{ a }}{{ b }}{{ s }}>{% endmacro %}{{ f(1) }}{{ f(2, b=3) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% for i in l %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}{% endif %}{% endfor %}!",
    "{% set a, b = [1, 2] %}{{ b }}{{ a }}", "x{% generation %}y{{ s }}{% endgeneration %}z{% generation %}{% endgeneration %}",
    "{% for i in l %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }} {% endfor %}", "{{ 'a' }}\n{{ 'b' }}\n\n", "{% if x %}{% endif %}\n",
    "{{ {'a': {'b': 1}}.a.b }}", "{% set x = 5 %}{{ x }}", "{% for x in l %}{% for y in l %}{{ x * y }} {% endfor %}\n{% endfor %}", "a\r\nb\r\n",
]


def outcome(template, variables):
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        rendered, indices = chat_template_utils._render_with_assistant_indices(
            compiled, variables.get("messages", []), variables.get("tools"), None, variables.get("add_generation_prompt", False),
            **{k: v for k, v in variables.items() if k not in ("messages", "tools", "add_generation_prompt")})
        return {"text": rendered, "generated": [rendered[begin:end] for begin, end in indices]}
    except Exception:  # whatever it is, ours must refuse it too
        return {"error": True}


def conversations(folder):
    results = []
    for file in sorted(folder.glob("*.jinja")):
        for name, conversation in CONVERSATIONS.items():
            for prompt in (False, True):
                results.append({"template": file.name, "name": name, "prompt": prompt, "conversation": conversation,
                                **outcome(file.read_text(), {**VARIABLES, **conversation, "add_generation_prompt": prompt})})
    return results


MORE_VALUES = {"s": "Hello!", "m": {"k": "v", "j": [1, {"q": None}], "items": ["x"], "type": "array"}, "l": [3, 1, 2], "e": [],
               "d": {"b": 2, "a": 1}, "n": "it's née", "u": "a\u00a0b\u200bc", "big": 2**63, "huge": 2**70, "neg": -2**63, "f": 1e16,
               "g": 1.0e-5, "h": 123456789012345680.0, "z": 0, "none_": None}


def more_pieces():
    """Its values are a text: a program's JSON may not have integers of any size."""
    results = [{"piece": piece, **outcome(piece, MORE_VALUES)} for piece in json.loads((OUT / "pieces.json").read_text())]
    for one in results:
        if " at 0x" in one.get("text", ""):  # an address, of an object that has no text
            del one["text"], one["generated"]
            one["error"] = True
    return {"values": json.dumps(MORE_VALUES), "pieces": results}


def main():
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
        (folder / "expected.json").write_text(json.dumps({"variables": VARIABLES, "conversations": conversations(folder)}))
        return
    values = {"s": "Hello!", "m": {"k": "v", "j": [1, {"q": None}]}, "l": [1, 2, 3], "n": "née 🏠", "messages": []}
    pieces = [{"piece": piece, **outcome(piece, values)} for piece in ["{{ " + e + " }}" for e in EXPRESSIONS] + PIECES]
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "more.json").write_text(json.dumps(more_pieces(), indent=0, ensure_ascii=False) + "\n")
    (OUT / "expected.json").write_text(json.dumps(
        {"variables": VARIABLES, "values": values, "pieces": pieces, "conversations": conversations(OUT)}, indent=1, ensure_ascii=False) + "\n")


main()

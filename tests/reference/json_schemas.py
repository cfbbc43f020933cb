"""JSON schemas with texts that meet them and texts that do not, by jsonschema's verdict.

    json_schemas.py
    json_schemas.py check FILE   every line is [number of the schema, text]: what test_grammar has drawn (TESSERA_DRAWN_TEXTS)

Writes data/grammar/schemas.json. Needs jsonschema[format].
"""

import json
import pathlib
import random
import sys

from jsonschema import Draft202012Validator

OUT = pathlib.Path(__file__).resolve().parent / "data" / "grammar" / "schemas.json"
NAMES = "id name age tags city zip a b long_name x-y naïve kind value items".split()
FORMATS = {
    "date": ["2024-02-28", "1999-12-31"], "time": ["10:20:30Z", "23:59:59.125+02:00"],
    "date-time": ["2024-02-28T10:20:30Z"], "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["192.168.0.1", "0.0.0.0"], "ipv6": ["1:2:3:4:5:6:7:8", "::1"], "email": ["a.b@example.org"],
    "hostname": ["example.org"]}
PATTERNS = {
    "^[a-z]{2,4}$": ["ab", "wxyz"], "^\\d{3}-\\d{4}$": ["555-0199"], "^(red|green|blue)s?$": ["red", "blues"],
    "^[^\"\\\\]*$": ["", "plain"], "a+b": ["xaaby", "ab"], "^\\w+\\s\\w+$": ["two words"], "^$|^x": ["", "xyz"],
    "^(?:[A-Z][a-z]*,? ?)+$": ["Ab, Cd"], "^.{3}$": ["äöü"], "^\\$\\d+\\.\\d{2}$": ["$12.50"]}


class Draw:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.defs = {}

    def schema(self, depth):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
        if depth > 0:
            kinds += ["object"] * 5 + ["array"] * 3 + ["anyOf", "oneOf", "types", "ref", "tuple", "allOf"]
        return getattr(self, "draw_" + self.rng.choice(kinds).replace("$", ""))(depth)

    def draw_string(self, _):
        low = self.rng.choice([None, 0, 1, 3])
        high = self.rng.choice([None, 3, 5, 12])
        return {"type": "string", **({} if low is None else {"minLength": low}), **({} if high is None else {"maxLength": high})}

    def bounds(self, least, most):
        low = self.rng.randint(least, most)
        high = low + self.rng.choice([0, 1, 2, 9, 10, 99, 12345])
        all_of = {"minimum": low, "maximum": high, "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
        names = self.rng.choice([[], ["minimum"], ["maximum"], ["minimum", "maximum"], ["exclusiveMinimum", "maximum"],
                                 ["minimum", "exclusiveMaximum"], ["exclusiveMinimum", "exclusiveMaximum"]])
        return {name: all_of[name] for name in names}

    def draw_integer(self, _):
        return {"type": "integer", **self.bounds(-1200, 1200)}

    def draw_number(self, _):
        return {"type": "number", **self.bounds(-30, 30)}

    def draw_boolean(self, _):
        return {"type": "boolean"}

    def draw_null(self, _):
        return {"type": "null"}

    def draw_enum(self, _):
        values = ["red", "gr\"een", "blue\n", 1, -2.5, True, None, [1, 2], {"a": "b"}, "é"]
        return {"enum": self.rng.sample(values, self.rng.randint(1, 4))}

    def draw_const(self, _):
        return {"const": self.rng.choice(["x", 7, {"k": [None]}, ""])}

    def draw_pattern(self, _):
        return {"type": "string", "pattern": self.rng.choice(list(PATTERNS))}

    def draw_format(self, _):
        return {"type": "string", "format": self.rng.choice(list(FORMATS))}

    def draw_object(self, depth):
        names = self.rng.sample(NAMES, self.rng.randint(0, 4))
        result = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        result["required"] = [name for name in names if self.rng.random() < 0.6]
        other = self.rng.random()
        if other < 0.4:
            result["additionalProperties"] = False
        elif other < 0.55:
            result["additionalProperties"] = self.schema(0)
        return result

    def draw_array(self, depth):
        low = self.rng.choice([None, 0, 1, 2])
        high = self.rng.choice([None, 2, 3])
        return {"type": "array", "items": self.schema(depth - 1), **({} if low is None else {"minItems": low}),
                **({} if high is None else {"maxItems": high})}

    def draw_tuple(self, depth):
        first = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]
        return {"type": "array", "prefixItems": first, "items": self.rng.choice([False, {"type": "integer"}]),
                "minItems": self.rng.choice([0, len(first)])}

    def draw_anyOf(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]}

    def draw_oneOf(self, depth):
        branches = []
        for kind in self.rng.sample(["cat", "dog", "fish"], 2):
            branches.append({"type": "object", "properties": {"kind": {"const": kind}, "value": self.schema(depth - 1)},
                             "required": ["kind"], "additionalProperties": False})
        return {"oneOf": branches + [{"type": "null"}]}

    def draw_allOf(self, depth):
        own = {"type": "object", "properties": {"own": self.schema(depth - 1)}, "required": ["own"]}
        return {"allOf": [{"properties": {"other": self.schema(depth - 1)}}, own]}

    def draw_types(self, _):
        return {"type": self.rng.sample(["string", "integer", "null", "boolean"], 2), "maxLength": 4, "maximum": 9}

    def draw_ref(self, depth):
        name = self.rng.choice(["node", "word"])
        self.defs["word"] = {"type": "string", "maxLength": 6}
        if name == "node":
            self.defs["node"] = {"type": "object", "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "below": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                "required": ["value"], "additionalProperties": False}
        return {"$ref": "#/$defs/" + name}

    # A value that meets a schema, most of the time.

    def value(self, schema, depth=3):
        rng = self.rng
        if "$ref" in schema:
            return self.value(self.defs[schema["$ref"].split("/")[-1]], depth - 1)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "allOf" in schema:
            first, second = schema["allOf"]
            return self.value({"type": "object", "properties": {**first["properties"], **second["properties"]}, "required": ["own"]}, depth)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                branches = schema[name]
                return self.value(branches[-1] if depth <= 0 else rng.choice(branches), depth)
        kind = schema["type"] if isinstance(schema["type"], str) else rng.choice(schema["type"])
        if kind == "null":
            return None
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "string":
            if "pattern" in schema:
                return rng.choice(PATTERNS[schema["pattern"]])
            if "format" in schema:
                return rng.choice(FORMATS[schema["format"]])
            length = rng.randint(schema.get("minLength", 0), schema.get("maxLength", 8))
            return "".join(rng.choice("ab \"\\\n\té日😀") for _ in range(length))
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", -10**6))
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + 10**6))
            value = rng.choice([low, high, rng.randint(min(low, high), high)])
            return value + rng.choice([0, 0.5, 0.25]) if kind == "number" and abs(value) < 10**5 else value
        if kind == "array":
            first = schema.get("prefixItems", [])
            least = schema.get("minItems", 0)
            count = rng.randint(least, min(max(least, 3), schema.get("maxItems", 3)))
            if schema.get("items") is False:
                count = min(count, len(first))
            return [self.value(first[i] if i < len(first) else schema["items"], depth - 1) for i in range(count)]
        result = {}
        for name, one in schema["properties"].items():
            if name in schema.get("required", []) or (depth > 0 and rng.random() < 0.5):
                result[name] = self.value(one, depth - 1)
        other = schema.get("additionalProperties")
        if isinstance(other, dict) and rng.random() < 0.5:
            result["zz"] = self.value(other, depth - 1)
        return result


def written(value):
    return json.dumps(value, ensure_ascii=False)


def mutations(rng, text):
    yield text[:-1]
    yield text + rng.choice(["}", "0", " x", ",", "]"])
    for _ in range(12):
        at = rng.randrange(len(text))
        change = rng.choice(["", rng.choice("{}[],:\"0a-.e\\ \x01"), text[at] * 2])
        yield text[:at] + change + text[at + 1:]
    for before, after in (("true", "True"), ("null", "nul"), (": ", " "), (", ", ","), ("\"", "'")):
        if before in text:
            yield text.replace(before, after, 1)
    value = json.loads(text)
    yield written([value])
    yield written({"a": value})
    if isinstance(value, dict):
        for name in value:
            yield written({k: v for k, v in value.items() if k != name})
            yield written({**value, name: rng.choice([None, "text", 10**12, [], {}, -3.5])})
        yield written({**value, "unknown": 1})
    if isinstance(value, list):
        yield written(value + value + [None])
        yield written(value[:-1])


def meets(validator, text):
    try:
        return validator.is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def validator_of(schema):
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def make():
    entries = []
    seed = 0
    while len(entries) < 200:
        seed += 1
        draw = Draw(seed)
        schema = draw.schema(3)
        if draw.defs:
            schema["$defs"] = draw.defs
        validator = validator_of(schema)
        accepted = sorted({text for text in (written(draw.value(schema)) for _ in range(8)) if meets(validator, text)}, key=len)[:4]
        if not accepted or max(map(len, accepted)) > 1500:
            continue
        rejected = sorted({m for text in accepted for m in mutations(draw.rng, text) if not meets(validator, m)}, key=lambda m: (len(m), m))
        draw.rng.shuffle(rejected)
        entries.append({"schema": schema, "accepted": accepted, "rejected": rejected[:10]})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")
    print(len(entries), "schemas,", sum(len(e["accepted"]) for e in entries), "accepted,",
          sum(len(e["rejected"]) for e in entries), "rejected texts,", OUT.stat().st_size, "bytes")


def check(path):
    validators = [validator_of(e["schema"]) for e in json.loads(OUT.read_text())]
    count = wrong = 0
    for line in open(path, encoding="utf-8"):
        number, text = json.loads(line)
        count += 1
        if not meets(validators[number], text):
            wrong += 1
            print(number, text)
    print(count, "texts,", wrong, "wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    check(sys.argv[2]) if len(sys.argv) > 2 else make()

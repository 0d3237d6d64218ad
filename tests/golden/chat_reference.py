"""chat_reference.py - chat templates by jinja2 with the settings of transformers (utils/chat_template_utils.py of 4.57),
and random conversations. For make_chat.py and tests/cli/chat_test.py. SPDX-License-Identifier: Apache-2.0"""
import datetime
import json
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1764201600  # seconds since 1970, 2025-11-27


class Generation(jinja2.ext.Extension):
    """The tag of transformers: its block is output, and its range of characters is noted."""
    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        self.blocks, self.spans = [], []
        environment.generation = self

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def support(self, context, caller):
        text = caller()
        start = len("".join(self.blocks))
        self.spans.append((start, start + len(text)))
        return text


def make_environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


warnings.simplefilter("ignore")  # Python compiles what jinja2 makes of random expressions
ENVIRONMENT = make_environment()


class Theirs:
    """Output bytes and spans of bytes, or None and the error."""

    def __init__(self, text):
        try:
            self.template, self.error = ENVIRONMENT.from_string(text), None
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            self.template, self.error = None, error

    def render(self, variables):
        if self.template is None:
            return None, self.error
        generation = ENVIRONMENT.generation
        generation.blocks, generation.spans = [], []
        context = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        try:
            for block in self.template.generate(context):
                generation.blocks.append(block)
            text = "".join(generation.blocks)
            spans = [tuple(len(text[:i].encode()) for i in span) for span in generation.spans]
            return text.encode(), spans
        except Exception as error:  # noqa: BLE001
            return None, error


# ---- Random conversations ----

WORDS = ["hello", "What is 2+2?", "  blanks  ", "\n", "line\nline 2\n", "<think>\nreason\n</think>\n\nanswer", "\u00e9\u00df\u4e16",
         "\U0001f642", "{\"a\": 1}", "'quoted' \"twice\"", "<|im_end|>", "</think>", "it's", "tab\there", "\\n", "", " ", "&<>",
         "<tool_call>", "\u2028", "\u00a0end", "[INST]", "3.5", "<think>open"]


def words(rng):
    return rng.choice(["", " ", "\n"]).join(rng.choice(WORDS) for _ in range(rng.choice([0, 1, 1, 2, 3])))


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 6:
        return [rng.choice([True, False]), None, rng.choice([0, 1, -7, 123456789012]),
                rng.choice([0.5, 1.0, -2.25, 1e100, 1e-7]), words(rng), rng.choice(WORDS)][kind]
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "city", "items", "\u00e9"]): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def schema(rng, depth=0):
    kind = rng.choice(["string", "number", "integer", "boolean", "array", "object"] if depth < 2 else ["string", "number"])
    out = {"type": kind if rng.random() < 0.9 else [kind, "null"]}
    if rng.random() < 0.8:
        out["description"] = words(rng) or "text"
    if rng.random() < 0.2:
        out["enum"] = ["a", "b"]
    if rng.random() < 0.2:
        out["default"] = rng.choice(["a", 1, 2.0, True])
    if rng.random() < 0.1:
        out["nullable"] = True
    if kind == "array" and rng.random() < 0.8:
        out["items"] = schema(rng, depth + 1)
    if kind == "object":
        names = rng.sample(["x", "y", "unit", "Name"], rng.randrange(4))
        out["properties"] = {name: schema(rng, depth + 1) for name in names}
        if rng.random() < 0.7:
            out["required"] = names[:1]
    return out


def tool(rng):
    parameters = schema(rng)
    parameters["type"] = "object"
    names = rng.sample(["location", "unit", "count", "tags"], rng.randrange(4))
    parameters["properties"] = {name: schema(rng, 1) for name in names}
    parameters["required"] = names[:rng.randrange(3)]
    function = {"name": rng.choice(["get_weather", "search", "f"]), "description": words(rng) or "does it",
                "parameters": parameters}
    if rng.random() < 0.2:
        function["return"] = {"type": "string", "description": "text"}
    return {"type": "function", "function": function}


def content(rng, plain):
    if plain or rng.random() < 0.75:
        return words(rng)
    return [rng.choice([{"type": "text", "text": words(rng)}, {"type": "text", "text": words(rng)}, {"type": "image"}])
            for _ in range(rng.randrange(1, 4))]


def tool_call(rng):
    arguments = {name: value(rng, 1) for name in rng.sample(["location", "unit", "count"], rng.randrange(4))}
    call = {"name": rng.choice(["get_weather", "search"]), "arguments": arguments if rng.random() < 0.85 else "{\"a\": 1}"}
    out = {"type": "function", "function": call} if rng.random() < 0.9 else dict(call)
    if rng.random() < 0.8:
        out["id"] = rng.choice(["123456789", "call_1", "abcdefghi"])
    return out


def messages(rng):
    plain, out = rng.random() < 0.75, []
    if rng.random() < 0.5:
        out.append({"role": rng.choice(["system", "system", "system", "developer"]), "content": content(rng, plain)})
    for _ in range(rng.randrange(1, 4)):
        out.append({"role": "user", "content": content(rng, plain)})
        if rng.random() < 0.35:
            call = {"role": "assistant", "tool_calls": [tool_call(rng) for _ in range(rng.choice([1, 1, 2]))]}
            if rng.random() < 0.8:
                call["content"] = rng.choice([None, "", words(rng)])
            out.append(call)
            for made in call["tool_calls"]:
                answer = {"role": rng.choice(["tool", "tool", "ipython"]), "content": rng.choice([words(rng), value(rng)]),
                          "name": "get_weather"}
                if "id" in made:
                    answer["tool_call_id"] = made["id"]
                out.append(answer)
        if rng.random() < 0.9:
            answer = {"role": "assistant", "content": content(rng, plain)}
            if rng.random() < 0.2:
                answer[rng.choice(["reasoning_content", "thinking"])] = words(rng)
            out.append(answer)
    if rng.random() < 0.5 and out[-1]["role"] == "assistant":
        out.append({"role": "user", "content": content(rng, plain)})
    if rng.random() < 0.05:
        out.append({"role": rng.choice(["other", "model", "user"]), "content": "x"})
    if rng.random() < 0.03:
        out.pop(0)
    return out


def conversation(rng):
    out = {"messages": messages(rng), "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
           "add_generation_prompt": rng.random() < 0.5}
    if rng.random() < 0.4:
        out["tools"] = [tool(rng) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.1:
        out["documents"] = [{"title": words(rng), "text": words(rng), "content": words(rng)} for _ in range(rng.randrange(1, 3))]
    for name, values in (("enable_thinking", [True, False]), ("date_string", ["26 Jul 2024"]), ("xml_tools", ["a"]),
                         ("tools_in_user_message", [True, False]), ("reasoning_effort", ["low", "high"]),
                         ("thinking", [True, False]), ("builtin_tools", [["browser", "python"]]), ("custom_tools", [None]),
                         ("model_identity", ["You are X."]), ("continue_final_message", [True])):
        if rng.random() < 0.15:
            out[name] = rng.choice(values)
    return out

"""chat_conversations.py - random conversations with tools and system prompts. For make_chat.py and tests/cli/.
SPDX-License-Identifier: Apache-2.0"""
import json

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


def row_messages(rng):
    """Messages as rows of instruction data have them: known roles, texts, and nulls where a table had no value."""
    known = {"system", "developer", "user", "assistant", "tool", "ipython"}
    while True:
        if rng.random() < 0.4:  # what every family accepts
            turns = rng.randrange(1, 5)
            out = [{"role": "system", "content": words(rng)}] if rng.random() < 0.4 else []
            return out + [{"role": role, "content": words(rng) or role} for _ in range(turns) for role in ("user", "assistant")]
        out = [m for m in messages(rng) if m["role"] in known]
        parts = [p for m in out if isinstance(m.get("content"), list) for p in m["content"]]
        if not out or any(not isinstance(p, dict) or p.get("type") != "text" for p in parts):
            continue
        for m in out:
            if not isinstance(m.get("content", ""), (str, list, type(None))):
                m["content"] = json.dumps(m["content"])
            for name in ("tool_calls", "reasoning_content", "thinking", "name"):
                if rng.random() < 0.05:
                    m.setdefault(name, None)
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

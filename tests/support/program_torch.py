#!/usr/bin/env python3
"""program_torch.py FOLDER BOUND - the programs that program_dump.c wrote, with PyTorch's autograd in double.

Each FOLDER/*.json has the results of a compiled program. Exits with 1 if one is further off than BOUND, in units of
the tensor's root mean square. SPDX-License-Identifier: Apache-2.0
"""
import glob
import json
import math
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)

# In the order of dsc_activation.
ACTIVATIONS = (
    lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu, F.silu, lambda x: F.relu(x).square(), torch.sigmoid,
    lambda x: x.square() / 2, F.relu6, F.hardsigmoid, F.hardswish,
)


def rope(program, op, x):
    rows, columns = x.shape
    heads, pairs = op["heads"], program["pairs"]
    place = (torch.arange(rows) % program["tokens"]).to(torch.float32)
    angle = (place[:, None] * torch.tensor(program["frequency"], dtype=torch.float32)).to(torch.float64)
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    x = x.reshape(rows, heads, columns // heads)
    ahead, x = x[..., :op["first"]], x[..., op["first"]:]
    rest = x[..., 2 * pairs:]
    if op["neighbours"]:
        a, b = x[..., :2 * pairs:2], x[..., 1:2 * pairs:2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        return torch.cat((ahead, turned, rest), -1).reshape(rows, columns)
    a, b = x[..., :pairs], x[..., pairs:2 * pairs]
    return torch.cat((ahead, a * cos - b * sin, b * cos + a * sin, rest), -1).reshape(rows, columns)


def heads_op(op, own, shared):
    rows, heads, width = len(own), op["heads"], op["width"]
    own = own.reshape(rows, heads, -1)[..., :width]
    parts = [own] if shared is None else [own, shared[:, None, :].expand(rows, heads, -1)]
    y = torch.cat(parts, -1)
    return F.pad(y, (0, width - y.shape[-1])).reshape(rows, -1)


def slopes(heads, alibi):
    """As transformers' build_mpt_alibi_tensor."""
    whole = 2 ** math.ceil(math.log2(heads))
    powers = 2.0 ** (-torch.arange(1, whole + 1, dtype=torch.float64) * alibi / whole)
    return powers if whole == heads else torch.cat((powers[1::2], powers[::2]))[:heads]


def attention(program, op, q, k, v, params):
    batch, tokens, heads, kv = program["batch"], program["tokens"], op["heads"], op["kv_heads"]
    q = q.reshape(batch, tokens, heads, -1).transpose(1, 2)
    k = k.reshape(batch, tokens, kv, -1).transpose(1, 2).repeat_interleave(heads // kv, 1)
    v = v.reshape(batch, tokens, kv, -1).transpose(1, 2).repeat_interleave(heads // kv, 1)
    scores = q @ k.transpose(2, 3) * op["scale"]
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    seen = torch.ones(tokens, tokens, dtype=torch.bool) if op["all"] else j <= i
    if op["window"]:
        seen = seen & ((i - j).abs() <= op["window"] // 2 if op["all"] else j > i - op["window"])
    if op["softcap"]:
        scores = torch.tanh(scores / op["softcap"]) * op["softcap"]
    if op["alibi"] and op["alibi_of_key"]:  # as transformers' build_alibi_tensor of Falcon
        places = (slopes(heads, op["alibi"]).bfloat16()[:, None] * torch.arange(tokens)).double()
        scores = scores + places[None, :, None, :] * op["alibi_of_key"]
    elif op["alibi"]:
        scores = scores - slopes(heads, op["alibi"])[None, :, None, None] * (i - j).abs()
    scores = scores.masked_fill(~seen, -math.inf)
    if op["sinks"] >= 0:
        sinks = params[op["sinks"]].reshape(1, heads, 1, 1).expand(batch, heads, tokens, 1)
        p = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    else:
        p = scores.softmax(-1)
    return (p @ v).transpose(1, 2).reshape(batch * tokens, -1)


def norm(op, x, params):
    rows, columns = x.shape
    x = x.reshape(rows, op["groups"], columns // op["groups"])
    weight = params[op["weight"]] + op["plus_one"] if op["weight"] >= 0 else None
    bias = params[op["bias"]] if op["layer"] and op["bias"] >= 0 else None
    if op["layer"]:
        y = F.layer_norm(x, x.shape[-1:], weight, bias, op["eps"])
    else:
        y = F.rms_norm(x, x.shape[-1:], weight, op["eps"])
    return y.reshape(rows, columns)


def router(op, logits, params):
    """weights and numbers of the experts of the best choice, of equal ones the lower number"""
    scores = logits.sigmoid() if op["sigmoid"] else logits.softmax(-1)
    choice = scores if op["bias"] or op["pairs"] else logits
    choice = choice + (torch.tensor(op["bias"], dtype=torch.float64) if op["bias"] else 0)
    if op["groups"] > 1:
        groups = choice.reshape(len(choice), op["groups"], -1)
        value = groups.topk(2, -1).values.sum(-1) if op["pairs"] else groups.amax(-1)
        best = torch.sort(-value, dim=-1, stable=True).indices[:, :op["best_groups"]]
        kept = torch.zeros_like(value, dtype=torch.bool).scatter(1, best, True)
        choice = groups.masked_fill(~kept[..., None], -math.inf).reshape(choice.shape)
    chosen = torch.sort(-choice, dim=-1, stable=True).indices[:, :op["top_k"]]
    scores = scores.gather(1, chosen)
    if op["renormalize"]:
        scores = scores / scores.sum(-1, keepdim=True)
    return scores * op["factor"], chosen


def order(op, chosen):
    source = torch.argsort(chosen.flatten(), stable=True)
    starts = torch.cat((torch.zeros(1), torch.bincount(chosen.flatten(), minlength=op["experts"]).cumsum(0))).long()
    return torch.argsort(source), source, starts


def experts_op(op, x, y, z, params):
    if op["kind"] == "router":
        return router(op, x, params)
    if op["kind"] == "order":
        return order(op, x)
    if op["kind"] == "dispatch":
        return x[y // (len(y) // len(x))]
    if op["kind"] == "grouped":
        shape = (op["n_in"], op["n_out"]) if op["in_out"] else (op["n_out"], op["n_in"])
        if op["spread"]:  # peft's lora_B, of which a product has some rows
            b = params[op["weight"]].reshape(-1, op["n_in"], op["experts"]).permute(2, 0, 1)
            weight = b[:, op["first"] // op["n_in"]:][:, :op["n_out"]]
        else:
            weight = params[op["weight"]].reshape(op["experts"], *shape)
            weight = weight.mT if op["in_out"] else weight
        bias = params[op["bias"]].reshape(op["experts"], op["n_out"]) if op["bias"] >= 0 else [None] * op["experts"]
        out = torch.cat([F.linear(x[y[e]:y[e + 1]], weight[e], bias[e]) for e in range(op["experts"])])
        return out if z is None else out + z
    return (x[z] * y.reshape(-1, 1)).reshape(*y.shape, -1).sum(1)


def conv(program, op, inputs, params):
    x = torch.cat([i for i in inputs if i is not None], -1)
    x = x.reshape(program["batch"], program["tokens"], -1).transpose(1, 2)
    weight = params[op["weight"]].reshape(x.shape[1], 1, op["width"])
    y = F.conv1d(F.pad(x, (op["width"] - 1, 0)), weight, groups=x.shape[1])
    return y.transpose(1, 2).flatten(0, 1)


def conv2d(op, x, params):
    x = x.reshape(-1, op["height"], op["width"], x.shape[1]).permute(0, 3, 1, 2)
    weight = params[op["weight"]].reshape(-1, x.shape[1] // op["groups"], *op["kernel"])
    bias = params[op["bias"]] if op["bias"] >= 0 else None
    y = F.conv2d(x, weight, bias, op["stride"], op["padding"], op["dilation"], op["groups"])
    return y.permute(0, 2, 3, 1).reshape(-1, y.shape[1])


def delta(program, op, qkv, b, a, params):
    """The gated delta rule token by token."""
    batch, tokens, heads, size = program["batch"], program["tokens"], op["key_heads"], op["key_size"]
    q, k, v = qkv.reshape(batch, tokens, -1).split([heads * size, heads * size, qkv.shape[1] - 2 * heads * size], -1)
    group = op["value_heads"] // heads
    q, k = (x.reshape(batch, tokens, heads, size).repeat_interleave(group, 2) for x in (q, k))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    v = v.reshape(batch, tokens, op["value_heads"], -1)
    beta = b.reshape(batch, tokens, -1).sigmoid()
    decay = (-params[op["a_log"]].exp() * F.softplus(a + params[op["dt_bias"]])).exp().reshape(batch, tokens, -1)
    state, out = torch.zeros(batch, op["value_heads"], size, v.shape[-1]), []
    for t in range(tokens):
        state = state * decay[:, t, :, None, None]
        error = v[:, t] - (state * k[:, t, :, :, None]).sum(2)
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[:, :, None, :]
        out.append((state * q[:, t, :, :, None]).sum(2) / math.sqrt(size))
    return torch.stack(out, 1).reshape(batch * tokens, -1)


def lstm(program, op, x, params):
    """torch.nn.LSTM, whose product of the input is the identity."""
    hidden = op["hidden"]
    module = torch.nn.LSTM(4 * hidden, hidden, bias=op["bias"] >= 0, batch_first=True)
    weights = {"weight_ih_l0": torch.eye(4 * hidden), "weight_hh_l0": params[op["weight"]].reshape(4 * hidden, hidden)}
    if op["bias"] >= 0:
        weights |= {"bias_ih_l0": torch.zeros(4 * hidden), "bias_hh_l0": params[op["bias"]]}
    y, _ = torch.func.functional_call(module, weights, (x.reshape(program["batch"], -1, 4 * hidden),))
    return y.reshape(-1, hidden)


def rows_op(program, op, x, params):
    """prepend, table, pick, gather, embed"""
    batch, columns = program["batch"], x.shape[1]
    x = x.reshape(batch, -1, columns)
    if op["kind"] == "pick":
        x = x[:, op["first"]:op["first"] + op["count"]]
        return (x.mean(1) if op["mean"] else x).reshape(-1, columns)
    if op["kind"] == "gather":
        places = torch.tensor(op["places"]).reshape(batch, -1)
        if op["mean"]:
            return torch.stack([x[b, :places[b, 0] + 1].mean(0) for b in range(batch)])
        return torch.stack([x[b, places[b]] for b in range(batch)]).reshape(-1, columns)
    rows = params[op["param"]].reshape(1, -1, columns)
    if op["kind"] == "embed":
        return (x + rows[:, op["first"]:op["first"] + (1 if op["same"] else x.shape[1])]).reshape(-1, columns)
    return (x + rows if op["kind"] == "table" else torch.cat((rows.expand(batch, -1, -1), x), 1)).reshape(-1, columns)


def batch_norm(op, x, params):
    weight, bias = params[op["weight"]], params[op["bias"]]
    if len(x) > 1:
        return F.batch_norm(x, None, None, weight, bias, True, 0.1, op["eps"])
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + op["eps"]).sqrt() * weight + bias  # torch refuses one row


def pool(op, x):
    columns = x.shape[1]
    x = x.reshape(-1, *op["map"], columns).permute(0, 3, 1, 2)
    window = (op["kernel"], op["stride"], op["padding"])
    y = (F.max_pool2d(x, *window) if op["pool"] == 0 else F.avg_pool2d(x, *window) if op["pool"] == 1
         else F.adaptive_avg_pool2d(x, op["windows"]))
    return y.permute(0, 2, 3, 1).reshape(-1, columns)


def maps_op(program, op, x, scale, params):
    """batch norms, pools and scales of samples"""
    if op["kind"] == "batch_norm":
        return batch_norm(op, x, params)
    if op["kind"] == "pool":
        return pool(op, x)
    if op["kind"] == "sample_scale":
        return (x.reshape(program["batch"], -1, x.shape[1]) * scale[:, None]).reshape(x.shape)
    assert op["kind"] == "batch_stats", op["kind"]
    return None


def run_op(program, op, x, y, z, params):
    kind = op["kind"]
    if kind in ("batch_stats", "batch_norm", "pool", "sample_scale"):
        return maps_op(program, op, x, y, params)
    if kind == "pack":
        return x
    if kind == "conv":
        return conv(program, op, (x, y, z), params)
    if kind == "conv2d":
        return conv2d(op, x, params)
    if kind == "lstm":
        return lstm(program, op, x, params)
    if kind == "delta":
        return delta(program, op, x, y, z, params)
    if kind in ("router", "order", "dispatch", "grouped", "combine"):
        return experts_op(op, x, y, z, params)
    if kind in ("prepend", "table", "pick", "gather", "embed"):
        return rows_op(program, op, x, params)
    if kind == "linear":
        weight = params[op["weight"]]
        weight = weight.reshape(op["n_out"], op["n_in"]) if op["out_in"] else weight.reshape(op["n_in"], op["n_out"]).T
        return F.linear(x, weight, params[op["bias"]] if op["bias"] >= 0 else None)
    if kind == "norm":
        return norm(op, x, params)
    if kind == "heads":
        return heads_op(op, x, y)
    if kind == "regroup":
        heads = x.reshape(x.shape[0], op["groups"], -1, op["size"])
        return torch.cat([part.flatten(1) for part in (heads[:, :, :-2], heads[:, :, -2], heads[:, :, -1])], -1)
    if kind == "rope":
        return rope(program, op, x)
    if kind == "attention":
        return attention(program, op, x, y, z, params)
    if kind == "activation":
        return ACTIVATIONS[op["activation"]](x)
    if kind == "tanh":
        return torch.tanh(x)
    if kind == "gated":
        return ACTIVATIONS[op["activation"]](x) * y
    if kind == "pairs":
        gate, up = x[:, ::2].clamp(max=op["limit"]), x[:, 1::2].clamp(-op["limit"], op["limit"])
        return (up + 1) * gate * torch.sigmoid(gate * op["alpha"])
    if kind == "add":
        return x + y
    if kind == "columns":
        return x * params[op["param"]]
    if kind == "scale":
        return x * op["factor"]
    if kind == "dropout":
        return x * torch.tensor(op["kept"]).reshape(x.shape) / (1 - op["probability"])
    assert kind == "slice", kind
    columns = torch.arange(op["columns"])
    return x[:, op["column"] + columns // op["width"] * op["apart"] + columns % op["width"]]


def error(got, expected):
    got = torch.tensor(got).reshape(expected.shape)
    unit = expected.square().mean().sqrt() + 1e-3
    return float(((got - expected).abs().max() / unit).nan_to_num(math.inf))


def check(path):
    with open(path, encoding="utf-8") as file:
        program = json.load(file)
    rows = program["batch"] * program["tokens"]
    params = [torch.tensor(p["value"], requires_grad=True) for p in program["params"]]
    values = {program["input"]: torch.tensor(program["in"]).reshape(rows, -1).requires_grad_()}
    for op in program["ops"]:
        if op["kind"] != "rope_table":
            made = run_op(program, op, *(values.get(i) for i in op["in"]), params)
            values.update(zip(op["outs"], made if isinstance(made, tuple) else (made,)))
    out = values[program["output"]]
    out.backward(torch.tensor(program["d_out"]).reshape(out.shape))
    errors = [error(program["got_out"], out.detach()), error(program["got_d_in"], values[program["input"]].grad)]
    errors += [error(p["got"], v.grad) for p, v in zip(program["params"], params) if "got" in p]
    return max(errors)


def main():
    paths = sorted(glob.glob(sys.argv[1] + "/*.json"))
    worst = {path: check(path) for path in paths}
    bad = {path: error for path, error in worst.items() if not error < float(sys.argv[2])}
    print(f"# {len(paths)} programs, the largest difference {max(worst.values()):.2g}")
    for path, error in bad.items():
        print(f"# {path}: off by {error:.3g}")
    return 1 if bad or not paths else 0


sys.exit(main())

"""llama.py - Llama's block, Mistral's and Qwen's in plain PyTorch, for goldens and for tests/cli/torch_test.py: a config.json as a
dict, parameters by Hugging Face's names. SPDX-License-Identifier: Apache-2.0"""
import math

import torch


def sizes(c):
    heads = c["num_attention_heads"]
    return heads, c["num_key_value_heads"], c.get("head_dim") or c["hidden_size"] // heads


def shapes(c):
    C, I, (heads, kv, D) = c["hidden_size"], c["intermediate_size"], sizes(c)
    attention, mlp = c.get("attention_bias", False), c.get("mlp_bias", False)
    out = {"model.embed_tokens.weight": [c["vocab_size"], C]}
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        out[p + "input_layernorm.weight"] = [C]
        for name, a, b, bias in (("q", C, heads * D, attention or c["model_type"] == "qwen2"),
                                 ("k", C, kv * D, attention or c["model_type"] == "qwen2"),
                                 ("v", C, kv * D, attention or c["model_type"] == "qwen2"), ("o", heads * D, C, attention)):
            out[p + "self_attn.%s_proj.weight" % name] = [b, a]
            if bias:
                out[p + "self_attn.%s_proj.bias" % name] = [b]
        if c["model_type"] == "qwen3":
            out.update({p + "self_attn.q_norm.weight": [D], p + "self_attn.k_norm.weight": [D]})
        out[p + "post_attention_layernorm.weight"] = [C]
        for name, a, b in (("gate", C, I), ("up", C, I), ("down", I, C)):
            out[p + "mlp.%s_proj.weight" % name] = [b, a]
            if mlp:
                out[p + "mlp.%s_proj.bias" % name] = [b]
    out["model.norm.weight"] = [C]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], C]
    return out


def frequencies(c, D):
    """In double; and what cosines and sines are multiplied with."""
    theta, s = c["rope_theta"], c.get("rope_scaling") or {"rope_type": "default"}
    f = [theta ** (-2 * i / D) for i in range(D // 2)]
    if s["rope_type"] == "linear":
        return [x / s["factor"] for x in f], 1.0
    if s["rope_type"] == "llama3":
        def scaled(x):
            turns = s["original_max_position_embeddings"] * x / (2 * math.pi)
            if turns > s["high_freq_factor"]:
                return x
            if turns < s["low_freq_factor"]:
                return x / s["factor"]
            share = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            return (1 - share) * x / s["factor"] + share * x
        return [scaled(x) for x in f], 1.0
    if s["rope_type"] == "yarn":
        def pair(turns):
            return D * math.log(s["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(theta))
        low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), D - 1)
        ramp = [min(max((i - low) / (high - low if high > low else 0.001), 0), 1) for i in range(D // 2)]
        return [x / s["factor"] * r + x * (1 - r) for x, r in zip(f, ramp)], 0.1 * math.log(s["factor"]) + 1
    return f, 1.0


def token_losses(c, p, tokens, targets):
    """One loss a token."""
    B, T = tokens.shape
    heads, kv, D = sizes(c)
    dtype = p["model.norm.weight"].dtype
    f, scale = frequencies(c, D)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * torch.tensor(f, dtype=torch.float64)
    cos, sin = (angle.cos() * scale).to(dtype), (angle.sin() * scale).to(dtype)
    mask = torch.full((T, T), -math.inf, dtype=dtype).triu(1)

    def norm(x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + c["rms_norm_eps"]) * p[name + ".weight"]

    def linear(x, name):
        y = x @ p[name + ".weight"].t()
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def turned(x):
        a, b = x[..., : D // 2], x[..., D // 2:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = p["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        a = "model.layers.%d.self_attn." % i
        m = "model.layers.%d.mlp." % i
        y = norm(x, "model.layers.%d.input_layernorm" % i)
        q, k, v = (linear(y, a + n + "_proj").view(B, T, -1, D) for n in "qkv")
        if a + "q_norm.weight" in p:
            q, k = norm(q, a + "q_norm"), norm(k, a + "k_norm")
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        k, v = (z.repeat_interleave(heads // kv, 1) for z in (turned(k), v))
        w = torch.softmax(turned(q) @ k.transpose(-1, -2) / math.sqrt(D) + mask, -1) @ v
        x = x + linear(w.transpose(1, 2).reshape(B, T, heads * D), a + "o_proj")
        y = norm(x, "model.layers.%d.post_attention_layernorm" % i)
        x = x + linear(torch.nn.functional.silu(linear(y, m + "gate_proj")) * linear(y, m + "up_proj"), m + "down_proj")
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    logits = (norm(x, "model.norm") @ head.t()).view(B * T, -1)
    return torch.nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="none")

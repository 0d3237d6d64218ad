"""sft_case.py - the runs that tests/cli/test_sft_equal.sh and make_sft.py have in common: model, first weights, examples, samples.

Plain Python without packages, so that the test runs everywhere. Weights and tokens come from the integer hash of golden.py.
SPDX-License-Identifier: Apache-2.0"""
import struct

STEPS, BATCH, SEQ, EXAMPLES = 20, 16, 48, 90
OPTIMIZER = dict(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1)
SIZES = dict(vocab_size=700, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=48,
             max_position_embeddings=64, rms_norm_eps=1e-5)
CONFIGS = {
    "llama": dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "qwen2": dict(SIZES, model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True, use_sliding_window=False,
                  rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
}


def fnv(text):
    h = 0x811C9DC5
    for c in text.encode():
        h = ((h ^ c) * 0x01000193) & 0xFFFFFFFF
    return h


def mixed(seed, i):
    h = (i * 2654435769 + seed) & 0xFFFFFFFF
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def shapes(config):
    C, I, D = config["hidden_size"], config["intermediate_size"], config["hidden_size"] // config["num_attention_heads"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], C], "model.norm.weight": [C]}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        rows = {"q": D * config["num_attention_heads"], "k": D * config["num_key_value_heads"], "v": D * config["num_key_value_heads"]}
        for name, count in rows.items():
            found[at + f"self_attn.{name}_proj.weight"] = [count, C]
            if config["model_type"] == "qwen2":
                found[at + f"self_attn.{name}_proj.bias"] = [count]
        found[at + "self_attn.o_proj.weight"] = [C, rows["q"]]
        found.update({at + "mlp.gate_proj.weight": [I, C], at + "mlp.up_proj.weight": [I, C], at + "mlp.down_proj.weight": [C, I]})
        found.update({at + "input_layernorm.weight": [C], at + "post_attention_layernorm.weight": [C]})
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [config["vocab_size"], C]
    return found


def weights(config):
    """name -> (shape, values) in fp32: around 0, around 1 for a norm."""
    found = {}
    for name, shape in shapes(config).items():
        count, seed = shape[0] * (shape[1] if len(shape) > 1 else 1), fnv(name)
        base = 1.0 if "norm" in name else 0.0
        found[name] = (shape, [f32(base + ((mixed(seed, i) >> 8) * 2.0**-24 - 0.5) * 0.25) for i in range(count)])
    return found


def examples():
    """(tokens, labels): a prompt that does not count, an answer that does; every sixth has two turns."""
    found, seed = [], fnv("examples")
    for i in range(EXAMPLES):
        def draw(what, below, at=i):
            return mixed(seed + 97 * what, at) % below
        tokens, labels = [], []
        for turn in range(2 if i % 6 == 5 else 1):
            prompt, answer = 1 + draw(1 + turn, 9), 1 + draw(3 + turn, 13)
            start = (draw(5 + turn, 700) * 7) % 650
            said = [start + (k * (3 + i % 4)) % 41 for k in range(prompt + answer)]
            tokens += said
            labels += [-100] * prompt + said[prompt:]
        found.append((tokens, labels))
    return found


def samples(packing):
    """Lists of examples that share a sample: the longest first, into the first sample with enough space."""
    if not packing:
        return [[e] for e in examples()]
    rows = []
    for e in sorted(examples(), key=lambda e: -len(e[0])):
        for row in rows:
            if sum(len(x[0]) for x in row) + len(e[0]) <= SEQ:
                row.append(e)
                break
        else:
            rows.append([e])
    return rows


def batch(rows, step):
    return [rows[(step * BATCH + k) % len(rows)] for k in range(BATCH)]

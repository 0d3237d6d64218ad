#!/usr/bin/env python3
"""rope_test.py PROGRAM [COUNT [SEED]] - frequencies of rotary positions beside transformers', for random configs.

PROGRAM is rope_frequencies.c. Flat descriptions are compared with GLM's embedding, which has a partial rotary factor,
and those by layers with Gemma 3's. SPDX-License-Identifier: Apache-2.0
"""
import json
import random
import subprocess
import sys
import warnings

import torch
from transformers import Gemma3TextConfig, GlmConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.utils import logging

warnings.simplefilter("ignore")
logging.set_verbosity_error()
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


def maybe(rng, values, key, value):
    if rng.random() < 0.5:
        values[key] = value


def description(rng, kind, pairs, positions):
    """One object of "rope_parameters"."""
    rope = {"rope_type": kind, "rope_theta": rng.choice((1e4, 5e5, 1e6, 12345.0))}
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        rope["factor"] = rng.choice((1.0, 2.0, 4.0, 8.0, 3.7))
    if kind == "proportional":
        maybe(rng, rope, "factor", rng.choice((1.0, 8.0)))
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = positions // rng.choice((2, 4, 8))
    if kind == "llama3":
        rope["low_freq_factor"], rope["high_freq_factor"] = rng.choice(((1.0, 4.0), (0.5, 2.5)))
    if kind == "yarn":
        maybe(rng, rope, "beta_fast", rng.choice((32.0, 16.0)))
        maybe(rng, rope, "beta_slow", rng.choice((1.0, 2.0)))
        maybe(rng, rope, "truncate", rng.random() < 0.5)
        if rng.random() < 0.5:
            rope["mscale"], rope["mscale_all_dim"] = rng.choice(((1.0, 1.0), (0.707, 0.707), (1.0, 0.8)))
        maybe(rng, rope, "attention_factor", rng.choice((0.9, 1.3)))
    if kind == "longrope":
        rope["short_factor"] = [round(rng.uniform(1, 3), 3) for _ in range(pairs)]
        rope["long_factor"] = [round(rng.uniform(3, 40), 3) for _ in range(pairs)]
        maybe(rng, rope, "attention_factor", 1.2)
        maybe(rng, rope, "factor", rng.choice((2.0, 8.0)))
    return rope


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, config, head, positions, layers):
        text = json.dumps(config).encode()
        self.process.stdin.write(b"%d %d %d %d\n" % (len(text), head, positions, layers) + text)
        self.process.stdin.flush()
        status, _, why = self.process.stdout.readline().decode().strip().partition(" ")
        if status != "0":
            return why
        lines = [self.process.stdout.readline().decode().split() for _ in range(1 + layers)]
        return [(float(line[0]), int(line[1]), [float(x) for x in line[2:]]) for line in lines]


def same(got, frequencies, scale, rope):
    """Within two roundings of fp32. YaRN's share of a frequency has one of its own, of a number up to `factor` times as
    large as the result."""
    bound = 2.5e-7 * (1 + (rope.get("factor", 1) if rope.get("rope_type") == "yarn" else 0))
    expected = torch.tensor(frequencies, dtype=torch.float64)
    got_scale, _, values = got
    values = torch.tensor(values, dtype=torch.float64)
    return (values.shape == expected.shape and bool(((values - expected).abs() <= bound * expected.abs()).all())
            and abs(got_scale - scale) <= 2e-7 * abs(scale))


def flat(rng, program, number):
    kind = KINDS[number % len(KINDS)]
    head, positions = rng.choice((16, 64, 96, 128)), rng.choice((512, 4096, 131072))
    partial = rng.choice((1.0, 0.5, 0.25))
    rope = description(rng, kind, int(head * partial) // 2, positions)
    rope["partial_rotary_factor"] = partial
    older = dict(rope)
    config = GlmConfig(head_dim=head, hidden_size=4 * head, num_attention_heads=4, num_key_value_heads=4,
                       max_position_embeddings=positions, rope_parameters=dict(rope))
    module = GlmRotaryEmbedding(config)
    expected = module.inv_freq.tolist()
    if kind == "longrope":
        both = [ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=n)[0] for n in (1, positions + 1)]
        expected = both[0].tolist() + both[1].tolist()
    root = {"max_position_embeddings": positions}
    if rng.random() < 0.5:
        root["rope_parameters"] = rope
    else:
        root["rope_theta"], root["partial_rotary_factor"] = older.pop("rope_theta"), older.pop("partial_rotary_factor")
        older["type"] = older.pop("rope_type")
        if kind == "proportional":
            older["partial_rotary_factor"] = partial
            root.pop("partial_rotary_factor")
        root["rope_scaling"] = older
    got = program.ask(root, head, positions, 0)
    if isinstance(got, str) or not same(got[0], expected, module.attention_scaling, rope):
        return f"{json.dumps(root)} of {head}: {got}, expected {module.attention_scaling} {expected}"
    return None


def by_layers(rng, program, number):
    head, positions = rng.choice((8, 64, 256)), rng.choice((512, 32768))
    names = ("full_attention", "sliding_attention")
    root, given = {"max_position_embeddings": positions}, {}
    if number % 3 == 0:  # the older form
        root["rope_theta"], root["rope_local_base_freq"] = 5e5, 2e4
        given = {"rope_theta": 5e5, "rope_local_base_freq": 2e4}
        if rng.random() < 0.7:
            root["rope_scaling"] = description(rng, rng.choice(("linear", "yarn", "llama3")), head // 2, positions)
            root["rope_scaling"].pop("rope_theta")
            root["rope_scaling"].pop("truncate", None)
            given["rope_scaling"] = dict(root["rope_scaling"])
    else:
        root["rope_parameters"] = {
            name: description(rng, rng.choice(KINDS[:5]), head // 2, positions) for name in names if rng.random() < 0.8
        }
        for rope in root["rope_parameters"].values():  # transformers reads it beside the objects
            rope.pop("truncate", None)
        given = {"rope_parameters": json.loads(json.dumps(root["rope_parameters"]))}
    config = Gemma3TextConfig(head_dim=head, num_hidden_layers=6, max_position_embeddings=positions, **given)
    module = Gemma3RotaryEmbedding(config)
    got = program.ask(root, head, positions, 1)
    for i, name in enumerate(names):
        expected = getattr(module, f"{name}_inv_freq").tolist()
        scale = getattr(module, f"{name}_attention_scaling")
        if isinstance(got, str) or not same(got[i], expected, scale, config.rope_parameters[name]):
            return f"{json.dumps(root)} of {head}, {name}: {got}, expected {scale} {expected}"
    return None


REFUSED = (
    ({"rope_parameters": {"full_attention": 3}}, "not the object of a kind of layers"),
    ({"rope_parameters": {"full": {"rope_type": "default"}}}, "not the object of a kind of layers"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "not the object of a kind of layers"),
    ({"rope_parameters": {"full_attention": {"rope_type": "su"}}}, "su"),
    ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "factor"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 0}}}, "rope_theta"),
    ({"rope_parameters": {"full_attention": {"sliding_attention": {}}}}, "sliding_attention"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": False}}, "truncate"),
    ({"rope_parameters": [1]}, "must be an object"),
    ({"rope_local_base_freq": "x"}, "rope_local_base_freq"),
    ({"rope_parameters": {"full_attention": {}}, "rope_scaling": {"rope_type": "linear", "factor": 2}}, "one of the two"),
    ({"rope_parameters": {"full_attention": {}}, "original_max_position_embeddings": 7}, "by layers"),
)


def main():
    count, seed = (int(sys.argv[i]) if len(sys.argv) > i else value for i, value in ((2, 210), (3, 1)))
    program, failed = Program(sys.argv[1]), 0
    rng = random.Random(seed)
    bad = [why for why in (flat(rng, program, i) for i in range(count)) if why]
    bad_layers = [why for why in (by_layers(rng, program, i) for i in range(count // 2)) if why]
    wrong = []
    for config, words in REFUSED:
        got = program.ask(config, 64, 512, 1)
        if not isinstance(got, str) or words not in got:
            wrong.append(f"{json.dumps(config)}: {got}, expected a refusal with {words!r}")
    tests = ((f"{count} descriptions have transformers' frequencies and scale", bad),
             (f"{count // 2} descriptions by layers have transformers' frequencies and scale", bad_layers),
             (f"{len(REFUSED)} descriptions that mean nothing are refused by name", wrong))
    for number, (name, why) in enumerate(tests, 1):
        print(f"{'not ok' if why else 'ok'} {number} - {name}")
        failed += bool(why)
        for line in why[:5]:
            print("# " + line)
    print(f"1..{len(tests)}")
    return failed


sys.exit(main())

#!/usr/bin/env python3
"""bench_generate.py DSC DIR [--rounds 15] [--prompt 128] [--new 64] [MODEL...]

Tokens a second of `dsc generate` beside transformers' generate on the CPU. Both decode greedily in fp32, keep keys and
values, and use one thread per core. MODEL is gpt2 or llama; both run without any. Weights are random, in the shape of
GPT-2 124M or of a Llama of that size (12 layers, 4 key heads), and transformers saves them in DIR. The programs take
turns. A run of one token measures the time of loading and of the prompt, which is subtracted. "x" is paired round by
round, with its middle half. Both must print the same tokens. Needs a python with torch and transformers.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import peers

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as error:
    peers.skip("bench-generate", f"{error}: give PYTHON=PROGRAM, one that has torch and transformers")

CONFIGS = {
    "gpt2": transformers.GPT2Config(),
    "llama": transformers.LlamaConfig(vocab_size=32000, hidden_size=768, num_attention_heads=12, num_key_value_heads=4,
                                      num_hidden_layers=12, intermediate_size=2048, max_position_embeddings=1024),
}
SHORT_CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2),
    "llama": transformers.LlamaConfig(vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                                      num_hidden_layers=2, intermediate_size=128, max_position_embeddings=64),
}


def text(samples):
    s = sorted(samples)
    return f"{statistics.median(s):.2f} ({s[len(s) // 4]:.2f} .. {s[3 * len(s) // 4]:.2f})"


class Bench:
    def __init__(self, args, name, folder):
        self.args, self.name, self.folder = args, name, folder
        config = (SHORT_CONFIGS if args.short else CONFIGS)[name]
        self.threads = len(os.sched_getaffinity(0))
        torch.set_num_threads(self.threads)
        torch.manual_seed(1)
        self.model = transformers.AutoModelForCausalLM.from_config(config).eval()
        self.model.save_pretrained(folder)
        self.order = random.Random(1)
        self.ids = [self.order.randrange(config.vocab_size) for _ in range(args.prompt)]

    def theirs(self, count):
        began = time.monotonic()
        with torch.no_grad():
            out = self.model.generate(torch.tensor([self.ids]), attention_mask=torch.ones(1, len(self.ids)),
                                      max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
        return time.monotonic() - began, out[0, len(self.ids):].tolist()

    def ours(self, count):
        began = time.monotonic()
        out = subprocess.run([self.args.dsc, "generate", "--model", self.folder, "--prompt-ids",
                              ",".join(map(str, self.ids)), "--max-new-tokens", str(count), "--ignore-eos", "--device",
                              "cpu", "--threads", str(self.threads)], capture_output=True, text=True)
        if out.returncode != 0:
            sys.exit(f"bench_generate: {out.stderr[-400:]}")
        return time.monotonic() - began, [int(i) for i in out.stdout.split()]

    def run(self):
        sides = {"dsc": self.ours, "transformers": self.theirs}
        rates = {name: [] for name in sides}
        for number in range(self.args.rounds + 1):
            said = {}
            for name in self.order.sample(sorted(sides), len(sides)):
                one, (whole, said[name]) = sides[name](1)[0], sides[name](self.args.new + 1)
                if number > 0:  # the first one reads programs and weights from the disk
                    rates[name].append(self.args.new / max(whole - one, 1e-9))
            if said["dsc"] != said["transformers"]:
                sys.exit(f"bench_generate: they differ: {said}")
        pairs = [a / b for a, b in zip(rates["dsc"], rates["transformers"])]
        print(f"{self.name} fp32, {self.args.new} tokens after {self.args.prompt}, {self.threads} threads: dsc "
              f"{text(rates['dsc'])} tokens/s; transformers {transformers.__version__} {text(rates['transformers'])} "
              f"tokens/s; x {text(pairs)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dsc")
    parser.add_argument("dir", help="where the models' folders go")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=" or ".join(sorted(CONFIGS)))
    parser.add_argument("--short", action="store_true", help="one round of models with 2 small layers")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--prompt", type=int)
    parser.add_argument("--new", type=int)
    args = parser.parse_intermixed_args()
    args.rounds = args.rounds or (1 if args.short else 15)
    args.prompt = args.prompt or (8 if args.short else 128)
    args.new = args.new or (8 if args.short else 64)
    if not set(args.models) <= set(CONFIGS):
        parser.error(f"a MODEL is one of {', '.join(sorted(CONFIGS))}")
    transformers.logging.set_verbosity_error()
    for name in args.models or sorted(CONFIGS):
        folder = tempfile.mkdtemp(prefix="bench-generate-", dir=args.dir)
        try:
            Bench(args, name, folder).run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

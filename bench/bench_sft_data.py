#!/usr/bin/env python3
"""bench_sft_data.py SFT_PACK DIR [--rounds 15] [--mib 50] [--short]

Instruction data made ready for training: rendered by a chat template, encoded, with the mask of the answers, and packed
into samples of 2048 tokens. Our reader stands beside TRL's SFTTrainer: datasets reads the same file, and the trainer's
own method prepares it (apply_chat_template, tokenizers, mask, packing "bfd"). Both use one core, then all of them
(threads here, dataset_num_proc there). The text is Python's library, and the tokenizer a byte-level BPE of 32000 tokens
that is trained on it. The programs take turns. "x" is their ratio paired round by round, with its middle half. Needs a
python with datasets, transformers and trl.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import glob
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types

import peers

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error", DATASETS_VERBOSITY="error")
try:
    import datasets
    import tokenizers
    import transformers
    import trl
except ImportError as error:
    peers.skip("bench-sft-data", f"{error}: give PYTHON=PROGRAM, one that has datasets, transformers and trl")
datasets.disable_progress_bars()
datasets.disable_caching()

TOKENS = 2048
HEAD = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
TEMPLATES = {
    "blocks": HEAD + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\n{% else %}"
                     "{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                     "{% endif %}",
    "plain": HEAD + "{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def write_data(path, mib):
    """Conversations of 1 to 4 questions whose texts are pieces of Python's library."""
    rng, text = random.Random(1), []
    for name in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "**", "*.py"), recursive=True)):
        if "site-packages" not in name:
            with open(name, encoding="utf-8", errors="replace") as file:
                text.append(file.read())
    text, written = "".join(text), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < mib << 20:
            messages = []
            for _ in range(rng.randrange(1, 5)):
                for role, most in (("user", 600), ("assistant", 1500)):
                    count = rng.randrange(20, most)
                    at = rng.randrange(len(text) - count)
                    messages.append({"role": role, "content": text[at:at + count]})
            written += file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return text


def write_model(folder, text, vocab):
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator((text[i:i + 10000] for i in range(0, min(len(text), 10 << 20), 10000)), vocab_size=vocab,
                                  special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False)
    tokenizer.save(os.path.join(folder, "bpe.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "bpe.json"), eos_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return fast


def text_of(samples):
    s = sorted(samples)
    return f"{statistics.median(s):.2f} ({s[len(s) // 4]:.2f} .. {s[3 * len(s) // 4]:.2f})"


class Bench:
    def __init__(self, args, folder, data, tokenizer):
        self.args, self.folder, self.data, self.tokenizer = args, folder, data, tokenizer
        self.mib = os.path.getsize(data) / (1 << 20)
        self.order, self.cpus = random.Random(1), sorted(os.sched_getaffinity(0))

    def ours(self, cores):
        out = subprocess.run([self.args.sft_pack, self.folder, self.data, os.path.join(self.folder, "out.samples"), str(TOKENS),
                              str(cores)], capture_output=True, text=True)
        if out.returncode != 0:
            sys.exit(f"bench_sft_data: {out.stderr[-400:]}")
        seconds, what = out.stdout.split(" ", 1)
        return float(seconds), int(what.split(" tokens, ")[1].split()[0])

    def theirs(self, cores):
        config = trl.SFTConfig(output_dir=self.folder, max_length=TOKENS, packing=True, use_cpu=True, bf16=False, report_to=[],
                               assistant_only_loss="{% generation" in self.tokenizer.chat_template,
                               dataset_num_proc=cores if cores > 1 else None)
        trainer = types.SimpleNamespace(_tokenizer=self.tokenizer, chat_template=None, completion_only_loss=False)
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            began = time.monotonic()
            rows = datasets.Dataset.from_json(self.data, cache_dir=cache)
            made = trl.SFTTrainer._prepare_dataset(trainer, rows, self.tokenizer, config, True, None, "train")
            seconds = time.monotonic() - began
        lengths = made["seq_lengths"] if "seq_lengths" in made.column_names else [[len(ids)] for ids in made["input_ids"]]
        return seconds, sum(map(sum, lengths))

    def run(self, name, cores):
        sides = {"dsc": self.ours, "trl": self.theirs}
        seconds, tokens = {side: [] for side in sides}, {}
        os.sched_setaffinity(0, self.cpus[:cores])
        for number in range(self.args.rounds + 1):
            for side in self.order.sample(sorted(sides), len(sides)):
                took, tokens[side] = sides[side](cores)
                if number > 0:
                    seconds[side].append(took)
        os.sched_setaffinity(0, self.cpus)
        rates = {side: [self.mib / s for s in seconds[side]] for side in sides}
        pairs = [a / b for a, b in zip(rates["dsc"], rates["trl"])]
        print(f"{name:6} {cores} core{'s' if cores > 1 else ' '} dsc {text_of(rates['dsc'])} MiB/s; trl {text_of(rates['trl'])} "
              f"MiB/s; x {text_of(pairs)}; tokens {tokens['dsc']} and {tokens['trl']}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sft_pack")
    parser.add_argument("dir")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mib", type=int, default=50)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    if args.short:
        args.rounds, args.mib = 1, 1
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        data = os.path.join(folder, "data.jsonl")
        text = write_data(data, args.mib)
        tokenizer = write_model(folder, text[:1 << 20] if args.short else text, 1000 if args.short else 32000)
        bench = Bench(args, folder, data, tokenizer)
        for name, template in TEMPLATES.items():
            tokenizer.chat_template = template
            tokenizer.save_pretrained(folder)
            for cores in sorted({1, len(bench.cpus)}):
                bench.run(name, cores)
        shutil.rmtree(os.path.join(folder, "cache"), ignore_errors=True)


if __name__ == "__main__":
    main()

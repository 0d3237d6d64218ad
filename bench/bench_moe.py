#!/usr/bin/env python3
"""bench_moe.py BENCH_FOLDER [--rounds 15] [--threads 2] [--precision fp32] [--short]

A training step of a mixture of experts (Mixtral's block, 8 experts, 2 for each token, with the balance loss) beside the
same step by transformers and PyTorch's fused AdamW. Both sides make a step in turns, in alternating order; medians, middle
halves and the paired ratio are printed. "worker CONFIG BATCH SEQUENCE PRECISION" is transformers' side, in the form of step_worker.
transformers' own choice of the experts' implementation is used. SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

MODEL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 4096, "hidden_size": 512, "num_attention_heads": 8,
         "num_key_value_heads": 4, "num_hidden_layers": 4, "intermediate_size": 1024, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
         "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False, "output_router_logits": True,
         "router_aux_loss_coef": 0.02}
SHORT = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}


def worker(config, batch, sequence, precision):
    import torch
    import transformers
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(config))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randint(0, model.config.vocab_size, (batch, sequence))
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(input_ids=x, labels=x, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{(time.perf_counter() - start) * 1e3:.3f} {loss.item():.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} 0", file=out,
              flush=True)


def text(values):
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{statistics.median(values):.3f} ({low:.3f}..{high:.3f})"


def main():
    from peers import Ranks, skip
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of step_worker")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    try:
        import transformers
    except ImportError:
        skip("bench-moe", "transformers is not installed (PYTHON=PROGRAM names a python that has it)")
    model = dict(MODEL, **(SHORT if args.short else {}))
    batch, sequence = (2, 32) if args.short else (4, 256)
    with tempfile.TemporaryDirectory() as folder:
        json.dump(model, open(f"{folder}/config.json", "w"))
        json.dump({"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 1.0, "bf16": {"enabled": args.precision == "bf16"},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
                   "dsc": {"model": f"{folder}/config.json", "seq_length": sequence, "threads": args.threads}}, open(f"{folder}/c.json", "w"))
        sides = {"dsc": Ranks([f"{args.bench}/step_worker", f"{folder}/c.json", str(model["vocab_size"]), str(sequence)], 1, args.threads, 0),
                 "transformers": Ranks([sys.executable, os.path.abspath(__file__), "worker", folder, str(batch), str(sequence), args.precision], 1,
                                       args.threads, 0)}
        for number in range(args.rounds + 1):
            for name in list(sides)[::1 if number % 2 else -1]:
                sides[name].step(number > 0)  # the first one touches memory for the first time
        for side in sides.values():
            side.close()
    ratios = [theirs / ours for ours, theirs in zip(sides["dsc"].ms, sides["transformers"].ms)]
    print(f"8 experts, 2 for a token; {batch} x {sequence} tokens, {args.precision}, {args.threads} threads, {args.rounds} rounds; load "
          f"{os.getloadavg()[0]:.1f}; transformers {transformers.__version__}")
    for name, side in sides.items():
        print(f"  {name:13s} step {text(side.ms)} ms, process {side.kib / 1024:.0f} MiB at most, last loss {side.losses[-1][0]}")
    print(f"  transformers' step is {text(ratios)} times ours, paired")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        main()

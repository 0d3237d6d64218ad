#!/usr/bin/env python3
"""routing_test.py BIN: experts that tokens of a model in bf16 are routed to, against transformers' model in bf16. Samples have one token, so
that the load of a step's experts, which the log has, is the choice of that token. The families make their logits in fp32, or round them.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

from hf_runs import BIN, run, run_all, torch, transformers

TOKENS, EXPERTS, SLOTS, VOCABULARY = 600, 64, 8, 601
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "moe_intermediate_size": 32, "num_experts_per_tok": SLOTS,
         "initializer_range": 0.02, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
          "n_routed_experts": EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 0}
# Least share of tokens with the same experts: a logit's rounding is left where products of another order differ.
FAMILIES = {
    "DeepSeek-V3": (0.99, {"model_type": "deepseek_v3", **SIZES, **LATENT, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}),
    "DeepSeek-V2": (0.99, {"model_type": "deepseek_v2", **SIZES, **LATENT, "topk_method": "greedy"}),
    "GLM-4.5": (0.99, {"model_type": "glm4_moe", **SIZES, "head_dim": 64, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
                       "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}),
    "ERNIE 4.5": (0.99, {"model_type": "ernie4_5_moe", **SIZES, "moe_num_experts": EXPERTS, "moe_k": SLOTS, "moe_num_shared_experts": 1,
                         "moe_layer_start_index": 0, "moe_layer_end_index": 0, "moe_layer_interval": 1}),
    "Qwen 3": (0.95, {"model_type": "qwen3_moe", **SIZES, "head_dim": 64, "num_experts": EXPERTS, "norm_topk_prob": True}),
}


def choices_of(model, tokens):
    chosen = []

    def keep(module, given, out):
        chosen.append(out[-1])

    router = next(module for name, module in model.named_modules() if name.endswith("mlp.gate"))
    router.register_forward_hook(keep)
    with torch.no_grad():
        model(input_ids=torch.tensor(tokens)[:, None], use_cache=False)
    assert len(chosen) == 1 and chosen[0].shape == (len(tokens), SLOTS), chosen
    return [set(row) for row in chosen[0].tolist()]


def train(hf, folder):
    """The experts of each token, which a rate of 0 does not change."""
    config, log, data = (os.path.join(folder, name) for name in ("c.json", "log.jsonl", "tokens.bin"))
    json.dump({"train_batch_size": 1, "bf16": {"enabled": True}, "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
               "dsc": {"moe": {"log_load": True}}}, open(config, "w"))
    run(f"{BIN}/train", "--config", config, "--model", hf, "--data", data, "--no-shuffle", "--seq-len", "1", "--steps", str(TOKENS),
        "--log", log)
    return [json.loads(line) for line in open(log)]


def check(least, config, folder):
    hf, data = os.path.join(folder, "hf"), os.path.join(folder, "tokens.bin")
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made).to(torch.bfloat16)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("e_score_correction_bias"):
                p.data = torch.randn_like(p.data.float()) * 0.05
            elif name.endswith("o_proj.weight"):  # routers read norms of embeddings, which both programs have alike
                p.zero_()
            elif name.endswith("gate.weight"):  # transformers keeps it in fp32, and folders have it in bf16
                p.data = (torch.randn_like(p.data.float()) * 0.1).bfloat16()
            elif p.dim() > 1:
                p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(hf)
    json.dump(config, open(os.path.join(hf, "config.json"), "w"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16, attn_implementation="eager").eval()
    tokens = [(7 * n) % VOCABULARY for n in range(TOKENS + 1)]
    torch.tensor(tokens, dtype=torch.int16).numpy().tofile(data)
    want = choices_of(theirs, tokens[:TOKENS])
    lines = train(hf, folder)
    got = [{e for e, load in enumerate(line["expert_load"][0]) if load > 0} for line in lines]
    assert all(len(chosen) == SLOTS for chosen in got), "a token has not all slots"
    tokens_alike = sum(a == b for a, b in zip(got, want)) / TOKENS
    slots_alike = sum(len(a & b) for a, b in zip(got, want)) / TOKENS / SLOTS
    print(f"# {tokens_alike:.1%} of tokens have the same experts, {slots_alike:.2%} of slots", flush=True)
    assert tokens_alike >= least, f"{tokens_alike} of the tokens, expected {least}"


def main():
    sys.exit(run_all([(name, check, family) for name, family in FAMILIES.items()]))


if __name__ == "__main__":
    main()

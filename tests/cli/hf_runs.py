"""hf_runs.py - common parts of the tests against transformers.

A model's folder, 20 AdamW steps by transformers and by train, the export, and the continuation of a prompt by both.
argv[1] is the folder of the programs. SPDX-License-Identifier: Apache-2.0"""
import array
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from masking import masked
from safetensors.torch import load_file, save_file

BIN = sys.argv[1]
STEPS, BATCH, SEQ, VOCAB = 20, 4, 24, 97
torch.set_num_threads(1)
torch.manual_seed(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Masked language models; their replacement of a masked token, and tokens that they never predict.
MASKED_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert")
MASK, SPECIAL, SEED = 90, [3, 5, 7], 1234


def is_masked(config):
    return config.model_type in MASKED_FAMILIES


def attention_of(config):
    """Falcon's eager attention of transformers 5.24 adds the slopes twice: they are in its mask too. Its default does not."""
    return "sdpa" if config.model_type == "falcon" and config.alibi else "eager"


def kind_of(config):
    if hasattr(config, "vision_config"):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForMaskedLM if is_masked(config) else transformers.AutoModelForCausalLM


def make_folder(config, dtype, shard, folder):
    model = kind_of(config).from_config(config).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder, max_shard_size=shard)
    model = kind_of(config).from_pretrained(folder, dtype=torch.float32, attn_implementation=attention_of(config))
    if shard == "1GB":
        write_as_of_old(os.path.join(folder, "model.safetensors"), config)
    return model


def write_as_of_old(path, config):
    """As the first published BERTs and RoBERTas are: other names of norms, and the heads and buffers that transformers drops today."""
    if config.model_type not in MASKED_FAMILIES[:4]:
        return
    base, width = "bert" if config.model_type == "bert" else "roberta", config.hidden_size
    named = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
             for k, t in load_file(path).items()}
    named.update({f"{base}.pooler.dense.weight": torch.zeros(width, width), f"{base}.pooler.dense.bias": torch.zeros(width)})
    if base == "bert":
        named.update({"cls.seq_relationship.weight": torch.zeros(2, width), "cls.seq_relationship.bias": torch.zeros(2)})
    else:
        table = named["roberta.embeddings.word_embeddings.weight"]
        named.update({"lm_head.decoder.weight": table.clone(), "lm_head.decoder.bias": named["lm_head.bias"].clone(),
                      "roberta.embeddings.position_ids": torch.arange(config.max_position_embeddings)[None]})
    save_file(named, path, metadata={"format": "pt"})


def samples_of(config, data, at, epochs):
    """Inputs, and a target for each token; -100: none."""
    x = torch.stack([data[i:i + SEQ] for i in at])
    if not is_masked(config):
        return x, torch.stack([data[i + 1:i + SEQ + 1] for i in at])
    y = torch.full_like(x, -100)
    for k, tokens in enumerate(x.tolist()):
        seen, targets = masked(SEED, epochs[k], at[k] // SEQ, tokens, config.vocab_size, MASK, SPECIAL)
        x[k] = torch.tensor(seen)
        for place, token in targets.items():
            y[k, place] = token
    return x, y


def by_documents(model, x, end):
    """Logits of samples whose documents, each up to a token `end`, are texts of their own."""
    rows = []
    for sample in x:
        cuts = [0] + [i + 1 for i, token in enumerate(sample.tolist()) if token == end and i + 1 < len(sample)] + [len(sample)]
        rows.append(torch.cat([model(input_ids=sample[None, a:b]).logits[0] for a, b in zip(cuts, cuts[1:])]))
    return torch.stack(rows)


def train_theirs(model, tokens, document_end=None):
    model.eval()  # dropout is off, as ours
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    count, losses, g = (len(tokens) - 1) // SEQ, [], 0
    data = torch.tensor(tokens)
    for _ in range(STEPS):
        numbers = range(g, g + BATCH)
        x, y = samples_of(model.config, data, [n % count * SEQ for n in numbers], [n // count for n in numbers])
        g += BATCH
        opt.zero_grad()
        logits = model(input_ids=x).logits if document_end is None else by_documents(model, x, document_end)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} {command[1]}: exit {done.returncode}: {done.stdout[-800:]}")
    return done.stdout


def train_ours(hf, data, folder, adapter=None, ranks=2, **own):
    """Losses, the export, and of a run with adapters the merged one. `own`: further keys of "dsc"."""
    config, log, save = (os.path.join(folder, n) for n in ("c.json", "log.jsonl", "save"))
    own.update({"lora": {"adapter": adapter}} if adapter else {})
    if json.load(open(os.path.join(hf, "config.json")))["model_type"] in MASKED_FAMILIES:
        own.update({"mlm": {"mask_token": MASK, "special_tokens": SPECIAL}, "seed": SEED})
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": {"stage": 2}, "dsc": own}, open(config, "w"))
    run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", hf, "--data", data, "--seq-len", str(SEQ),
        "--no-shuffle", "--steps", str(STEPS), "--log", log, "--save", save)
    out, merged = os.path.join(folder, "export"), os.path.join(folder, "merged")
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{STEPS}", "--out", out)
    if "lora" in own:
        run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{STEPS}", "--out", merged, "--merge")
    return [json.loads(line)["loss"] for line in open(log)], out, merged


def files_of(folder):
    found = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            found.update(load_file(os.path.join(folder, name)))
    return found


def check_generate(model, folder):
    """Greedily, to the last position; a prompt of several and one of a single token."""
    model.eval()
    for prompt in (31, 1):
        ids = [(7 * i + 3) % VOCAB for i in range(prompt)]
        with torch.no_grad():
            want = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, prompt), max_new_tokens=64 - prompt, do_sample=False,
                                  eos_token_id=None, pad_token_id=0)[0, prompt:].tolist()
        got = run(f"{BIN}/dsc", "generate", "--model", folder, "--prompt-ids", ",".join(map(str, ids)), "--max-new-tokens",
                  str(64 - prompt), "--ignore-eos")
        assert [int(i) for i in got.split()] == want, f"from {prompt} tokens generate says {got.strip()}, transformers {want}"


def write_tokens(data, vocab=VOCAB):
    tokens = [random.Random(i // 5).randrange(vocab) for i in range(SEQ * 14 + 5)]
    array.array("H", tokens).tofile(open(data, "wb"))
    return tokens


def compare(theirs, hf, folder, **own):
    """Training from the folder, and what comes of it, with transformers' model of the same folder. `own`: of train_ours."""
    kind, data = kind_of(theirs.config), os.path.join(folder, "tokens.bin")
    tokens = write_tokens(data)
    want = train_theirs(theirs, tokens)
    got, exported, _ = train_ours(hf, data, folder, **own)
    loss_off = max(abs(a - b) for a, b in zip(got, want))
    back, info = kind.from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    again = os.path.join(folder, "again")
    back.save_pretrained(again)
    ours, saved = files_of(exported), files_of(again)
    same = set(ours) == set(saved) and all(torch.equal(ours[k], saved[k]) for k in ours)
    mine, other = dict(back.named_parameters()), dict(theirs.named_parameters())
    saved, kept = theirs.state_dict(), dict(back.named_buffers())  # dynamic positions change a buffer that no file has
    assert all(torch.equal(kept[k], b) for k, b in theirs.named_buffers() if k in saved), "a buffer of our export is another one"
    apart = max((mine[k] - other[k]).abs().max().item() for k in mine)
    missing = [k for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for k in info[kind]]
    print(f"# losses within {loss_off:.2g}, weights within {apart:.2g}, {len(ours)} tensors", flush=True)
    assert len(got) == STEPS and loss_off < 2e-4, f"losses are {loss_off} apart"
    assert not missing, f"transformers misses or does not know {missing}"
    assert same, "what transformers writes of our export is not our export"
    # a text that goes on over longrope's border is refused
    if not is_masked(theirs.config) and "longrope" not in json.dumps(theirs.config.to_dict(), default=str):
        check_generate(back, exported)
    # AdamW moves an element whose gradient is next to nothing by the rate either way
    assert apart < 2 * STEPS * 1e-3, f"weights are {apart} apart"


def run_all(tests):
    """[(name, function, arguments)], each in a folder of its own; a function None is skipped. The exit code."""
    failures = 0
    for number, (name, test, case) in enumerate(tests, 1):
        if test is None:
            print(f"ok {number} - {name} # SKIP {case}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(*case, folder)
                print(f"ok {number} - {name}", flush=True)
            except (AssertionError, RuntimeError, OSError, ValueError) as wrong:
                failures += 1
                print(f"not ok {number} - {name}\n# {wrong}", flush=True)
    print(f"1..{len(tests)}")
    return 1 if failures else 0

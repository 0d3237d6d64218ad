#!/usr/bin/env python3
"""embedding_test.py BIN: vectors of texts, beside transformers and sentence-transformers: 20 AdamW steps of each loss on texts of unequal
length, the export, `dsc embed` and the numbers of an evaluation. Also rows that are refused. Without sentence-transformers its losses are
the formulas below, in torch. SPDX-License-Identifier: Apache-2.0"""
import csv
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from safetensors.torch import load_file

try:
    import sentence_transformers
    import warnings
    warnings.simplefilter("ignore")
    from sentence_transformers import SentenceTransformer, losses as theirs
except ImportError:
    sentence_transformers = None

BIN, NIGHT = sys.argv[1], os.environ.get("DSC_TEST_NIGHT") == "1"
STEPS, SEQ, ROWS, SCALE = 20, 16, 24, 20.0
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
number = failed = 0


def check(name, good, why=""):
    global number, failed
    number += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {number} - {name}" + ("" if good else f"\n# {why}"), flush=True)


# ---- folders ----

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrst"
VOCAB = SPECIAL + list(LETTERS) + ["##" + c for c in LETTERS] + ["good", "bad", "fine"]


def write_tokenizer(folder, last):
    """`last`: the token behind a text; before it [CLS], but not of decoders."""
    ids = {n: VOCAB.index(n) for n in ("[CLS]", "[SEP]")}
    single = ([] if last else [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]) + [{"Sequence": {"id": "A", "type_id": 0}},
                                                                                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    added = [{"id": i, "content": n, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, n in enumerate(SPECIAL)]
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
               "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
               "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single,
                                  "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ids.items()}},
               "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {t: i for i, t in enumerate(VOCAB)}}}, open(os.path.join(folder, "tokenizer.json"), "w"))
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
               "sep_token": "[SEP]", "mask_token": "[MASK]", "model_max_length": SEQ}, open(os.path.join(folder, "tokenizer_config.json"), "w"))


SIZES = dict(vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, max_position_embeddings=40)


def encoder(kind=transformers.BertConfig, **more):
    return kind(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0, **more)


def distilbert():
    return transformers.DistilBertConfig(vocab_size=len(VOCAB), dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=40,
                                         dropout=0.0, attention_dropout=0.0, pad_token_id=0)


def modernbert():
    return transformers.ModernBertConfig(**SIZES, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)


def qwen3():
    return transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16, pad_token_id=0)


def make_folder(folder, config):
    """A folder of the base model, as published ones are, and transformers' model of it."""
    os.makedirs(folder)
    torch.manual_seed(3)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder)
    write_tokenizer(folder, config.model_type == "qwen3")
    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


# ---- rows ----

def words(r, least, most):
    return " ".join(r.choice(["good", "bad", "fine"] + ["".join(r.choice(LETTERS) for _ in range(r.randint(1, 3)))]) for _ in range(r.randint(least, most)))


def make_rows(columns, score=False, seed=5):
    """Some texts are longer than a sample, some are a word."""
    r, rows = random.Random(seed), []
    for i in range(ROWS):
        row = {c: words(r, 1, 14) for c in columns}
        rows.append({**row, "score": round(r.random(), 2)} if score else row)
    return rows


def write_rows(path, rows):
    with open(path, "w", newline="") as f:
        if path.endswith(".csv"):
            out = csv.DictWriter(f, list(rows[0]))
            out.writeheader()
            out.writerows(rows)
        else:
            f.writelines(json.dumps(row) + "\n" for row in rows)


# ---- both trainings ----

def pool(hidden, mask, how):
    if how == "mean":
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return hidden[:, 0] if how == "cls" else hidden[torch.arange(len(hidden)), mask.sum(1) - 1]


def vectors_of(model, folder, texts, how):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), pad_token="[PAD]")
    out = tokenizer(texts, truncation=True, max_length=SEQ, padding=True, return_tensors="pt", return_token_type_ids=False)
    return pool(model(**out).last_hidden_state, out["attention_mask"], how)


def loss_of(name, vectors, scores):
    """sentence-transformers' own, or its formulas."""
    if sentence_transformers:
        kind = {"multiple_negatives": theirs.MultipleNegativesRankingLoss, "cosine": theirs.CosineSimilarityLoss, "cosent": theirs.CoSENTLoss}[name]
        return kind(torch.nn.Identity()).compute_loss_from_embeddings(vectors, scores)
    unit = [torch.nn.functional.normalize(v) for v in vectors]
    if name == "multiple_negatives":
        return torch.nn.functional.cross_entropy(unit[0] @ torch.cat(unit[1:]).T * SCALE, torch.arange(len(unit[0])))
    cosines = (unit[0] * unit[1]).sum(1)
    if name == "cosine":
        return ((cosines - scores) ** 2).mean()
    apart = SCALE * (cosines[:, None] - cosines[None, :])
    return torch.logsumexp(torch.cat([torch.zeros(1), apart[scores[:, None] < scores[None, :]]]), 0)


def train_theirs(model, folder, rows, columns, loss, how, per_micro, micros):
    losses, g = [], 0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for _ in range(STEPS):
        opt.zero_grad()
        total = 0
        for _ in range(micros):
            some = [rows[(g + i) % len(rows)] for i in range(per_micro)]
            g += per_micro
            vectors = [vectors_of(model, folder, [row[c] for row in some], how) for c in columns]
            part = loss_of(loss, vectors, torch.tensor([row.get("score", 0.0) for row in some])) / micros
            part.backward()
            total += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(total)
    return losses


def run(*command, fails=False, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **more)
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"{command[0]} {command[1]}: exit {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def write_config(place, batch, micro, own, zero=None):
    path = os.path.join(place, "config.json")
    json.dump({"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": zero or {"stage": 0}, "dsc": {"data_cache": os.path.join(place, "cache"), **own}}, open(path, "w"))
    return path


def train_ours(place, folder, data, batch, micro, own, ranks=2, steps=STEPS, zero=None):
    log, save = os.path.join(place, "log.jsonl"), os.path.join(place, "save")
    text = run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", write_config(place, batch, micro, own, zero), "--model", folder,
               "--data", data, "--seq-len", str(SEQ), "--no-shuffle", "--steps", str(steps), "--log", log, "--save", save)
    return [json.loads(line)["loss"] for line in open(log)], os.path.join(save, f"step-{steps}"), text


def tensors_of(folder):
    found = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            found.update(load_file(os.path.join(folder, name)))
    return found


def embed(folder, *more, **also):
    text = run(f"{BIN}/dsc", "embed", "--model", folder, "--max-tokens", str(SEQ), *more, **also)
    return [json.loads(line)["embedding"] for line in text.splitlines() if line.startswith("{")]


def far(got, want):
    return max(abs(a - b) for x, y in zip(got, want) for a, b in zip(x, y)) if len(got) == len(want) else float("inf")


def check_export(name, saved, out, how, unit, rows, columns):
    """The exported folder as sentence-transformers reads it, and `dsc embed`."""
    run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", out)
    texts = [row[c] for row in rows for c in columns]
    again = transformers.AutoModel.from_pretrained(out, dtype=torch.float32).eval()
    files, state = tensors_of(out), again.state_dict()
    plain = {k.split(".", 1)[1] if k.split(".")[0] in ("bert", "roberta", "distilbert", "model") else k: v for k, v in files.items()}
    check(f"{name}: the export is a {type(again).__name__} of transformers with equal tensors",
          again.config.architectures == [type(again).__name__] and all(torch.equal(v, state[k]) for k, v in plain.items()) and
          all(k in plain or "pooler" in k for k in state), f"{again.config.architectures} {sorted(set(state) - set(plain))}")
    with torch.no_grad():
        want = vectors_of(again, out, texts, how)
        want = (torch.nn.functional.normalize(want) if unit else want).tolist()
    lines = os.path.join(os.path.dirname(out), "lines.txt")
    open(lines, "w").write("".join(t + "\n" for t in texts))
    for folder in (out, saved):
        off = far(embed(folder, lines), want)
        check(f"{name}: dsc embed of {os.path.basename(folder)} gives the vectors of transformers within 1e-5 ({off:.1e})", off <= 1e-5)
    if sentence_transformers:
        off = far(SentenceTransformer(out, device="cpu").encode(texts, batch_size=4).tolist(), want)
        check(f"{name}: SentenceTransformer(EXPORT) gives them too ({off:.1e})", off <= 1e-5)
    return lines


def compare(name, config, columns=("anchor", "positive"), loss="multiple_negatives", how="mean", unit=False, ending="jsonl", more=None, **own):
    with tempfile.TemporaryDirectory() as place:
        folder, data, out = (os.path.join(place, n) for n in ("hf", "rows." + ending, "export"))
        model, rows, texts = make_folder(folder, config), make_rows(columns, loss != "multiple_negatives"), len(columns)
        write_rows(data, rows)
        want = train_theirs(model, folder, rows, columns, loss, how, 4, 2)
        section = {"loss": loss, **({"normalize": "yes"} if unit else {}), **own, **(more or {})}
        got, saved, text = train_ours(place, folder, data, 8 * texts, 4 * texts, {"embedding": section})
        off = max(abs(a - b) for a, b in zip(got, want))
        check(f"{name}: losses of 20 AdamW steps are those of {'sentence-transformers' if sentence_transformers else 'torch'} within 2e-4 ({off:.1e})",
              len(got) == STEPS and off <= 2e-4, f"{got}\n# {want}")
        check_export(name, saved, out, how, unit, rows[:6], columns)
        return text


def all_families():
    compare("RoBERTa, cls, triplets", encoder(transformers.RobertaConfig, type_vocab_size=1), ("anchor", "positive", "negative"), how="cls", pooling="cls")
    compare("XLM-RoBERTa, two negatives in CSV, unit vectors", encoder(transformers.XLMRobertaConfig, type_vocab_size=1),
            ("query", "positive", "negative_1", "negative_2"), unit=True, ending="csv")
    compare("DistilBERT, scores", distilbert(), ("sentence1", "sentence2"), loss="cosine")
    compare("ModernBERT", modernbert())
    compare("ModernBERT, the order of scores", modernbert(), ("sentence1", "sentence2"), loss="cosent")
    compare("Qwen3, last token", qwen3(), how="last")
    compare("BERT, named columns", encoder(), ("a", "b", "c", "c_1"), more={"columns": {"anchor": "a", "positive": "b", "negative": "c"}})


def adapters(name, config, targets, how, blocks=2, more={}):
    """LoRA: the merged folder is that of transformers' base model, with trained weights."""
    with tempfile.TemporaryDirectory() as place:
        folder, data, out = (os.path.join(place, n) for n in ("hf", "rows.jsonl", "export"))
        before = make_folder(folder, config)
        rows = make_rows(("anchor", "positive"))
        write_rows(data, rows)
        losses, saved, _ = train_ours(place, folder, data, 16, 8, {"embedding": {}, "lora": {"r": 4, "alpha": 8, "target_modules": targets} | more})
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", out, "--merge")
        again = transformers.AutoModel.from_pretrained(out, dtype=torch.float32).eval()
        state = before.state_dict()
        changed = sorted(k for k, v in again.state_dict().items() if "pooler" not in k and not torch.equal(v, state[k]))
        check(f"{name}: the merged model has changed weights of adapted layers alone",
              len(changed) == blocks * len(targets) and all(any(t in k for t in targets) for k in changed) and losses[-1] < losses[0], f"{changed} {losses}")
        texts = [row["anchor"] for row in rows[:6]]
        lines = os.path.join(place, "lines.txt")
        open(lines, "w").write("".join(t + "\n" for t in texts))
        with torch.no_grad():
            off = far(embed(out, lines), vectors_of(again, out, texts, how).tolist())
        check(f"{name}: dsc embed gives its vectors within 1e-5 ({off:.1e})", off <= 1e-5)
        try:
            import peft
        except ImportError:
            print(f"# {name}: peft is not installed")
            return
        adapter = os.path.join(place, "adapter")
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", adapter)
        loaded = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(folder, dtype=torch.float32), adapter).eval()
        with torch.no_grad():
            off = far(vectors_of(loaded, folder, texts, how).tolist(), vectors_of(again, out, texts, how).tolist())
        check(f"{name}: peft and the merged model give the same vectors within 1e-5 ({off:.1e})", off <= 1e-5)
        further = os.path.join(place, "further")
        os.makedirs(further)
        losses, _, _ = train_ours(further, folder, data, 16, 8, {"embedding": {}, "lora": {"adapter": adapter}}, steps=1)
        rows = [rows[i] for i in range(8)]
        with torch.no_grad():
            want = sum(loss_of("multiple_negatives", [vectors_of(loaded, folder, [r[c] for r in rows[i:i + 4]], how) for c in ("anchor", "positive")],
                               torch.zeros(4)).item() for i in (0, 4)) / 2
        check(f"{name}: a run goes on from the adapter's folder", abs(losses[0] - want) <= 1e-4, f"{losses} {want}")


# ---- evaluation ----

def ranks_of(numbers):
    return [sum(y < x for y in numbers) + (sum(y == x for y in numbers) - 1) / 2 for x in numbers]


def pearson(x, y):
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()


def evaluation():
    """Numbers of the log for triplets, whose micro-batch has 4 rows and the last one fewer, from vectors of `dsc embed`."""
    columns = ("anchor", "positive", "negative")
    with tempfile.TemporaryDirectory() as place:
        folder, data, triplets = (os.path.join(place, n) for n in ("hf", "rows.jsonl", "triplets.jsonl"))
        make_folder(folder, encoder())
        write_rows(data, make_rows(("anchor", "positive")))
        rows = make_rows(columns, seed=8)[:ROWS - 1]
        write_rows(triplets, rows)
        own = {"embedding": {}, "eval_data": triplets, "eval_every": 1}
        _, saved, text = train_ours(place, folder, data, 24, 12, own, ranks=2, steps=1)
        said = [line.split("evaluation: ")[1].strip() for line in text.splitlines() if "evaluation: " in line]
        sides = [torch.nn.functional.normalize(torch.tensor(embed(saved, "--text", c, triplets)), dim=1) for c in columns]
        first = right = 0
        for at in range(0, len(rows), 4):
            a, p, n = (side[at:at + 4] for side in sides)
            cosines = a @ torch.cat([p, n]).T
            first += (cosines.argmax(1) == torch.arange(len(a))).sum().item()
            right += ((a * p).sum(1) > (a * n).sum(1)).sum().item()
        want = [f"recall@1 {first / len(rows):.4f}, {first} of {len(rows)} positives come first in their micro-batch",
                f"accuracy {right / len(rows):.4f}, {right} of {len(rows)} positives come before their row's negatives"]
        check("recall@1 and the accuracy of triplets are those of cosines of dsc embed", said == want, f"{said} {want}")


def same_bits():
    with tempfile.TemporaryDirectory() as place:
        folder, data, scored = (os.path.join(place, n) for n in ("hf", "rows.jsonl", "scored.jsonl"))
        make_folder(folder, encoder())
        write_rows(data, make_rows(("anchor", "positive")))
        write_rows(scored, make_rows(("sentence1", "sentence2"), True, seed=9)[:ROWS - 3])
        offload = {"device": "nvme", "nvme_path": place}
        runs = {"stage 0, 1 rank": (1, {"stage": 0}), "stage 3, 4 ranks": (4, {"stage": 3})}
        if NIGHT:
            runs.update({"stage 1, 2 ranks": (2, {"stage": 1}), "stage 2, 4 ranks": (4, {"stage": 2}), "stage 3, 2 ranks": (2, {"stage": 3}),
                         "stage 2 in host memory, 2 ranks": (2, {"stage": 2, "offload_optimizer": {"device": "cpu"}}),
                         "stage 3 in files, 2 ranks": (2, {"stage": 3, "offload_optimizer": offload, "offload_param": offload})})
        found = {}
        for name, (ranks, zero) in runs.items():
            inner = os.path.join(place, name.replace(" ", "_"))
            os.makedirs(inner)
            own = {"embedding": {}, "eval_data": scored, "eval_every": 4, "data_cache": os.path.join(place, "cache")}
            losses, saved, text = train_ours(inner, folder, data, 16, 4, own, ranks=ranks, steps=4, zero=zero)
            evaluation = [line.split("evaluation: ")[1].strip() for line in text.splitlines() if "evaluation: Spearman" in line]
            found[name] = (losses, tensors_of(saved), evaluation, saved, text)
        first = found["stage 0, 1 rank"]
        for name, (losses, tensors, evaluation, _, _) in found.items():
            same = losses == first[0] and tensors.keys() == first[1].keys() and all(torch.equal(tensors[k], first[1][k]) for k in tensors)
            check(f"{name}: losses, weights and correlations are those of one rank", same and evaluation == first[2] and len(evaluation) == 1,
                  f"{losses} {first[0]} {evaluation} {first[2]}")
        rows = [json.loads(line) for line in open(scored)]
        vectors = [embed(first[3], "--text", c, scored) for c in ("sentence1", "sentence2")]
        cosines = torch.nn.functional.cosine_similarity(torch.tensor(vectors[0]), torch.tensor(vectors[1])).tolist()
        scores = [row["score"] for row in rows]
        want = f"Spearman {pearson(ranks_of(scores), ranks_of(cosines)):.4f}, Pearson {pearson(scores, cosines):.4f} of {len(rows)} scored pairs"
        check("the correlations are those of cosines of dsc embed", first[2] == [want], f"{first[2]} {want}")
        check("the columns are reported", "format texts: anchor, positive" in first[4] and "24 rows of 2 texts" in first[4], first[4][-2500:])


# ---- refused ----

def lines_of_embed(place, folder):
    own, packed = os.path.join(place, "own_tmp"), os.path.join(place, "lines.gz")
    os.makedirs(own)
    with gzip.open(packed, "wt") as f:
        f.write("good\nbad\n")
    want = embed(folder, "-", input="good\nbad\n", env={**os.environ, "TMPDIR": own})
    check("dsc embed reads a text compressed by gzip", len(want) == 2 and embed(folder, packed) == want)
    with open(packed, "r+b") as f:
        f.truncate(15)
    text = run(f"{BIN}/dsc", "embed", "--model", folder, packed, fails=True)
    check("a truncated gzip file is refused in one line", len(text.splitlines()) == 1 and "lines.gz" in text, text)
    text = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input="bad\n", env={**os.environ, "TMPDIR": own + "/none"})
    check("dsc embed keeps lines in TMPDIR", "own_tmp/none" in text and "set TMPDIR" in text, text)
    r, w = os.pipe()
    os.close(r)  # the reader of the vectors is gone
    command = [f"{BIN}/dsc", "embed", "--model", folder, "-"]
    subprocess.run(command, input=b"bad\n" * 2000, stdout=w, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": own}, timeout=60)
    os.close(w)
    check("no lines are left where the output's reader has ended", os.listdir(own) == [], os.listdir(own))
    text = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input='{"title": "bad"}\n')
    check("a missing column names --text", "--text" in text and "dsc.embedding" not in text, text)
    prompts = os.path.join(folder, "config_sentence_transformers.json")
    os.symlink("nothing", prompts)
    text = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input="bad\n")
    check("prompts that are a link to nothing are refused", "config_sentence_transformers.json" in text, text)
    os.unlink(prompts)
    json.dump({"prompts": {"query": "good "}, "default_prompt_name": 5}, open(prompts, "w"))
    text = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input="bad\n")
    check("a default prompt that is no text is refused", "default_prompt_name" in text, text)


def refused_rows():
    good = json.dumps({"anchor": "good fine", "positive": "bad"})
    pair = json.dumps({"sentence1": "good fine", "sentence2": "bad", "score": 0.5})
    cases = {
        "a missing positive": ({}, [good, '{"anchor": "bad"}'], 'line 2: "positive" is missing; expected a text'),
        "a missing anchor": ({}, ['{"positive": "bad"}'], '"anchor" is missing'),
        "an empty text": ({}, [good, '{"anchor": " ", "positive": "bad"}'], 'line 2: "anchor" is an empty text'),
        "a text of another type": ({}, ['{"anchor": ["bad"], "positive": "bad"}'], '"anchor" is of another type'),
        "rows of unequal numbers of texts": ({}, [good, '{"anchor": "bad", "positive": "bad", "negative": "fine"}'],
                                             "line 2 has 3 texts, and the lines before it have 2"),
        "a missing score": ({"loss": "cosine"}, [pair, good], 'line 2: "score" is missing'),
        "a score that is no number": ({"loss": "cosine"}, [pair, '{"sentence1": "bad", "sentence2": "bad", "score": "high"}'],
                                      'line 2: "score" is not a score'),
        "a score without bounds": ({"loss": "cosent"}, ['{"sentence1": "bad", "sentence2": "bad", "score": 1e300}'], "-1e15 to 1e15"),
        "a negative beside a score": ({"loss": "cosine"}, ['{"sentence1": "a", "sentence2": "b", "negative": "c", "score": 1}'], '"negative" is a negative'),
        "a missing named column": ({"columns": {"anchor": "title"}}, [good], '"title" is missing'),
        "plain text": ({}, None, "has no rows of texts"),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = os.path.join(place, "hf")
        make_folder(folder, encoder())
        base = [f"{BIN}/train", "--model", folder, "--seq-len", str(SEQ), "--steps", "1"]
        for i, (name, (section, lines, wanted)) in enumerate(cases.items()):
            data = os.path.join(place, f"{i}.txt" if lines is None else f"{i}.jsonl")
            open(data, "w").write("\n".join(lines or ["plain text"] * 400) + "\n")
            text = run(*base, "--data", data, "--config", write_config(place, 4, 4, {"embedding": section}), fails=True)
            errors = [line for line in text.splitlines() if "error:" in line]
            check(f"{name} is refused in one line", len(errors) == 1 and wanted in errors[0], text[-600:])
        data = os.path.join(place, "good.jsonl")
        open(data, "w").write((good + "\n") * 8)
        text = run(*base, "--data", data, "--config", write_config(place, 3, 3, {"embedding": {}}), fails=True)
        check("a micro-batch that cuts a row is refused", "give a multiple of 2" in text, text)
        lines = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input="good\n\nbad\n")
        check("dsc embed refuses an empty line by its number", "stdin, line 2" in lines and "empty text" in lines, lines)
        lines_of_embed(place, folder)
        json.dump({"prompts": {"query": "good "}, "default_prompt_name": None}, open(os.path.join(folder, "config_sentence_transformers.json"), "w"))
        same = embed(folder, "--prompt-name", "query", "-", input="bad\n") == embed(folder, "-", input='{"text": "good bad"}\n')
        check("a prompt is put before a text", same)
        text = run(f"{BIN}/dsc", "embed", "--model", folder, "--prompt-name", "other", "-", fails=True, input="bad\n")
        check("a prompt that the folder lacks is refused, with those that it has", 'has no prompt "other"; its prompts: query' in text, text)
        modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                   {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
        os.makedirs(os.path.join(folder, "1_Pooling"))
        for what, extra, pooling, wanted in (("a dense layer", [{"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}],
                                              {"pooling_mode": "mean"}, 'module 2 is "Dense"'),
                                             ("pooling by the largest", [], {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
                                             ("a mode of another name", [], {"pooling_mode": "weightedmean"}, '"weightedmean" is not built')):
            json.dump(modules + extra, open(os.path.join(folder, "modules.json"), "w"))
            json.dump(pooling, open(os.path.join(folder, "1_Pooling", "config.json"), "w"))
            text = run(f"{BIN}/dsc", "embed", "--model", folder, "-", fails=True, input="bad\n")
            check(f"{what} is refused by name", wanted in text, text)


text = compare("BERT, pairs", encoder())
same_bits()
refused_rows()
if NIGHT:
    evaluation()
    all_families()
    adapters("adapters of BERT", encoder(), ["query", "value"], "mean")
    adapters("adapters of BERT's first block", encoder(), ["query", "value"], "mean", 1,
             {"layers_to_transform": [0], "rank_pattern": {"bert.encoder.layer.0.attention.self.value": 2}})
    adapters("adapters of Qwen3", qwen3(), ["q_proj", "v_proj"], "last")
print(f"1..{number}")
sys.exit(failed > 0)

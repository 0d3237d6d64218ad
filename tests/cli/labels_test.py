#!/usr/bin/env python3
"""labels_test.py BIN: heads that classify texts, beside transformers: 20 AdamW steps from a folder, on texts of unequal length, and the
export. Also the same bits for other stages, ranks and placements, and rows that are refused. SPDX-License-Identifier: Apache-2.0"""
import csv
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

BIN = sys.argv[1]
STEPS, BATCH, SEQ, ROWS = 20, 4, 24, 50
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

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LETTERS = "abcdefghijklmnopqrst"


def vocabulary(special):
    return special + list(LETTERS) + ["##" + c for c in LETTERS] + ["good", "bad", "fine"]


def template(cls, sep, types):
    def token(name, kind):
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name, kind):
        return {"Sequence": {"id": name, "type_id": kind}}
    ids = {cls: BERT.index(cls), sep: BERT.index(sep)}
    return {"type": "TemplateProcessing", "single": [token(cls, 0), text("A", 0), token(sep, 0)],
            "pair": [token(cls, 0), text("A", 0), token(sep, 0), text("B", types), token(sep, types)],
            "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ids.items()}}


def write_tokenizer(folder, special, processor):
    vocab = vocabulary(special)
    added = [{"id": i, "content": n, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, n in enumerate(special)]
    unknown = special[1] if special is BERT else special[3]
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
               "pre_tokenizer": {"type": "Whitespace"}, "post_processor": processor, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
               "model": {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {t: i for i, t in enumerate(vocab)}}}, open(os.path.join(folder, "tokenizer.json"), "w"))


def sizes(**more):
    return dict(vocab_size=len(vocabulary(BERT)), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **more)


def bert(**more):
    return transformers.BertConfig(**sizes(), pad_token_id=0, **more), BERT, template("[CLS]", "[SEP]", 1)


def roberta(kind=transformers.RobertaConfig, **more):
    processor = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    return kind(**sizes(), pad_token_id=1, type_vocab_size=1, **more), ROBERTA, processor


def distilbert(**more):
    config = transformers.DistilBertConfig(vocab_size=len(vocabulary(BERT)), dim=32, n_layers=2, n_heads=2, hidden_dim=48,
                                           max_position_embeddings=40, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, **more)
    return config, BERT, template("[CLS]", "[SEP]", 0)


def modernbert(**more):
    config = transformers.ModernBertConfig(vocab_size=len(vocabulary(BERT)), hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
                                           intermediate_size=48, max_position_embeddings=40, local_attention=8, pad_token_id=0, bos_token_id=2,
                                           eos_token_id=3, cls_token_id=2, sep_token_id=3, **more)
    return config, BERT, template("[CLS]", "[SEP]", 0)


def llama(kind=transformers.LlamaConfig, **more):
    config = kind(vocab_size=len(vocabulary(BERT)), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                  intermediate_size=48, max_position_embeddings=40, pad_token_id=0, **more)
    return config, BERT, template("[CLS]", "[SEP]", 0)


def make_folder(folder, described):
    """The folder, and transformers' model of it."""
    config, special, processor = described
    os.makedirs(folder)
    torch.manual_seed(3)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder)
    write_tokenizer(folder, special, processor)
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


# ---- rows ----

def words(r, least, most):
    pick = ["good", "bad", "fine"] + ["".join(r.choice(LETTERS) for _ in range(r.randint(1, 4))) for _ in range(6)]
    return " ".join(r.choice(pick) for _ in range(r.randint(least, most)))


def make_rows(labels, pair):
    """Some texts are longer than a sample, some are a word."""
    r, rows = random.Random(5), []
    for i in range(ROWS):
        row = {"sentence1": words(r, 1, 12), "sentence2": words(r, 1, 14)} if pair else {"text": words(r, 1, 16)}
        rows.append({**row, "label": labels(r)})
    return rows


def write_rows(path, rows, names):
    named = [{**r, "label": names[r["label"]]} if names else r for r in rows]
    if path.endswith(".csv"):
        with open(path, "w", newline="") as f:
            out = csv.DictWriter(f, list(named[0]))
            out.writeheader()
            out.writerows(named)
    else:
        with open(path, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in named)


# ---- both trainings ----

def inputs_of(model, folder, rows):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    second = [r["sentence2"] for r in rows] if "sentence2" in rows[0] else None
    out = tokenizer([r["sentence1" if second else "text"] for r in rows], second, truncation=True, max_length=SEQ, padding=True,
                    return_tensors="pt", return_token_type_ids=True)
    if model.config.model_type != "bert":
        out.pop("token_type_ids")
    labels = torch.tensor([r["label"] for r in rows])
    return dict(out), labels


def train_theirs(model, folder, rows):
    model.eval()
    losses, g = [], 0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for _ in range(STEPS):
        some = [rows[(g + i) % len(rows)] for i in range(BATCH)]
        g += BATCH
        inputs, labels = inputs_of(model, folder, some)
        opt.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


def run(*command, fails=False):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"{command[0]} {command[1]}: exit {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def write_config(place, own, zero=None, micro=1, **more):
    path = os.path.join(place, "config.json")
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": micro, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": zero or {"stage": 0}, "dsc": {"data_cache": os.path.join(place, "cache"), **own}, **more}, open(path, "w"))
    return path


def train_ours(place, folder, data, own=None, ranks=2, steps=STEPS, zero=None, micro=2, flags=()):
    log, save = os.path.join(place, "log.jsonl"), os.path.join(place, "save")
    text = run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", write_config(place, own or {}, zero, micro), "--model", folder,
               "--data", data, "--seq-len", str(SEQ), "--no-shuffle", "--steps", str(steps), "--log", log, "--save", save, *flags)
    return [json.loads(line)["loss"] for line in open(log)], os.path.join(save, f"step-{steps}"), text


def tensors_of(folder):
    found = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            found.update(load_file(os.path.join(folder, name)))
    return found


def check_classify(name, model, folder, out, data, rows):
    """Each line of `dsc classify`, and the model of transformers."""
    lines = [json.loads(line) for line in run(f"{BIN}/dsc", "classify", "--model", out, "--max-tokens", str(SEQ), data).splitlines()
             if line.startswith("{")]
    inputs, _ = inputs_of(model, folder, rows)
    with torch.no_grad():
        logits = model.eval()(**inputs).logits
    kind = model.config.problem_type
    if kind == "regression":
        got = [[line["value"]] if "value" in line else line["values"] for line in lines]
        want, same = logits.tolist(), True
    elif kind == "multi_label_classification":
        got, want = [line["probabilities"] for line in lines], logits.sigmoid().tolist()
        names = [[model.config.id2label[i] for i, x in enumerate(row) if x > 0] for row in logits.tolist()]
        same = [line["labels"] for line in lines] == names
    else:
        best = logits.argmax(-1).tolist()
        got, want = [[line["probability"]] for line in lines], [[x] for x in logits.softmax(-1).amax(-1).tolist()]
        same = [(line["class"], line["label"]) for line in lines] == [(b, model.config.id2label[b]) for b in best]
    off = max(abs(a - b) for x, y in zip(got, want) for a, b in zip(x, y))
    check(f"{name}: dsc classify says what transformers says of each row ({off:.1e})", len(lines) == len(rows) and same and off <= 1e-4, lines)


def compare(name, described, labels=lambda r: r.randrange(3), pair=False, names=None, ending="jsonl", own=None):
    with tempfile.TemporaryDirectory() as place:
        folder, data, out = (os.path.join(place, n) for n in ("hf", "rows." + ending, "export"))
        model = make_folder(folder, described)
        rows = make_rows(labels, pair)
        write_rows(data, rows, names)
        want = train_theirs(model, folder, rows)
        got, saved, text = train_ours(place, folder, data, own)
        off = max(abs(a - b) for a, b in zip(got, want))
        check(f"{name}: losses of 20 steps are transformers' within 2e-4 ({off:.1e})", len(got) == STEPS and off <= 2e-4, f"{got}\n# {want}")
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", out)
        again = transformers.AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32)
        files, state = tensors_of(out), again.state_dict()
        same = all(torch.equal(files[k], state[k]) for k in files) and set(files) <= set(state)
        missing = [k for k in state if k not in files and "position_ids" not in k and "inv_freq" not in k]
        check(f"{name}: the export is a {type(model).__name__} of transformers with equal tensors",
              type(again) is type(model) and again.config.architectures == [type(model).__name__] and same and not missing,
              f"{type(again)} {again.config.architectures} {missing}")
        check_classify(name, again, folder, out, data, rows)
        with torch.no_grad():
            inputs, _ = inputs_of(model, folder, rows[:8])
            apart = (again.eval()(**inputs).logits - model(**inputs).logits).abs().max().item()
        check(f"{name}: its logits are those of the model that transformers trained within 1e-3 ({apart:.1e})", apart <= 1e-3)
        return text


CLASSES = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
NAMES = ["bad", "fine", "good"]


def all_families():
    text = compare("BERT", bert(**CLASSES))
    check("the columns and the number of truncated texts are reported", "format labels: text, label" in text and "truncated" in text, text)
    compare("BERT, pairs in CSV by names", bert(**CLASSES), pair=True, names=NAMES, ending="csv")
    compare("BERT, regression", bert(num_labels=1), labels=lambda r: round(r.uniform(-2, 2), 3))
    compare("BERT, a set of classes", bert(num_labels=3, problem_type="multi_label_classification"),
            labels=lambda r: [float(r.randrange(2)) for _ in range(3)])
    compare("RoBERTa, pairs", roberta(**CLASSES), pair=True)
    compare("XLM-RoBERTa, two numbers", roberta(transformers.XLMRobertaConfig, num_labels=2, problem_type="regression"),
            labels=lambda r: [r.random(), r.random()])
    compare("CamemBERT", roberta(transformers.CamembertConfig, **CLASSES), names=NAMES)
    compare("DistilBERT, pairs", distilbert(**CLASSES), pair=True)
    compare("ModernBERT, first token", modernbert(classifier_pooling="cls", **CLASSES))
    compare("ModernBERT, mean", modernbert(classifier_pooling="mean", norm_bias=True, classifier_bias=True, **CLASSES))
    compare("Llama", llama(**CLASSES))
    compare("Qwen2, pairs", llama(transformers.Qwen2Config, **CLASSES), pair=True)
    compare("Mistral, regression", llama(transformers.MistralConfig, num_labels=1), labels=lambda r: r.random())


# ---- words with labels ----

def tokens_model(described, folder):
    config, special, processor = described
    os.makedirs(folder)
    torch.manual_seed(3)
    model = transformers.AutoModelForTokenClassification.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder)
    write_tokenizer(folder, special, processor)
    return transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def token_inputs(model, folder, rows):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    out = tokenizer([r["tokens"] for r in rows], is_split_into_words=True, truncation=True, max_length=SEQ, padding=True, return_tensors="pt",
                    return_token_type_ids=False)
    labels = torch.full(out["input_ids"].shape, -100)
    for i, row in enumerate(rows):
        words = out.word_ids(i)
        for k, word in enumerate(words):
            if word is not None and (k == 0 or words[k - 1] != word):
                labels[i, k] = row["ner_tags"][word]
    return dict(out), labels


def compare_tokens(name, described):
    with tempfile.TemporaryDirectory() as place:
        folder, data, out = (os.path.join(place, n) for n in ("hf", "rows.jsonl", "export"))
        model, r = tokens_model(described, folder), random.Random(5)
        rows = []
        for i in range(ROWS):
            split = words(r, 1, 14).split()
            rows.append({"tokens": split, "ner_tags": [r.choice([0, 1, 2, -100]) if k else r.randrange(3) for k in range(len(split))]})
        write_rows(data, rows, None)
        want, g = [], 0
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
        for _ in range(STEPS):
            inputs, labels = token_inputs(model, folder, [rows[(g + i) % ROWS] for i in range(BATCH)])
            g += BATCH
            opt.zero_grad()
            loss = model(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            want.append(loss.item())
        got, saved, text = train_ours(place, folder, data, {"eval_data": data, "eval_every": STEPS})
        off = max(abs(a - b) for a, b in zip(got, want))
        check(f"{name}: losses of 20 steps on words are transformers' within 2e-4 ({off:.1e})", len(got) == STEPS and off <= 2e-4, f"{got}\n# {want}")
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", out)
        again = transformers.AutoModelForTokenClassification.from_pretrained(out, dtype=torch.float32).eval()
        files, state = tensors_of(out), again.state_dict()
        check(f"{name}: the export is a {type(model).__name__} with equal tensors", again.config.architectures == [type(model).__name__] and
              set(files) <= set(state) and all(torch.equal(files[k], state[k]) for k in files), again.config.architectures)
        inputs, labels = token_inputs(again, folder, rows)
        with torch.no_grad():
            right = (again(**inputs).logits.argmax(-1) == labels).sum().item()
        count = (labels >= 0).sum().item()
        check(f"{name}: the accuracy is that of transformers over all words", f"accuracy {right / count:.4f}, {right} of {count} words" in text,
              f"{right} of {count}: {text[-800:]}")


def all_of_words():
    compare_tokens("BERT", bert(**CLASSES))
    compare_tokens("XLM-RoBERTa", roberta(transformers.XLMRobertaConfig, **CLASSES))
    compare_tokens("DistilBERT", distilbert(**CLASSES))
    compare_tokens("ModernBERT", modernbert(norm_bias=True, **CLASSES))
    compare_tokens("Qwen3", llama(transformers.Qwen3Config, **CLASSES))


def same_bits():
    with tempfile.TemporaryDirectory() as place:
        folder, data = os.path.join(place, "hf"), os.path.join(place, "rows.jsonl")
        make_folder(folder, bert(**CLASSES))
        rows = make_rows(lambda r: r.randrange(3), True)
        write_rows(data, rows, None)
        offload = {"device": "nvme", "nvme_path": place}
        runs = {"stage 0, 1 rank": (1, {"stage": 0}), "stage 1, 2 ranks": (2, {"stage": 1}), "stage 2, 4 ranks": (4, {"stage": 2}),
                "stage 3, 2 ranks": (2, {"stage": 3}), "stage 3, 4 ranks": (4, {"stage": 3}),
                "stage 2 in host memory, 2 ranks": (2, {"stage": 2, "offload_optimizer": {"device": "cpu"}}),
                "stage 3 in files, 2 ranks": (2, {"stage": 3, "offload_optimizer": offload, "offload_param": offload})}
        found = {}
        for name, (ranks, zero) in runs.items():
            inner = os.path.join(place, name.replace(" ", "_"))
            os.makedirs(inner)
            own = {"eval_data": data, "eval_every": 6, "data_cache": os.path.join(place, "cache")}
            losses, saved, text = train_ours(inner, folder, data, own, ranks=ranks, steps=6, zero=zero, micro=1)
            evaluation = [line.split("evaluation: ")[1].strip() for line in text.splitlines() if "evaluation: accuracy" in line]
            found[name] = (losses, tensors_of(saved), evaluation, saved)
        first = found["stage 0, 1 rank"]
        for name, (losses, tensors, evaluation, _) in found.items():
            same = losses == first[0] and tensors.keys() == first[1].keys() and all(torch.equal(tensors[k], first[1][k]) for k in tensors)
            check(f"{name}: losses, weights and accuracy are those of one rank", same and evaluation == first[2] and len(evaluation) == 1,
                  f"{losses} {first[0]} {evaluation} {first[2]}")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(first[3], dtype=torch.float32).eval()
        inputs, labels = inputs_of(model, folder, rows)
        with torch.no_grad():
            right = (model(**inputs).logits.argmax(-1) == labels).sum().item()
        check("the accuracy is that of transformers over all rows", first[2] == [f"accuracy {right / ROWS:.4f}, {right} of {ROWS} samples"],
              f"{first[2]}, {right} of {ROWS}")


def adapters(name, described, targets, head):
    """LoRA, whose head is trained whole as by PEFT: the adapter's folder and the merged model say the same."""
    try:
        import peft
    except ImportError:
        print(f"# {name}: peft is not installed")
        return
    with tempfile.TemporaryDirectory() as place:
        folder, data, out, merged = (os.path.join(place, n) for n in ("hf", "rows.jsonl", "export", "merged"))
        model = make_folder(folder, described)
        rows = make_rows(lambda r: r.randrange(3), False)
        write_rows(data, rows, None)
        _, saved, _ = train_ours(place, folder, data, {"lora": {"r": 4, "alpha": 8, "target_modules": targets}})
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", out)
        run(f"{BIN}/dsc", "ckpt", "export", saved, "--out", merged, "--merge")
        said = json.load(open(os.path.join(out, "adapter_config.json")))
        check(f"{name}: the adapter is for SEQ_CLS, and has the head", said["task_type"] == "SEQ_CLS" and said["modules_to_save"] == [head], said)
        theirs = peft.PeftModel.from_pretrained(model, out).eval()
        whole = transformers.AutoModelForSequenceClassification.from_pretrained(merged, dtype=torch.float32).eval()
        inputs, _ = inputs_of(whole, folder, rows[:8])
        with torch.no_grad():
            off = (theirs(**inputs).logits - whole(**inputs).logits).abs().max().item()
        check(f"{name}: peft and the merged model give the same logits within 1e-5 ({off:.1e})", off <= 1e-5)


def base_folders():
    with tempfile.TemporaryDirectory() as place:
        folder, data = os.path.join(place, "hf"), os.path.join(place, "rows.jsonl")
        make_folder(folder, bert())
        config, special, processor = bert()
        transformers.BertForMaskedLM(config).save_pretrained(folder)
        write_rows(data, make_rows(lambda r: r.randrange(3), False), NAMES)
        own = {"labels": {"names": NAMES}}
        losses, saved, text = train_ours(place, folder, data, own, steps=2)
        fresh = [n for n in ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias") if n not in text]
        check("a folder without the head gets one, whose parameters a warning names", len(losses) == 2 and not fresh, text)
        check("the head for masked tokens is named as lost", "masked language model's head" in text, text)
        said = json.load(open(os.path.join(saved, "config.json")))
        check("a checkpoint's config.json has class, names and problem", said["architectures"] == ["BertForSequenceClassification"] and
              said["id2label"] == {str(i): n for i, n in enumerate(NAMES)} and said["label2id"] == {n: i for i, n in enumerate(NAMES)} and
              said["problem_type"] == "single_label_classification", json.dumps(said))
        base = [f"{BIN}/train", "--model", folder, "--data", data, "--seq-len", str(SEQ), "--steps", "1", "--config"]
        text = run(*base, write_config(place, own), "--strict", fails=True)
        check("--strict refuses a folder without the head", "bert.pooler.dense.weight" in text and "is missing" in text, text)
        text = run(*base, write_config(place, {"labels": {}}), fails=True)
        check("an unknown number of classes is refused", "the number of classes is not known" in text, text)
        text = run(f"{BIN}/train", "--model", "gpt2-nano", "--data", data, "--config", write_config(place, {"labels": {"count": 2}}), fails=True)
        check("a built-in name is refused", "not built for this built-in name" in text, text)


def refused_rows():
    good = json.dumps({"text": "good fine", "label": 1})
    cases = {
        "a class outside of the range": ({}, [good, '{"text": "bad", "label": 3}'], 'line 2: "label" is 3; expected one of 3 classes'),
        "a class below 0": ({}, ['{"text": "bad", "label": -1}'], 'line 1: "label" is -1'),
        "a class that is no whole number": ({}, ['{"text": "bad", "label": 0.5}'], '"label" is 0.5'),
        "an unknown name": ({}, ['{"text": "bad", "label": "worse"}'], '"label" is "worse"'),
        "a missing label": ({}, [good, '{"text": "bad"}'], 'line 2: "label" is missing'),
        "a label that is null": ({}, ['{"text": "bad", "label": null}'], '"label" is missing'),
        "a missing text": ({}, ['{"sentence9": "bad", "label": 1}'], '"text" is missing; expected a text'),
        "a text of another type": ({}, ['{"text": 7, "label": 1}'], '"text" is of another type'),
        "NaN in a regression": ({"num_labels": 1}, ["text,label", "good,1.5", "bad,nan"], '"label" is not a label; expected a number'),
        "an infinite number": ({"num_labels": 1}, ['{"text": "bad", "label": 1e39}'], "expected numbers from -1e15 to 1e15"),
        "a list of another length": ({"problem_type": "multi_label_classification"}, ['{"text": "bad", "label": [1, 0]}'], "a list of 3 numbers"),
        "plain text": ({}, None, "has no rows with labels"),
    }
    with tempfile.TemporaryDirectory() as place:
        for i, (name, (more, lines, wanted)) in enumerate(cases.items()):
            folder = os.path.join(place, str(i))
            data = os.path.join(place, f"{i}.txt" if lines is None else f"{i}.csv" if lines[0].startswith("text,") else f"{i}.jsonl")
            make_folder(folder, bert(**({} if "num_labels" in more else CLASSES), **more))
            open(data, "w").write("\n".join(lines or ["plain text"] * 400) + "\n")
            text = run(f"{BIN}/train", "--model", folder, "--data", data, "--seq-len", str(SEQ), "--steps", "1", "--config",
                       write_config(place, {}), fails=True)
            errors = [line for line in text.splitlines() if "error:" in line]
            check(f"{name} is refused in one line", len(errors) == 1 and wanted in errors[0], text[-600:])


same_bits()
base_folders()
refused_rows()
adapters("adapters of Llama", llama(**CLASSES), ["q_proj", "v_proj"], "score")
adapters("adapters of BERT", bert(**CLASSES), ["query", "value"], "classifier")
adapters("adapters of RoBERTa", roberta(**CLASSES), ["query", "value"], "classifier")
all_of_words()
all_families()
print(f"1..{number}")
sys.exit(failed > 0)

#!/usr/bin/env python3
"""vision_shapes.py BIN: vision transformers as published folders have them, with smaller sizes, against transformers: logits of a picture,
20 AdamW steps from a packed file, the export read back. A CLIP tower has a linear classifier on its pooled output.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import struct
import subprocess
import sys

from hf_runs import BATCH, BIN, STEPS, files_of, load_file, run, run_all, save_file, torch, transformers

CLASSES, MEAN, STD = 5, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def vit(**more):
    return {"architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "encoder_stride": 16, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0, "hidden_size": 48, "id2label": {str(i): f"class {i}" for i in range(CLASSES)},
            "image_size": 24, "initializer_range": 0.02, "intermediate_size": 96, "label2id": {f"class {i}": i for i in range(CLASSES)},
            "layer_norm_eps": 1e-12, "model_type": "vit", "num_attention_heads": 3, "num_channels": 3, "num_hidden_layers": 2,
            "patch_size": 8, "qkv_bias": True, "torch_dtype": "float32", **more}


def clip(**more):
    return {"architectures": ["CLIPVisionModel"], "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "quick_gelu", "hidden_size": 48,
            "id2label": {str(i): f"class {i}" for i in range(CLASSES)}, "label2id": {f"class {i}": i for i in range(CLASSES)},
            "image_size": 24, "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 96, "layer_norm_eps": 1e-05,
            "model_type": "clip_vision_model", "num_attention_heads": 3, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 6,
            "projection_dim": 32, **more}


def dinov2(kind="dinov2", **more):
    name = "Dinov2" if kind == "dinov2" else "Dinov2WithRegisters"
    return {"apply_layernorm": True, "architectures": [f"{name}ForImageClassification"], "attention_probs_dropout_prob": 0.0,
            "drop_path_rate": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 48,
            "id2label": {str(i): f"class {i}" for i in range(CLASSES)}, "label2id": {f"class {i}": i for i in range(CLASSES)},
            "image_size": 28, "initializer_range": 0.02, "layer_norm_eps": 1e-06, "layerscale_value": 1.0, "mlp_ratio": 4,
            "model_type": kind, "num_attention_heads": 3, "num_channels": 3, "num_hidden_layers": 2, "out_features": ["stage2"],
            "out_indices": [2], "patch_size": 14, "qkv_bias": True, "reshape_hidden_states": True, "stage_names": ["stem", "stage1", "stage2"],
            "torch_dtype": "float32", "use_swiglu_ffn": False, **more}


def registers(**more):
    return dinov2("dinov2_with_registers", num_register_tokens=3, **more)


class Tower(torch.nn.Module):
    """CLIP's vision tower with a classifier: names of the tensors are those of an export."""

    def __init__(self, config):
        super().__init__()
        self.vision_model = transformers.CLIPVisionModel(config)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pixel_values):
        return self.classifier(self.vision_model(pixel_values=pixel_values).pooler_output)


def model_of(config):
    made = transformers.AutoConfig.for_model(**config)
    clips = config["model_type"] == "clip_vision_model"
    model = Tower(made) if clips else transformers.AutoModelForImageClassification.from_config(made)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return model


def save_model(model, config, folder):
    if isinstance(model, Tower):
        os.makedirs(folder)
        save_file({k: t.contiguous() for k, t in model.state_dict().items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    else:
        model.save_pretrained(folder)
    json.dump(config, open(f"{folder}/config.json", "w"))
    planes = config["num_channels"]
    json.dump({"do_normalize": True, "image_mean": MEAN[:planes], "image_std": STD[:planes], "rescale_factor": 1 / 255},
              open(f"{folder}/preprocessor_config.json", "w"))


def tensors_of(model, folder):
    """By the names that files have."""
    if isinstance(model, Tower):
        return model.state_dict()
    model.save_pretrained(folder)
    return load_file(f"{folder}/model.safetensors")


def logits_of(model, pixels):
    return model(pixel_values=pixels) if isinstance(model, Tower) else model(pixel_values=pixels).logits


def write_pictures(path, pictures, labels, classes=CLASSES):
    count, height, width, channels = pictures.shape
    with open(path, "wb") as file:
        file.write(b"DSCPIX01" + struct.pack("<q4i32x", count, height, width, channels, classes))
        file.write(struct.pack(f"<{count}i", *labels.tolist()))
        file.write(pictures.numpy().tobytes())


def normalised(pictures):
    planes = pictures.shape[-1]
    scaled = pictures.double() / 255
    return ((scaled - torch.tensor(MEAN[:planes])) / torch.tensor(STD[:planes])).float().permute(0, 3, 1, 2).contiguous()


def train_theirs(model, pixels, labels):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    losses = []
    model.eval()
    for step in range(STEPS):
        at = [n % len(labels) for n in range(step * BATCH, (step + 1) * BATCH)]
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits_of(model, pixels[at]), labels[at])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


def train_ours(hf, data, folder, rate, steps, batch, ranks, *more):
    config, log = f"{folder}/c.json", f"{folder}/log.jsonl"
    json.dump({"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // ranks, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": {"stage": 2}}, open(config, "w"))
    run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", hf, "--data", data, "--no-shuffle",
        "--steps", str(steps), "--log", log, *more)
    return [json.loads(line)["loss"] for line in open(log)]


def check_logits(model, hf, picture, pixels, folder):
    """One picture with each class as its label, at a rate of 0: the losses are minus the log-probabilities."""
    data = f"{folder}/one.pictures"
    write_pictures(data, picture.expand(CLASSES, -1, -1, -1).contiguous(), torch.arange(CLASSES))
    got = train_ours(hf, data, folder, 0.0, CLASSES, 1, 1)
    with torch.no_grad():
        want = -torch.log_softmax(logits_of(model, pixels), -1)[0]
    apart = (torch.tensor(got) - want).abs().max().item()
    assert apart < 1e-4, f"log-probabilities are {apart} apart"
    return apart


def check(config, folder):
    side = config["image_size"] if isinstance(config["image_size"], list) else [config["image_size"]] * 2
    pictures = torch.randint(0, 256, (26, *side, config["num_channels"]), dtype=torch.uint8)
    labels, pixels = torch.randint(0, CLASSES, (26,)), normalised(pictures)
    hf, data, save, out = (f"{folder}/{name}" for name in ("hf", "d.pictures", "save", "export"))
    model = model_of(config)
    save_model(model, config, hf)
    write_pictures(data, pictures, labels)
    logits = check_logits(model, hf, pictures[:1], pixels[:1], folder)
    want = train_theirs(model, pixels, labels)
    got = train_ours(hf, data, folder, 1e-3, STEPS, BATCH, 2, "--save", save)
    off = max(abs(a - b) for a, b in zip(got, want))
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{STEPS}", "--out", out)
    ours, theirs = files_of(out), tensors_of(model, f"{folder}/theirs")
    assert set(ours) == set(theirs), f"tensors differ: {set(ours) ^ set(theirs)}"
    apart = max((ours[k] - theirs[k]).abs().max().item() for k in theirs)
    print(f"# log-probabilities within {logits:.2g}, losses within {off:.2g}, weights within {apart:.2g}, {len(ours)} tensors", flush=True)
    assert len(got) == STEPS and off < 2e-4, f"losses are {off} apart"
    assert apart < 2 * STEPS * 1e-3, f"weights are {apart} apart"
    reload(config, out, ours, folder)


def reload(config, out, ours, folder):
    """What transformers reads of the export, and writes again, is the export."""
    again = f"{folder}/again"
    if config["model_type"] != "clip_vision_model":
        back, info = transformers.AutoModelForImageClassification.from_pretrained(out, output_loading_info=True)
        back.save_pretrained(again)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), f"transformers says {info}"
        saved = load_file(f"{again}/model.safetensors")
    else:
        back, info = transformers.CLIPVisionModel.from_pretrained(out, output_loading_info=True)
        assert not info["missing_keys"] and set(info["unexpected_keys"]) <= {"classifier.weight", "classifier.bias"}, f"it says {info}"
        saved = {f"vision_model.{k}": t for k, t in back.state_dict().items()}
        ours = {k: t for k, t in ours.items() if not k.startswith("classifier.")}
    assert set(ours) == set(saved) and all(torch.equal(ours[k], saved[k]) for k in ours), "what transformers has of our export differs"


def base_alone(folder):
    """A folder of the tower alone, whose classifier begins afresh, is trained; so is a ViT without a classifier."""
    for config in (vit(), clip()):
        hf, data = f"{folder}/{config['model_type']}", f"{folder}/d.pictures"
        model = model_of(config)
        save_model(model, config, hf)
        (model.vision_model if isinstance(model, Tower) else model.vit).save_pretrained(hf)
        json.dump(config, open(f"{hf}/config.json", "w"))
        pictures = torch.randint(0, 256, (8, 24, 24, 3), dtype=torch.uint8)
        write_pictures(data, pictures, torch.randint(0, CLASSES, (8,)))
        losses = train_ours(hf, data, folder, 1e-3, 2, 4, 1)
        assert len(losses) == 2 and all(0 < x < 10 for x in losses), f"losses {losses}"
        done = subprocess.run([f"{BIN}/dsc", "classify", "--model", hf, "--max-tokens", "8", data], capture_output=True, text=True)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, f"texts to a model of pictures: {done}"


def adapters(config, folder):
    """An adapter in peft: the losses' model is that of peft, and an adapter that peft saved goes on. Names are those of files or of
    transformers' modules."""
    import peft
    hf, data = f"{folder}/hf", f"{folder}/d.pictures"
    model, side = model_of(config), config["image_size"]
    save_model(model, config, hf)
    pictures, labels = torch.randint(0, 256, (26, side, side, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (26,))
    write_pictures(data, pictures, labels)
    pixels = normalised(pictures)
    kind = transformers.AutoModelForImageClassification

    def trains(name, lora):
        config, save, out = (f"{folder}/{name}{end}" for end in (".json", "-save", "-out"))
        json.dump({"train_batch_size": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0}},
                   "dsc": {"lora": lora}}, open(config, "w"))
        log = f"{folder}/{name}.jsonl"
        run(f"{BIN}/train", "--config", config, "--model", hf, "--data", data, "--no-shuffle", "--steps", "6", "--log", log, "--save", save)
        run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-6", "--out", out)
        run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-6", "--out", f"{out}-merged", "--merge")
        theirs = peft.PeftModel.from_pretrained(kind.from_pretrained(hf), out).eval()
        merged = kind.from_pretrained(f"{out}-merged").eval()
        with torch.no_grad():
            apart = (logits_of(theirs, pixels) - logits_of(merged, pixels)).abs().max().item()
            moved = (logits_of(merged, pixels) - logits_of(model.eval(), pixels)).abs().max().item()
        print(f"# {name}: logits of peft's model are {apart:.2g} from those of the merged one, training moved them by {moved:.2g}", flush=True)
        assert apart < 1e-4 < moved, f"{name}: {apart} apart, moved by {moved}"
        return theirs, [json.loads(line)["loss"] for line in open(log)]

    theirs, _ = trains("names-of-files", {"r": 4, "target_modules": ["query", "value"], "rank_pattern": {"query": 2}})
    last = "down_proj" if config.get("use_swiglu_ffn") else "fc2"
    trains("names-of-modules", {"r": 4, "target_modules": ["q_proj", "o_proj", last]})
    trains("all-linear", {"r": 2, "target_modules": "all-linear"})
    theirs.save_pretrained(f"{folder}/theirs")
    with torch.no_grad():
        want = torch.nn.functional.cross_entropy(logits_of(theirs, pixels[:BATCH]), labels[:BATCH]).item()
    _, losses = trains("from-peft", {"adapter": f"{folder}/theirs"})
    assert abs(losses[0] - want) < 1e-4, f"the first loss is {losses[0]}, that of peft's model {want}"


def recipe(folder):
    """A recipe of torchvision's references: SGD with momentum, label smoothing, a warm-up and steps of the rate by epochs, no decay of
    norms and biases, 2 ranks. Losses are torch's. The evaluation has top-1, top-5 and a loss without smoothing."""
    classes, epoch, steps, smoothing = 9, 4, 16, 0.1
    config = vit(id2label={str(i): f"c{i}" for i in range(classes)}, label2id={f"c{i}": i for i in range(classes)})
    hf, data, held, log, path = (f"{folder}/{name}" for name in ("hf", "d.pictures", "e.pictures", "log.jsonl", "c.json"))
    model = model_of(config)
    save_model(model, config, hf)
    pictures, labels = torch.randint(0, 256, (epoch * BATCH, 24, 24, 3), dtype=torch.uint8), torch.randint(0, classes, (epoch * BATCH,))
    write_pictures(data, pictures, labels, classes)
    unseen, answers = torch.randint(0, 256, (33, 24, 24, 3), dtype=torch.uint8), torch.randint(0, classes, (33,))
    write_pictures(held, unseen, answers, classes)
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // 2,
               "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}},
               "scheduler": {"type": "StepLR", "params": {"unit": "epoch", "step_size": 1, "gamma": 0.5, "linear_warmup": 1}},
               "dsc": {"label_smoothing": smoothing, "decay_vectors": False, "epochs": steps // epoch, "eval_data": held}}, open(path, "w"))
    done = run(f"{BIN}/dsc-launch", "--num_gpus=2", "train", "--config", path, "--model", hf, "--data", data, "--no-shuffle", "--log", log)
    lines = [json.loads(line) for line in open(log)]
    got, evaluated = [line for line in lines if "loss" in line], [line for line in lines if "eval_step" in line]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.SGD([{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": vectors, "weight_decay": 0}], lr=0.05,
                          momentum=0.9, weight_decay=0.1)
    s = torch.optim.lr_scheduler
    rates = s.SequentialLR(opt, [s.LinearLR(opt, 0.01, total_iters=1), s.StepLR(opt, 1, 0.5)], [1])
    pixels, off = normalised(pictures), 0.0
    for step in range(steps):
        at = [n % len(labels) for n in range(step * BATCH, (step + 1) * BATCH)]
        loss = torch.nn.functional.cross_entropy(logits_of(model, pixels[at]), labels[at], label_smoothing=smoothing)
        off = max(off, abs(loss.item() - got[step]["loss"]), abs(opt.param_groups[0]["lr"] - got[step]["lr"]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % epoch == epoch - 1:
            rates.step()
    with torch.no_grad():
        logits = logits_of(model, normalised(unseen))
        places = (logits > logits.gather(1, answers[:, None])).sum(1)
        want = [(places < k).double().mean().item() for k in (1, 5)] + [torch.nn.functional.cross_entropy(logits, answers).item()]
    have = [evaluated[-1][k] for k in ("eval_accuracy", "eval_accuracy_top5", "eval_loss")]
    apart = max(abs(a - b) for a, b in zip(have, want))
    print(f"# losses and rates within {off:.2g}, accuracies and loss of the evaluation within {apart:.2g}", flush=True)
    assert len(got) == steps and off < 2e-4, f"losses or rates are {off} apart"
    assert apart < 2e-4, f"the evaluation has {have}, torch {want}"
    assert all(line["images_per_s"] > 0 for line in got), "no images_per_s"
    assert " images/s " in done and "tokens/s" not in done and "top-5 accuracy" in done, f"the lines are {done}"


def mixed(folder):
    """MixUp and CutMix with label smoothing, on 1, 2 and 4 ranks of one micro-batch: one set of bits, and torch's losses of the same mix."""
    from mix_reference import mix
    from torchvision.transforms import v2
    steps, batch, micro, smoothing, seed, numbers = 12, 8, 2, 0.1, 42, (0.8, 1.0, 0.9, 0.5)
    config = vit()
    hf, data, path = (f"{folder}/{name}" for name in ("hf", "d.pictures", "c.json"))
    model = model_of(config)
    save_model(model, config, hf)
    pictures, labels = torch.randint(0, 256, (40, 24, 24, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (40,))
    write_pictures(data, pictures, labels)
    runs = []
    for ranks in (1, 2, 4):
        json.dump({"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro, "seed": seed, "zero_optimization": {"stage": 2},
                   "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
                   "dsc": {"reproducible": "world_size", "label_smoothing": smoothing, "images": dict(zip(("mixup", "cutmix", "mixup_prob", "mixup_switch_prob"), numbers))}},
                  open(path, "w"))
        log, save = f"{folder}/log{ranks}.jsonl", f"{folder}/save{ranks}"
        run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", path, "--model", hf, "--data", data, "--no-shuffle", "--log", log,
            "--steps", str(steps), "--save", save)
        runs.append(([json.loads(line)["loss"] for line in open(log)], run(f"{BIN}/dsc", "ckpt", "hash", f"{save}/step-{steps}")))
    assert runs[0] == runs[1] == runs[2], "1, 2 and 4 ranks differ"
    opt, pixels, off, kinds = torch.optim.SGD(model.parameters(), lr=0.05), normalised(pictures), 0.0, set()
    add, cut = v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)
    for step in range(steps):
        opt.zero_grad()
        total = 0.0
        for first in range(step * batch, (step + 1) * batch, micro):
            at = [n % len(labels) for n in range(first, first + micro)]
            share, box = mix(*numbers, seed, first, 24, 24)
            kinds.add("none" if share == 0 else "cut" if box else "add")
            theirs, params = (cut, {"box": box, "lam_adjusted": 1 - share}) if box else (add, {"lam": 1 - share})
            params.update(labels=labels[at], batch_size=micro)
            x, soft = (theirs.transform(each, params) for each in (pixels[at], params["labels"]))
            loss = torch.nn.functional.cross_entropy(logits_of(model, x), soft, label_smoothing=smoothing) * micro / batch
            loss.backward()
            total += loss.item()
        opt.step()
        off = max(off, abs(total - runs[0][0][step]))
    print(f"# losses within {off:.2g} of torch's, with {sorted(kinds)}", flush=True)
    assert off < 5e-5 and len(kinds) == 3, f"losses are {off} apart, {kinds}"


def averaged(folder):
    """dsc.ema beside torch.optim.swa_utils.AveragedModel: losses of evaluations, and the exported averages, on 2 ranks of stage 2."""
    steps, decay = 10, 0.8
    config = vit()
    hf, data, held, log, path = (f"{folder}/{name}" for name in ("hf", "d.pictures", "e.pictures", "log.jsonl", "c.json"))
    model = model_of(config)
    save_model(model, config, hf)
    pictures, labels = torch.randint(0, 256, (steps * BATCH, 24, 24, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (steps * BATCH,))
    write_pictures(data, pictures, labels)
    unseen, answers = torch.randint(0, 256, (9, 24, 24, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (9,))
    write_pictures(held, unseen, answers)
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // 2, "zero_optimization": {"stage": 2},
               "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
               "dsc": {"ema": {"decay": decay}, "eval_data": held, "eval_every": 1}}, open(path, "w"))
    run(f"{BIN}/dsc-launch", "--num_gpus=2", "train", "--config", path, "--model", hf, "--data", data, "--no-shuffle", "--log", log, "--save", f"{folder}/save")
    run(f"{BIN}/dsc", "ckpt", "export", f"{folder}/save/step-{steps}", "--out", f"{folder}/ema", "--ema")
    got = [json.loads(line)["eval_loss"] for line in open(log) if "eval_step" in line]
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    opt, pixels, off = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), normalised(pictures), 0.0
    for step in range(steps):
        at = slice(step * BATCH, (step + 1) * BATCH)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(logits_of(model, pixels[at]), labels[at]).backward()
        opt.step()
        ema.update_parameters(model)
        with torch.no_grad():
            off = max(off, abs(torch.nn.functional.cross_entropy(logits_of(ema.module, normalised(unseen)), answers).item() - got[step]))
    ours = load_file(f"{folder}/ema/model.safetensors")
    apart = max((ours[name] - t).abs().max().item() for name, t in tensors_of(ema.module, f"{folder}/theirs").items())
    moved = max((ours[name] - t).abs().max().item() for name, t in tensors_of(model, f"{folder}/live").items())
    print(f"# losses of the averages within {off:.2g}, averages within {apart:.2g}; the weights are {moved:.2g} away", flush=True)
    assert len(got) == steps and off < 5e-5 and apart < 5e-6 < moved, f"{off} {apart} {moved}"


def has_peft():
    try:
        import peft
        return bool(peft)
    except ImportError:
        return False


CASES = [("ViT", vit()), ("ViT without biases of q, k and v", vit(qkv_bias=False, hidden_act="gelu_new", num_hidden_layers=3)),
         ("ViT of a gray picture that no patches cover whole", vit(num_channels=1, image_size=[26, 35], patch_size=8)),
         ("ViT with one patch", vit(image_size=8, layer_norm_eps=1e-6)), ("CLIP's vision tower", clip()),
         ("DINOv2", dinov2()), ("DINOv2 with a gated MLP", dinov2(use_swiglu_ffn=True, image_size=[28, 28], patch_size=7, qkv_bias=False)),
         ("DINOv2 with registers", registers()), ("DINOv2 without a mask token", dinov2(use_mask_token=False, mlp_ratio=3, hidden_act="gelu_new")),
         ("CLIP's vision tower with gelu", clip(hidden_act="gelu", num_channels=3, image_size=32, patch_size=16, num_hidden_layers=3))]

chosen = os.environ.get("DSC_TEST_NAMES")
TESTS = [(name, check, (config,)) for name, config in CASES] + [("folders without a classifier", base_alone, ()), ("a recipe of torchvision", recipe, ()),
    ("pictures mixed as by torchvision", mixed, ()), ("averages of weights as by AveragedModel", averaged, ()),
    *((f"adapters in peft of {name}", adapters if has_peft() else None, (config,) if has_peft() else "peft is not installed")
      for name, config in (("ViT", vit()), ("DINOv2", dinov2()), ("DINOv2 with a gated MLP", registers(use_swiglu_ffn=True))))]
sys.exit(run_all([t for t in TESTS if chosen is None or t[0] in chosen.split(",")]))

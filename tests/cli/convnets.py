"""convnets.py BIN: convolutional networks against torchvision, timm and transformers.

Weights and running statistics are random and come from a file. Losses of training and of evaluation, 20 steps of SGD and AdamW, running
statistics and the export are those of torchvision. DSC_TEST_NIGHT=1 runs every architecture. SPDX-License-Identifier: Apache-2.0"""
import copy
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import PIL.Image
import torch
import torchvision
from safetensors.torch import load_file, save_file

try:
    import timm
    from timm.models._hub import save_config_for_hf
except ImportError:
    timm = None
try:
    import transformers
except ImportError:
    transformers = None

BIN, CLASSES, STEPS, BATCH = sys.argv[1], 7, 20, 8
BOUND = 2e-4  # of losses over 20 steps
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
torch.manual_seed(1)


class BasicCnn(torch.nn.Module):
    """The network of pytorch/examples/mnist, for a side of the picture."""

    def __init__(self, planes, side, drop=(0.0, 0.0)):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(planes, 32, 3, 1)
        self.conv2 = torch.nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = torch.nn.Dropout(drop[0]), torch.nn.Dropout(drop[1])
        self.fc1 = torch.nn.Linear(64 * ((side - 4) // 2) ** 2, 128)
        self.fc2 = torch.nn.Linear(128, CLASSES)

    def forward(self, x):
        x = torch.nn.functional.relu(self.conv2(torch.nn.functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(torch.nn.functional.max_pool2d(x, 2)), 1)
        return self.fc2(self.dropout2(torch.nn.functional.relu(self.fc1(x))))


class Ensemble(torch.nn.Module):
    """Networks of the same pictures. Their logits are averaged."""

    def __init__(self, names, planes, side):
        super().__init__()
        self.members = torch.nn.ModuleList(BasicCnn(planes, side) if name == "basic_cnn" else built(name, planes, side) for name in names)

    def forward(self, x):
        return torch.stack([member(x) for member in self.members]).mean(0)


class CnnLstm(torch.nn.Module):
    """Three convolutions for each frame, and an LSTM over the frames. The frames of a picture lie below one another."""

    def __init__(self, planes, frames, hidden_size, num_layers):
        super().__init__()
        self.frames = frames
        self.conv1, self.bn1 = torch.nn.Conv2d(planes, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32)
        self.conv2, self.bn2 = torch.nn.Conv2d(32, 64, 3, padding=1, bias=False), torch.nn.BatchNorm2d(64)
        self.conv3, self.bn3 = torch.nn.Conv2d(64, 128, 3, padding=1, bias=False), torch.nn.BatchNorm2d(128)
        self.lstm = torch.nn.LSTM(128, hidden_size, num_layers, batch_first=True)
        self.fc = torch.nn.Linear(hidden_size, CLASSES)

    def forward(self, x):
        frames = x.unflatten(2, (self.frames, -1)).transpose(1, 2)
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(frames.flatten(0, 1)))), 2)
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn2(self.conv2(x))), 2)
        x = torch.relu(self.bn3(self.conv3(x))).mean((2, 3))
        return self.fc(self.lstm(x.unflatten(0, (-1, self.frames)))[0][:, -1])


SEQUENCES = {"cnn_lstm": dict(frames=4, hidden_size=256, num_layers=1), "cnn_lstm-deep": dict(frames=8, hidden_size=40, num_layers=2)}
HF = {"resnet-bottleneck": dict(depths=[2, 1, 1, 1], hidden_sizes=[64, 128, 256, 512], embedding_size=32),
      "resnet-basic": dict(depths=[1, 2, 1, 1], hidden_sizes=[32, 64, 96, 128], embedding_size=32, layer_type="basic"),
      "resnet-early": dict(depths=[1, 1], hidden_sizes=[64, 128], embedding_size=32, downsample_in_bottleneck=True, downsample_in_first_stage=True)}


def built(name, planes, side):
    """A model of torchvision; of timm ("timm:NAME"); of transformers ("hf:NAME"); or several of torchvision ("ensemble:NAME+NAME")."""
    kind, _, rest = name.rpartition(":")
    if kind == "ensemble":
        return Ensemble(rest.split("+"), planes, side)
    if kind == "timm":
        return timm.create_model(rest, num_classes=CLASSES, in_chans=planes)
    if kind == "hf" and rest == "vit":
        return transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=side, patch_size=8, num_channels=planes,
            num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager"))
    if kind == "hf":
        return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_channels=planes, num_labels=CLASSES, **HF[rest]))
    if name in SEQUENCES:
        return CnnLstm(planes, **SEQUENCES[name])
    if name == "resnet18_cifar":
        model = torchvision.models.resnet18(num_classes=CLASSES)
        model.conv1, model.maxpool = torch.nn.Conv2d(planes, 64, 3, padding=1, bias=False), torch.nn.Identity()
        return model
    if name.startswith("vit_"):
        return getattr(torchvision.models, name)(num_classes=CLASSES, image_size=side)
    return getattr(torchvision.models, name)(num_classes=CLASSES, **({"init_weights": True} if name.startswith("vgg") else {}))


def model_of(name, planes, side):
    """The model of that name, without dropout and drop path, with random weights and statistics."""
    if name == "basic_cnn":
        return BasicCnn(planes, side)
    model = built(name, planes, side)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(module, torchvision.ops.StochasticDepth):
                module.p = 0.0
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.7, 1.3)
                module.bias.normal_(0, 0.1)
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.7, 1.5)
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.normal_(0, module.in_features ** -0.5)
                module.bias.normal_(0, 0.1)
    return model


def state_of(model):
    """Tensors by the names of files, which transformers' modules may have otherwise."""
    if not hasattr(model, "save_pretrained") or transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return {k: t.contiguous() for k, t in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def save_model(model, name, planes, side, folder):
    os.makedirs(folder)
    save_file(state_of(model), f"{folder}/model.safetensors", metadata={"format": "pt"})
    if name.startswith("timm:"):
        save_config_for_hf(model, f"{folder}/config.json", data_config={"input_size": (planes, side, side), "mean": tuple(MEAN[:planes]),
                                                                         "std": tuple(STD[:planes])})
        return
    if name.startswith("hf:"):
        json.dump({**model.config.to_dict(), "model_type": model.config.model_type}, open(f"{folder}/config.json", "w"))
    else:
        kind, _, members = name.rpartition(":")
        parts = {"members": members.split("+")} if kind == "ensemble" else SEQUENCES.get(name, {})
        json.dump({"architecture": kind or name.partition("-")[0], **parts, "num_classes": CLASSES, "drop_rate": 0.0, "drop_path_rate": 0.0,
                   "pretrained_cfg": {"input_size": [planes, side, side]}}, open(f"{folder}/config.json", "w"))
    json.dump({"do_normalize": True, "image_mean": MEAN[:planes], "image_std": STD[:planes], "rescale_factor": 1 / 255},
              open(f"{folder}/preprocessor_config.json", "w"))


def write_pictures(path, pictures, labels):
    count, height, width, channels = pictures.shape
    with open(path, "wb") as file:
        file.write(b"DSCPIX01" + struct.pack("<q4i32x", count, height, width, channels, CLASSES))
        file.write(struct.pack(f"<{count}i", *labels.tolist()))
        file.write(pictures.numpy().tobytes())


def normalised(pictures):
    planes = pictures.shape[-1]
    scaled = pictures.double() / 255
    return ((scaled - torch.tensor(MEAN[:planes])) / torch.tensor(STD[:planes])).float().permute(0, 3, 1, 2).contiguous()


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} {command[1]}: exit {done.returncode}: {done.stdout[-800:]}")
    return done.stdout


def optimizer_of(kind, rate):
    if kind == "SGD":
        return {"type": "SGD", "params": {"lr": rate, "momentum": 0.9, "weight_decay": 1e-4}}
    return {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.05}}


def train_ours(model, data, folder, optimizer, steps, ranks, *more, dsc=None, batch=BATCH):
    """Losses of training, the loss of an evaluation, and the export. A micro-batch is half a batch."""
    config, log, save, out = (f"{folder}/{name}" for name in ("c.json", "log.jsonl", "save", "export"))
    for path in (log, save, out):
        shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)
    json.dump({"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // 2, "optimizer": optimizer,
               "zero_optimization": {"stage": 2 if ranks > 1 else 0}, "dsc": dsc or {}}, open(config, "w"))
    said = run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", model, "--data", data, "--no-shuffle",
               "--steps", str(steps), "--log", log, "--save", save, *more)
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{steps}", "--out", out)
    train_ours.said = said
    losses = [row["loss"] for row in map(json.loads, open(log)) if "loss" in row]
    evaluated = [float(text) for text in re.findall(r"validation loss ([0-9.]+)", said)]
    return losses, evaluated, load_file(f"{out}/model.safetensors")


def scores(model, pixels):
    out = model(pixels)
    return out if isinstance(out, torch.Tensor) else out.logits


def train_theirs(model, pixels, labels, optimizer, steps, prepare=lambda model: None, parts=2, after=lambda model: None, batch=BATCH):
    kind = torch.optim.SGD if optimizer["type"] == "SGD" else torch.optim.AdamW
    opt = kind(model.parameters(), **{k: tuple(v) if isinstance(v, list) else v for k, v in optimizer["params"].items()})
    losses = []
    model.train()
    prepare(model)
    for step in range(steps):
        opt.zero_grad()
        total = 0
        for part in range(parts):
            at = [(step * batch + part * batch // parts + n) % len(labels) for n in range(batch // parts)]
            loss = torch.nn.functional.cross_entropy(scores(model, pixels[at]), labels[at]) / parts
            loss.backward()
            total += loss.item()
        opt.step()
        after(model)
        losses.append(total)
    return losses


def furthest(ours, theirs):
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    worst = max((ours[k].double() - theirs[k].double()).abs().max().item() / max(1.0, theirs[k].double().abs().max().item())
                for k in theirs)  # running variances of deep layers are far above 1
    assert all(ours[k].shape == theirs[k].shape for k in theirs), "shapes of tensors differ"
    return worst


def made(name, planes, side, count, folder, bounded=False):
    pictures, labels = torch.randint(0, 256, (count, side, side, planes), dtype=torch.uint8), torch.randint(0, CLASSES, (count,))
    model, data, hf = model_of(name, planes, side), f"{folder}/d.pictures", f"{folder}/{name.replace(':', '-')}"
    if bounded:
        bound_logits(model, normalised(pictures))
    save_model(model, name, planes, side, hf)
    write_pictures(data, pictures, labels)
    return model, hf, data, normalised(pictures), labels


def bound_logits(model, pixels):
    """Deep networks of random weights and statistics have logits of hundreds, and all probabilities but one are 0: the last layer is
    scaled so that the largest logit is 8."""
    model.eval()
    with torch.no_grad():
        largest = scores(model, pixels[:BATCH]).abs().max().item()
        last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
        if largest > 8 and math.isfinite(largest):
            last.weight.mul_(8 / largest)
            last.bias.mul_(8 / largest)
    model.train()


def own_size(name, side):
    """transformers' ResNet says no size of pictures, which are 224 pixels then."""
    return {"image_size": side} if name.startswith("hf:resnet") else {}


def classified(hf, data):
    """Logarithms of all probabilities of each picture, which are the logits less a number of the picture."""
    rows = [json.loads(line)["top"] for line in run(f"{BIN}/dsc", "classify", "--model", hf, data, "--top", str(CLASSES)).splitlines()
            if line.startswith("{")]
    assert all(len(row) == CLASSES for row in rows), f"probabilities are missing: {rows[0]}"
    return torch.tensor([[one["probability"] for one in sorted(row, key=lambda one: one["class"])] for row in rows], dtype=torch.double).log()


def logits(name, planes, side, folder):
    """Logits by the random weights and statistics of the file. A step at a rate of 0 changes the running statistics alone. Then an
    evaluation has the losses of both. PyTorch computes in double, and its fp32 statistics say what rounding of deep layers amounts to."""
    model, hf, data, pixels, labels = made(name, planes, side, BATCH, folder, bounded=True)
    exact, furthest_logit = copy.deepcopy(model).double(), 0.0
    if not own_size(name, side):
        exact.eval()
        with torch.no_grad():
            furthest_logit = (classified(hf, data) - torch.log_softmax(scores(exact, pixels.double()), 1)).abs().max().item()
    got, evaluated, ours = train_ours(hf, data, folder, optimizer_of("SGD", 0.0), 1, 1, "--eval-data", data, dsc=own_size(name, side))
    want = train_theirs(exact, pixels.double(), labels, optimizer_of("SGD", 0.0), 1)
    train_theirs(model, pixels, labels, optimizer_of("SGD", 0.0), 1)
    exact.eval()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(scores(exact, pixels.double()), labels).item()
    apart, usually = (furthest(state, state_of(exact)) for state in (ours, state_of(model)))
    off, eval_off = abs(got[0] - want[0]), abs(evaluated[-1] - wanted)
    seen = "not seen" if own_size(name, side) else f"within {furthest_logit:.2g}"
    print(f"# {name}: logits {seen}, losses {off:.2g}, of an evaluation {eval_off:.2g}, tensors {apart:.2g} "
          f"(PyTorch's {usually:.2g})", flush=True)
    assert furthest_logit < 1e-4, f"logits are {furthest_logit} apart"
    assert off < 1e-4 * max(1, want[0]) and eval_off < 1e-4 * max(1, wanted), f"losses {got} {evaluated}, expected {want} {wanted}"
    assert apart < max(1e-4, 2 * usually), f"tensors are {apart} apart, PyTorch's {usually}"


def synchronized(name, planes, side, kind, ranks, folder):
    """Batch norms over two micro-batches are those of PyTorch over the whole batch, whatever shares the micro-batches."""
    steps(name, planes, side, kind, ranks, folder, {"batch_norm": {"synchronized": 2}}, 1)


def conditions(name, side, kind):
    """Pictures of a batch and a rate at which PyTorch in fp32 stays within half the bound of its run in double. Batch norms behind ReLUs
    multiply rounding from layer to layer and from step to step: at 1e-3 and batches of 8 PyTorch's own losses of MobileNet are 0.7 apart."""
    if "mobilenet_v3" in name:
        return 16, 1e-5
    if "mobilenet" in name:
        return (32, {"SGD": 1e-8, "AdamW": 1e-7}[kind]) if side < 64 else (16, 1e-7)
    if "resnet" in name:
        return (32, {"SGD": 1e-6, "AdamW": 1e-6}[kind]) if side < 64 else (16, {"SGD": 2e-6, "AdamW": 1e-6}[kind])
    if "efficientnet" in name:
        return BATCH, {"SGD": 1e-5, "AdamW": 1e-6}[kind]
    return BATCH, {"SGD": 1e-3, "AdamW": 1e-4}[kind]


def steps(name, planes, side, kind, ranks, folder, dsc=None, parts=2):
    """Losses are those of PyTorch in double, and the run without updates has others. Weights and statistics change as far from double as
    PyTorch's in fp32: a small rate changes the last digits of weights."""
    batch, rate = conditions(name, side, kind)
    model, hf, data, pixels, labels = made(name, planes, side, 3 * batch + 2, folder)
    exact, still, before = copy.deepcopy(model).double(), copy.deepcopy(model), {k: t.double() for k, t in model.state_dict().items()}
    optimizer = optimizer_of(kind, rate)
    got, _, ours = train_ours(hf, data, folder, optimizer, STEPS, ranks, dsc=dsc, batch=batch)
    want = train_theirs(model, pixels, labels, optimizer, STEPS, parts=parts, batch=batch)
    right = train_theirs(exact, pixels.double(), labels, optimizer, STEPS, parts=parts, batch=batch)
    unmoved = train_theirs(still, pixels, labels, optimizer_of(kind, 0.0), STEPS, parts=parts, batch=batch)
    off, usual, moved = (max(abs(a - b) for a, b in zip(losses, right)) for losses in (got, want, unmoved))
    shares = [[distance(state, exact.state_dict(), before, kinds) for state in (ours, model.state_dict())]
              for kinds in ({k for k, _ in model.named_parameters()}, {k for k in ours if "running" in k})]
    print(f"# {name} {kind} {rate:g}, batches of {batch}: losses within {off:.2g} of double, PyTorch's within {usual:.2g}, without updates {moved:.2g}; "
          f"changes of weights {shares[0][0]:.2g}, {shares[0][1]:.2g}, of statistics {shares[1][0]:.2g}, {shares[1][1]:.2g}", flush=True)
    assert len(got) == STEPS and off < BOUND, f"losses are {off} apart: {got} {right}"
    assert moved > 10 * BOUND, f"updates change the losses by {moved} alone"
    assert all(mine < max(BOUND, 2 * theirs) for mine, theirs in shares), f"changes of weights and statistics are {shares} apart"
    again = model_of(name, planes, side)
    again.load_state_dict(ours)
    assert all(torch.equal(ours[k], t) for k, t in again.state_dict().items()), "what torch has of the export differs"


def distance(ours, theirs, before, names):
    """Of all changes of these tensors, the share that differs: a norm of differences by the norm of changes."""
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    assert all(ours[k].shape == theirs[k].shape for k in theirs), "shapes of tensors differ"
    wrong = sum(((ours[k].double() - theirs[k].double()) ** 2).sum().item() for k in names)
    change = sum(((theirs[k].double() - before[k]) ** 2).sum().item() for k in names)
    return (wrong / change) ** 0.5 if change > 0 else wrong


def averaged(name, planes, side, buffers, ranks, folder):
    """dsc.ema beside torch's AveragedModel: averages of weights, and with `buffers` of running statistics, in evaluations and exports."""
    decay, kept = 0.7, f"{folder}/averages"
    model, hf, data, pixels, labels = made(name, planes, side, 26, folder)
    optimizer = optimizer_of("SGD", 1e-3)
    _, evaluated, live = train_ours(hf, data, folder, optimizer, 6, ranks, "--eval-data", data, dsc={"ema": {"decay": decay, "buffers": buffers}})
    run(f"{BIN}/dsc", "ckpt", "export", f"{folder}/save/step-6", "--out", kept, "--ema")
    ours = load_file(f"{kept}/model.safetensors")
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay), use_buffers=buffers)
    train_theirs(model, pixels, labels, optimizer, 6, after=ema.update_parameters)
    counts = {k: t for k, t in model.state_dict().items() if k.endswith("num_batches_tracked")}
    ema.module.load_state_dict(counts, strict=False)  # torch averages numbers of batches too, and cuts them to whole ones
    statistics = [k for k in ours if "running" in k]
    ema.module.eval()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(scores(ema.module, pixels), labels).item()
    apart, off = furthest(ours, ema.module.state_dict()), abs(evaluated[-1] - wanted)
    moved = max((ours[k] - live[k]).abs().max().item() for k in statistics)
    print(f"# {name}: averages within {apart:.2g}, losses of an evaluation {off:.2g}; statistics of the run are {moved:.2g} away", flush=True)
    assert apart < 2e-5 and off < 1e-4 and (moved > 1e-3) == buffers, f"averages are {apart} apart, losses {off}, statistics moved by {moved}"
    again, _, _ = train_ours(f"{folder}/save/step-6", data, kept, optimizer, 1, 1)  # begins at the weights and statistics, not at averages
    want = train_theirs(model, pixels, labels, optimizer, 1)
    assert abs(again[0] - want[0]) < 1e-4, f"a run from the checkpoint's weights begins with {again}, expected {want}"


def finetuned(name, freeze, planes, side, folder):
    """A folder of 7 classes begins a run of 3 with a new classifier. Frozen layers keep weights and statistics, and all else learns as in
    PyTorch, whose frozen batch norms are in evaluation mode."""
    global CLASSES
    model, hf, data, pixels, labels = made(name, planes, side, 26, folder)
    before = copy.deepcopy(state_of(model))
    CLASSES = 3
    try:
        small = model_of(name, planes, side)
        labels = labels % CLASSES
        write_pictures(data, torch.randint(0, 256, (26, side, side, planes), dtype=torch.uint8), labels)
        file = open(data, "rb").read()
        pixels = normalised(torch.frombuffer(bytearray(file[64 + 4 * 26:]), dtype=torch.uint8).reshape(26, side, side, planes))
        keys = {"image_classes": CLASSES, "freeze": freeze, "freeze_batch_norm": True, **own_size(name, side)}
        if "vit" in name:
            del keys["freeze_batch_norm"]
        _, _, first = train_ours(hf, data, folder, optimizer_of("SGD", 0.0), 1, 1, dsc=keys)
        head = {k for k in first if first[k].shape != before[k].shape}
        assert len(head) == 2 and train_ours.said.count("new classifier of 3 classes") == 1, f"new tensors are {head}: {train_ours.said[:400]}"
        assert all(torch.equal(first[k], before[k]) for k in first if k not in head and "running" not in k and "num_b" not in k), "weights of the folder changed"
        if name.startswith("hf:"):
            small = type(small).from_pretrained(f"{folder}/export", attn_implementation="eager")
            small.load_state_dict({k: t for k, t in before.items() if "running" in k or "num_b" in k}, strict=False)
        else:
            small.load_state_dict({**before, **{k: first[k] for k in head}})
        optimizer = optimizer_of("SGD", 1e-3)
        got, _, ours = train_ours(hf, data, folder, optimizer, 3, 2, dsc=keys)
        fits = [re.compile(f.replace(".", r"\.").replace("*", ".*") + "$") for f in freeze]
        frozen = {k for k, _ in small.named_parameters() if any(f.match(k) for f in fits)}

        def prepare(model):
            for k, p in model.named_parameters():
                p.requires_grad_(k not in frozen)
            for k, module in model.named_modules():
                if isinstance(module, torch.nn.BatchNorm2d) and f"{k}.weight" in frozen:
                    module.eval()
        want = train_theirs(small, pixels, labels, optimizer, 3, prepare)
        off, apart = max(abs(a - b) for a, b in zip(got, want)), furthest(ours, state_of(small))
        print(f"# {name}: {len(frozen)} frozen parameters, losses within {off:.2g}, tensors within {apart:.2g}", flush=True)
        assert off < 2e-4 and apart < 2e-4 and len(frozen) > 0, f"losses {got}, expected {want}; tensors {apart} apart"
        for k in before:
            same = torch.equal(ours[k], before[k]) if k not in head else False
            assert same or not any(k.startswith(f.rpartition(".")[0]) for f in frozen), f"{k} is frozen and changed"
        config = json.load(open(f"{folder}/export/config.json"))
        assert len(config["id2label"]) == 3 if "model_type" in config else config["num_classes"] == 3, f"config.json is {config}"
        if name.startswith("hf:"):
            again = type(small).from_pretrained(f"{folder}/export")
            assert all(torch.equal(ours[k], t) for k, t in state_of(again).items()), "what transformers loads differs"
    finally:
        CLASSES = 7


def named(name, peer, folder):
    """A built-in name has the sizes of the data, a key others, and its first values have torch's deviations."""
    data = f"{folder}/d.pictures"
    write_pictures(data, torch.randint(0, 256, (BATCH, 32, 32, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (BATCH,)))
    _, _, ours = train_ours(name, data, folder, optimizer_of("SGD", 0.0), 1, 1)
    theirs = built(peer, 3, 32).state_dict()
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    for k, t in theirs.items():
        if t.dim() > 1:
            a, b = ours[k].std().item(), t.std().item()
            assert ours[k].shape == t.shape and abs(a - b) < 0.1 * b, f"{k}: deviation {a}, torchvision's is {b}"
    config = json.load(open(f"{folder}/export/config.json"))
    assert config["num_classes"] == CLASSES and config["image_size"] == [32, 32] and config["num_channels"] == 3, f"config.json is {config}"


def transformed(name, cfg, folder):
    """Pictures of other sizes are brought to the model's as timm's create_transform does by the same "pretrained_cfg"."""
    model, photos = model_of(name, 3, 96), f"{folder}/photos"
    save_model(model, name, 3, 96, f"{folder}/hf")
    config = json.load(open(f"{folder}/hf/config.json"))
    config["pretrained_cfg"] = {**config["pretrained_cfg"], **cfg}
    json.dump(config, open(f"{folder}/hf/config.json", "w"))
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=config["pretrained_cfg"]))
    os.makedirs(photos)
    pixels = []
    for number, size in enumerate([(160, 131), (97, 240), (300, 300)]):
        picture = PIL.Image.fromarray(torch.nn.functional.interpolate(torch.rand(1, 3, 12, 12), size, mode="bicubic")[0].mul(255).clamp(0, 255)
                                      .byte().permute(1, 2, 0).numpy())
        picture.save(f"{photos}/{number}.png")
        pixels.append(transform(picture))
    model.double().eval()
    with torch.no_grad():
        want = torch.log_softmax(model(torch.stack(pixels).double()), 1)
    off = (classified(f"{folder}/hf", photos) - want).abs().max().item()
    print(f"# {name}, {cfg}: logits within {off:.2g}", flush=True)
    assert off < 1e-4, f"logits are {off} apart"


def refused(folder):
    """Configs and folders that are something else, each with one line that names it."""
    hf, data = f"{folder}/hf", f"{folder}/d.pictures"
    write_pictures(data, torch.zeros((4, 32, 32, 3), dtype=torch.uint8), torch.zeros(4, dtype=torch.int32))
    model = model_of("resnet18", 3, 32)
    for change, text in (({"architecture": "resnet19"}, "resnet18"), ({"num_classes": 9}, "fc.weight"), ({"num_classes": 1}, "classes"),
                         ({"architecture": "vgg11", "image_size": 16}, "too small"), ({"global_pool": "max"}, "global_pool"),
                         ({"model_args": {"width": 2}}, "model_args"), ({"image_size": [32, 0]}, "image_size"),
                         ({"drop_rate": 1.5}, "drop_rate"), ({"num_channels": 65}, "num_channels")):
        with tempfile.TemporaryDirectory() as base:
            hf = f"{base}/hf"
            save_model(model, "resnet18", 3, 32, hf)
            config = json.load(open(f"{hf}/config.json"))
            config.update(change)
            json.dump(config, open(f"{hf}/config.json", "w"))
            done = subprocess.run([f"{BIN}/train", "--model", hf, "--data", data, "--steps", "1"], capture_output=True, text=True)
            last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
            assert done.returncode == 2 and text in last, f"{change}: exit {done.returncode}, {last}"


ALL = ["resnet18", "resnet34", "resnet50", "resnet101", "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
       "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "cnn_lstm", "resnet18_cifar"] + [f"efficientnet_b{i}" for i in range(5)]
TESTS = [("basic_cnn, a gray picture", logits, ("basic_cnn", 1, 28)), ("resnet18 at 64", logits, ("resnet18", 3, 64)),
         ("mobilenet_v3_small at 64", logits, ("mobilenet_v3_small", 3, 64)), ("resnet18_cifar at 8", logits, ("resnet18_cifar", 1, 8)),
         ("an ensemble of three at 64", logits, ("ensemble:mobilenet_v2+resnet18+efficientnet_b0", 3, 64)),
         ("an ensemble of two, 20 steps of SGD on two ranks", steps, ("ensemble:basic_cnn+resnet18", 3, 32, "SGD", 2)),
         ("basic_cnn, 20 steps of SGD", steps, ("basic_cnn", 1, 28, "SGD", 1)),
         ("resnet18, 20 steps of SGD on two ranks", steps, ("resnet18", 3, 64, "SGD", 2)),
         ("cnn_lstm, 20 steps of AdamW on two ranks", steps, ("cnn_lstm", 3, 32, "AdamW", 2)),
         ("cnn_lstm of two layers and eight frames", logits, ("cnn_lstm-deep", 3, 64)),
         ("cnn_lstm, averages of weights and running statistics on two ranks", averaged, ("cnn_lstm", 3, 32, True, 2)),
         ("cnn_lstm, averages of weights alone", averaged, ("cnn_lstm", 3, 32, False, 1)),
         ("mobilenet_v3_small with synchronised norms on two ranks", synchronized, ("mobilenet_v3_small", 3, 64, "SGD", 2)),
         ("configs and folders are refused by name", refused, ()),
         ("a new classifier and frozen layers of resnet18", finetuned, ("resnet18", ["conv1.*", "bn1.*", "layer1.*"], 3, 64))]
if NIGHT:
    TESTS += [("vit_b_32 at 64", logits, ("vit_b_32", 3, 64)), ("vit_b_16 at 32, 20 steps of AdamW", steps, ("vit_b_16", 3, 32, "AdamW", 1)),
              ("a new classifier of vit_b_16", finetuned, ("vit_b_16", ["conv_proj.*", "encoder.layers.encoder_layer_0.*"], 3, 32))]
if timm is not None:
    TESTS += [("timm's mobilenetv3_small_100", logits, ("timm:mobilenetv3_small_100", 3, 64))]
    TESTS += [(f"timm's transform of {words}", transformed, ("timm:mobilenetv3_small_100", {"crop_pct": share, "interpolation": filter, "crop_mode": mode}))
              for words, share, filter, mode in (("a larger part", 0.95, "bicubic", "center"), ("all, bilinear", 1.0, "bilinear", "center"),
                                                 ("squashed pictures", 0.875, "bicubic", "squash"))]
if timm is not None and NIGHT:
    TESTS += [("a new classifier of timm's efficientnet_b0", finetuned, ("timm:efficientnet_b0", ["conv_stem.*", "bn1.*", "blocks.0.*", "blocks.1.*"], 3, 64))]
if transformers is not None:
    TESTS += [("transformers' ResNet of bottlenecks", logits, ("hf:resnet-bottleneck", 3, 64)),
              ("a new classifier of transformers' ResNet", finetuned, ("hf:resnet-basic", ["resnet.embedder.*"], 3, 64)),
              ("a new classifier of transformers' ViT", finetuned, ("hf:vit", ["vit.embeddings.*"], 3, 32))]
if transformers is not None and NIGHT:
    TESTS += [("transformers' ResNet of basic blocks", logits, ("hf:resnet-basic", 3, 64)),
              ("transformers' ResNet with early strides", logits, ("hf:resnet-early", 3, 64))]
if NIGHT and timm is not None:
    TESTS += [(f"timm's {name} at 64", logits, (f"timm:{name}", 3, 64)) for name in
              ("resnet18", "resnet50", "vgg11", "vgg16_bn", "mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b1", "efficientnet_b5")]
    TESTS += [("timm's vgg11_bn at 256", logits, ("timm:vgg11_bn", 3, 256))]
if NIGHT:
    TESTS = [(f"{name} at 64", logits, (name, 3, 64)) for name in ALL] + [("resnet18 at 224", logits, ("resnet18", 3, 224))] + TESTS
    TESTS += [(f"{name} at {side}, 20 steps of {kind}", steps, (name, 3, side, kind, 1)) for name in
              ("basic_cnn", "resnet18", "mobilenet_v2", "efficientnet_b0", "cnn_lstm") for side in (32, 64) for kind in ("SGD", "AdamW")]
    TESTS += [("a built-in name", named, ("resnet", "resnet50")), ("a built-in cnn_lstm", named, ("cnn-lstm", "cnn_lstm")),
              ("resnet18 with synchronised norms on one rank", synchronized, ("resnet18", 3, 64, "AdamW", 1)),
              ("an ensemble of vgg11 at 64", logits, ("ensemble:vgg11+vgg11_bn", 3, 64)),
              ("an ensemble of three at 64, 20 steps of AdamW", steps, ("ensemble:mobilenet_v2+resnet18+basic_cnn", 3, 64, "AdamW", 1))]

chosen = os.environ.get("DSC_TEST_NAMES")
TESTS = [t for t in TESTS if chosen is None or any(part in t[0] for part in chosen.split(","))]
failures = 0
for number, (name, test, case) in enumerate(TESTS, 1):
    with tempfile.TemporaryDirectory() as folder:
        try:
            test(*case, folder)
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, RuntimeError, OSError, ValueError, IndexError) as wrong:
            failures += 1
            print(f"not ok {number} - {name}\n# {wrong}", flush=True)
print(f"1..{len(TESTS)}")
sys.exit(1 if failures else 0)

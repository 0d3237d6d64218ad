"""convnets.py BIN: convolutional networks against torchvision.

Weights and running statistics are random and come from a file. Losses of training and of evaluation, 20 steps of SGD and AdamW, running
statistics and the export are those of torchvision. DSC_TEST_NIGHT=1 runs every architecture. SPDX-License-Identifier: Apache-2.0"""
import copy
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file

BIN, CLASSES, STEPS, BATCH = sys.argv[1], 7, 20, 8
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
torch.set_num_threads(2)
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


def model_of(name, planes, side):
    """The model of that name, without dropout and drop path, with random weights and statistics."""
    if name == "basic_cnn":
        return BasicCnn(planes, side)
    model = getattr(torchvision.models, name)(num_classes=CLASSES, **({"init_weights": True} if name.startswith("vgg") else {}))
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


def save_model(model, name, planes, side, folder):
    os.makedirs(folder)
    save_file({k: t.contiguous() for k, t in model.state_dict().items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    json.dump({"architecture": name, "num_classes": CLASSES, "drop_rate": 0.0, "drop_path_rate": 0.0,
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


def train_ours(model, data, folder, optimizer, steps, ranks, *more):
    """Losses of training, the loss of an evaluation, and the export. A micro-batch is half a batch."""
    config, log, save, out = (f"{folder}/{name}" for name in ("c.json", "log.jsonl", "save", "export"))
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // 2, "optimizer": optimizer,
               "zero_optimization": {"stage": 2 if ranks > 1 else 0}}, open(config, "w"))
    said = run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", model, "--data", data, "--no-shuffle",
               "--steps", str(steps), "--log", log, "--save", save, *more)
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{steps}", "--out", out)
    losses = [row["loss"] for row in map(json.loads, open(log)) if "loss" in row]
    evaluated = [float(text) for text in re.findall(r"validation loss ([0-9.]+)", said)]
    return losses, evaluated, load_file(f"{out}/model.safetensors")


def train_theirs(model, pixels, labels, optimizer, steps):
    kind = torch.optim.SGD if optimizer["type"] == "SGD" else torch.optim.AdamW
    opt = kind(model.parameters(), **{k: tuple(v) if isinstance(v, list) else v for k, v in optimizer["params"].items()})
    losses = []
    model.train()
    for step in range(steps):
        opt.zero_grad()
        total = 0
        for half in range(2):
            at = [(step * BATCH + half * BATCH // 2 + n) % len(labels) for n in range(BATCH // 2)]
            loss = torch.nn.functional.cross_entropy(model(pixels[at]), labels[at]) / 2
            loss.backward()
            total += loss.item()
        opt.step()
        losses.append(total)
    return losses


def furthest(ours, theirs):
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    worst = max((ours[k].double() - theirs[k].double()).abs().max().item() for k in theirs)
    assert all(ours[k].shape == theirs[k].shape for k in theirs), "shapes of tensors differ"
    return worst


def made(name, planes, side, count, folder):
    pictures, labels = torch.randint(0, 256, (count, side, side, planes), dtype=torch.uint8), torch.randint(0, CLASSES, (count,))
    model, data, hf = model_of(name, planes, side), f"{folder}/d.pictures", f"{folder}/{name}"
    save_model(model, name, planes, side, hf)
    write_pictures(data, pictures, labels)
    return model, hf, data, normalised(pictures), labels


def logits(name, planes, side, folder):
    """A step at a rate of 0 changes the running statistics alone. Then an evaluation has the losses of both."""
    model, hf, data, pixels, labels = made(name, planes, side, BATCH, folder)
    got, evaluated, ours = train_ours(hf, data, folder, optimizer_of("SGD", 0.0), 1, 1, "--eval-data", data)
    want = train_theirs(model, pixels, labels, optimizer_of("SGD", 0.0), 1)
    model.eval()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(model(pixels), labels).item()
    apart = furthest(ours, model.state_dict())
    off, eval_off = abs(got[0] - want[0]), abs(evaluated[-1] - wanted)
    print(f"# {name}: losses within {off:.2g}, of an evaluation within {eval_off:.2g}, tensors within {apart:.2g}", flush=True)
    assert off < 1e-4 * max(1, want[0]) and eval_off < 1e-4 * max(1, wanted), f"losses {got} {evaluated}, expected {want} {wanted}"
    assert apart < 1e-4, f"tensors are {apart} apart"


def steps(name, planes, side, kind, ranks, folder):
    """Batch norms over few pixels amplify rounding: PyTorch in fp32 leaves PyTorch in double too. Ours may be twice as far from it."""
    model, hf, data, pixels, labels = made(name, planes, side, 26, folder)
    exact, before = copy.deepcopy(model).double(), {k: t.double() for k, t in model.state_dict().items()}
    rate = 1e-3 if kind == "SGD" else 1e-4
    optimizer = optimizer_of(kind, rate)
    got, _, ours = train_ours(hf, data, folder, optimizer, STEPS, ranks)
    want = train_theirs(model, pixels, labels, optimizer, STEPS)
    right = train_theirs(exact, pixels.double(), labels, optimizer, STEPS)
    off, usual = (max(abs(a - b) for a, b in zip(losses, right)) for losses in (got, want))
    apart, usually = (distance(state, exact.state_dict(), before) for state in (ours, model.state_dict()))
    print(f"# {name} {kind}: losses within {off:.2g} of double, PyTorch's within {usual:.2g}; changes of tensors {apart:.2g}, {usually:.2g}", flush=True)
    assert len(got) == STEPS and off < max(2e-4, 2 * usual), f"losses are {off} apart: {got} {right}"
    assert apart < max(2e-4, 2 * usually), f"changes of tensors are {apart} apart, PyTorch's {usually}"
    again = model_of(name, planes, side)
    again.load_state_dict(ours)
    assert all(torch.equal(ours[k], t) for k, t in again.state_dict().items()), "what torch has of the export differs"


def distance(ours, theirs, before):
    """Of all changes of weights and running statistics, the share that differs: a norm of differences by the norm of changes."""
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    assert all(ours[k].shape == theirs[k].shape for k in theirs), "shapes of tensors differ"
    wrong = sum(((ours[k].double() - theirs[k].double()) ** 2).sum().item() for k in theirs)
    change = sum(((theirs[k].double() - before[k]) ** 2).sum().item() for k in theirs)
    return (wrong / change) ** 0.5


def named(folder):
    """A built-in name has the sizes of the data, a key others, and its first values have torchvision's deviations."""
    data = f"{folder}/d.pictures"
    write_pictures(data, torch.randint(0, 256, (BATCH, 32, 32, 3), dtype=torch.uint8), torch.randint(0, CLASSES, (BATCH,)))
    _, _, ours = train_ours("resnet", data, folder, optimizer_of("SGD", 0.0), 1, 1)
    theirs = torchvision.models.resnet50(num_classes=CLASSES).state_dict()
    assert set(ours) == set(theirs), f"tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}"
    for k, t in theirs.items():
        if t.dim() > 1:
            a, b = ours[k].std().item(), t.std().item()
            assert ours[k].shape == t.shape and abs(a - b) < 0.1 * b, f"{k}: deviation {a}, torchvision's is {b}"
    config = json.load(open(f"{folder}/export/config.json"))
    assert config["num_classes"] == CLASSES and config["image_size"] == [32, 32] and config["num_channels"] == 3, f"config.json is {config}"


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


ALL = ["resnet18", "resnet34", "resnet50", "resnet101", "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg16_bn", "mobilenet_v2",
       "mobilenet_v3_small", "mobilenet_v3_large"] + [f"efficientnet_b{i}" for i in range(5)]
TESTS = [("basic_cnn, a gray picture", logits, ("basic_cnn", 1, 28)), ("resnet18 at 64", logits, ("resnet18", 3, 64)),
         ("mobilenet_v3_small at 64", logits, ("mobilenet_v3_small", 3, 64)),
         ("basic_cnn, 20 steps of SGD", steps, ("basic_cnn", 1, 28, "SGD", 1)),
         ("resnet18, 20 steps of SGD on two ranks", steps, ("resnet18", 3, 64, "SGD", 2)),
         ("configs and folders are refused by name", refused, ())]
if NIGHT:
    TESTS = [(f"{name} at 64", logits, (name, 3, 64)) for name in ALL] + [("resnet18 at 224", logits, ("resnet18", 3, 224))] + TESTS
    TESTS += [(f"{name} at {side}, 20 steps of {kind}", steps, (name, 3, side, kind, 1)) for name in
              ("basic_cnn", "resnet18", "mobilenet_v2", "efficientnet_b0") for side in (32, 64) for kind in ("SGD", "AdamW")]
    TESTS += [("a built-in name", named, ())]

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

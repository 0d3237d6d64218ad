#!/usr/bin/env python3
# tables.py [--models A,B] [--strategies S,T] [--gpu CARD] [--gpus N] [--batch B] [--ranks LIST] [--measure] - prints the tables of
# the guides as Markdown. One table has models by strategies, the other one scaling over numbers of GPUs. `dsc plan` and
# `dsc simulate` compute them for a card that need not be here; --measure runs the models on CPU ranks of this host. SPDX-License-Identifier: Apache-2.0
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DSC = os.environ.get("DSC_BIN", ROOT + "/bin") + "/dsc"
MODELS = "basic_cnn,mobilenet,efficientnet,resnet,vgg"


def arguments():
    parser = argparse.ArgumentParser(description="Prints the guides' tables of models, strategies and scaling.")
    parser.add_argument("--models", default=MODELS, help="names of built-in models, or folders; default " + MODELS)
    parser.add_argument("--strategies", default="ddp,fsdp_stage2,fsdp_stage3", help="presets; default all three")
    parser.add_argument("--gpu", default="H100", help="a card of share/dsc/cards; default H100")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the first table; default 8")
    parser.add_argument("--batch", type=int, default=16, help="samples of a micro-batch; default 16")
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of GPUs of the second table; default 1,2,4,8")
    parser.add_argument("--measure", action="store_true",
                        help="measure pictures of 32 by 32 on CPU ranks of this host, instead of computing for GPUs")
    return parser.parse_args()


def config(folder, model, strategy, o):
    with open(f"{ROOT}/configs/ds_config_{strategy}.json", encoding="utf-8") as file:
        values = json.load(file)
    values.pop("tensorboard", None)
    own = values["dsc"]
    for key in ("seq_length", "save", "save_every", "log_text"):
        own.pop(key, None)
    own["model"] = model
    values["train_micro_batch_size_per_gpu"] = o.batch
    if o.measure:
        own["threads"] = 1
    path = f"{folder}/{strategy}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)
    return path


# The object that a command prints, or its words.
def ask(*command):
    run = subprocess.run([DSC, *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode in (0, 3) and run.stdout.startswith("{"):
        return json.loads(run.stdout), None
    words = [line for line in run.stderr.splitlines() if line.startswith("dsc: error: ")]
    return None, words[-1][len("dsc: error: "):] if words else f"ended with {run.returncode}"


def rate(row):
    return row.get("images_per_s", row.get("tokens_per_s"))


def unit(row):
    return "images/s" if "images_per_s" in row else "tokens/s"


def planned(folder, o):
    print(f"Models by strategies, predicted for {o.gpus} x {o.gpu} (dsc plan --time); memory is planned.\n")
    print("| model | strategy | batch per GPU | all GPUs | memory per GPU | step |\n|---|---|---|---|---|---|")
    for model in o.models.split(","):
        for strategy in o.strategies.split(","):
            plan, why = ask("plan", "--config", config(folder, model, strategy, o), "--world-size", str(o.gpus), "--gpu", o.gpu,
                            "--time")
            if plan is None:
                print(f"| {model} | {strategy} | {why} | | | |")
                continue
            time, fits = plan["time"], "" if plan["fits"] else ", does not fit"
            print(f"| {model} | {strategy} | {o.batch} | {rate(time) * o.gpus:.0f} {unit(time)} | "
                  f"{plan['gpu_bytes'] / 1048576:.0f} MiB{fits} | {time['step_s'] * 1e3:.2f} ms |")


def scaled(folder, o):
    strategy = o.strategies.split(",")[0]
    how = "measured on CPU ranks of this host (dsc scale)" if o.measure else f"simulated for {o.gpu} (dsc simulate)"
    print(f"\nScaling of {strategy}, each rank with {o.batch} samples, {how}.\n")
    print("| model | ranks | all ranks | step | speed-up | efficiency |\n|---|---|---|---|---|---|")
    for model in o.models.split(","):
        path = config(folder, model, strategy, o)
        command = ["scale", "--config", path, "--steps", "5"] if o.measure else ["simulate", "--config", path, "--gpu", o.gpu]
        table, why = ask(*command, "--ranks", o.ranks)
        if table is None:
            print(f"| {model} | {why} | | | | |")
            continue
        for row in table["rows"]:
            if rate(row) is None:
                print(f"| {model} | {row['ranks']} | {row.get('failed', 'no time')} | | | |")
                continue
            print(f"| {model} | {row['ranks']} | {rate(row):.0f} {unit(row)} | {row['step_s'] * 1e3:.2f} ms | "
                  f"{row['speed_up']:.2f} | {row['efficiency'] * 100:.1f} % |")


def main():
    o = arguments()
    if not os.access(DSC, os.X_OK):
        sys.exit(f"tables: {DSC} is not there; run make first")
    with tempfile.TemporaryDirectory() as folder:
        if not o.measure:
            planned(folder, o)
        scaled(folder, o)


main()

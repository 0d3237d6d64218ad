#!/usr/bin/env python3
"""wrappers_test.py BIN: multimodal folders written by hand, then, by wrappers_hf.py, folders that transformers saves.

A folder by hand has a Llama, Mistral or Qwen under the names and the config of each wrapper, and tensors of a vision part. Training
gives the losses of the same weights in a plain folder. SPDX-License-Identifier: Apache-2.0"""
import array
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "golden"))
sys.dont_write_bytecode = True
import sft_case as case  # noqa: E402
import tensors  # noqa: E402

BIN = sys.argv[1]
tests, failures = 0, 0
VISION = {"tower.patch.weight": ([6, 5], [0.25 * i for i in range(30)]), "tower.empty": ([0], []), "projector.bias": ([3], [1.5, -2.0, 3.0])}


def report(name, good, why=""):
    global tests, failures
    tests, failures = tests + 1, failures + (not good)
    print(f"{'ok' if good else 'not ok'} {tests} - {name}" + (f"\n# {why}" if why and not good else ""), flush=True)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, timeout=120)
    return done.returncode, done.stdout


def train(folder, *flags, ranks=2, own=None):
    """Losses; the checkpoint is in FOLDER-save."""
    if os.path.exists("log.jsonl"):
        os.remove("log.jsonl")
    json.dump({"train_batch_size": 4, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
               "zero_optimization": {"stage": 2}, "dsc": dict(own or {}, seq_length=24, threads=1, shuffle=False)}, open("c.json", "w"))
    code, said = run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", "c.json", "--model", folder, "--data", "tokens.bin", "--log",
                     "log.jsonl", *flags)
    return [json.loads(line)["loss"] for line in open("log.jsonl")] if code == 0 else said


def wrapped(base, head, vision, config, text):
    """The tensors of a plain text model under a wrapper's names, beside those of a vision part."""
    found = {vision + k: v for k, v in VISION.items()}
    for name, value in case.weights(text).items():
        found[base + name[len("model."):] if name.startswith("model.") else head] = value
    return config, found


def config_of(kind, text, inner, **more):
    return {"model_type": kind, "architectures": ["X"], "text_config": dict(text, model_type=inner), "vision_config": {"depth": 1}, "torch_dtype": "float32",
            "tie_word_embeddings": text["tie_word_embeddings"], **more}


LLAMA, QWEN2 = case.CONFIGS["llama"], case.CONFIGS["qwen2"]
MROPE = dict(QWEN2, rope_parameters=None, rope_theta=1000000.0, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]})
OLD = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 1}, **{k: v for k, v in MROPE.items() if k != "model_type"}}
UNTIED = {"model_type": "mistral3", "vision_config": {"depth": 1},
          "text_config": {k: v for k, v in dict(LLAMA, model_type="mistral").items() if k != "tie_word_embeddings"}}
# name, the plain config, the wrapper's config and tensors
CASES = [
    ("llava around a Llama", LLAMA,
     *wrapped("language_model.model.", "language_model.lm_head.weight", "vision_", config_of("llava", LLAMA, "llama"), LLAMA)),
    ("mistral3 whose config names no tie", dict(LLAMA, model_type="mistral"),
     *wrapped("language_model.model.", "language_model.lm_head.weight", "vision_", UNTIED, LLAMA)),
    ("qwen2_5_vl, newer names, a tied head", QWEN2,
     *wrapped("model.language_model.", "lm_head.weight", "model.visual.", config_of("qwen2_5_vl", MROPE, "qwen2_5_vl_text"), QWEN2)),
    ("qwen2_5_vl as published: keys in the root, M-RoPE", QWEN2, *wrapped("model.", "lm_head.weight", "visual.", OLD, QWEN2)),
    ("smolvlm around a Llama", LLAMA,
     *wrapped("model.text_model.", "lm_head.weight", "model.vision_model.", config_of("smolvlm", LLAMA, "llama"), LLAMA)),
]


def check_case(name, plain, config, weights):
    tensors.write("plain", "model.safetensors", plain, case.weights(plain if plain["model_type"] != "mistral" else LLAMA))
    tensors.write("wrapped", "model.safetensors", config, weights)
    want, got = train("plain", "--steps", "4"), train("wrapped", "--steps", "4", "--save", "save", "--save-every", "2")
    report(f"{name}: the losses of the text model alone, bit by bit", isinstance(want, list) and want == got, f"{want}\n# {got}")
    before = tensors.read("wrapped/model.safetensors")
    code, said = run(f"{BIN}/dsc", "ckpt", "export", "save/step-4", "--out", "out")
    after = tensors.read("out/model.safetensors") if code == 0 else {}
    others = [k for k in before if k.endswith(tuple(VISION))]
    report(f"{name}: the export has all tensors by their names", set(after) == set(before), said + str(set(after) ^ set(before)))
    report(f"{name}: bytes of the other parts are as before, those of the text part are not",
           len(others) == 3 and all(after.get(k) == before[k] for k in others) and sum(after[k] != before[k] for k in after) > 10)
    said = json.load(open("out/config.json"))
    said.setdefault("torch_dtype", "float32")
    report(f"{name}: config.json is whole", said == dict(config, torch_dtype="float32"), str(said))
    code, said = run(f"{BIN}/dsc", "ckpt", "verify", "save/step-4")
    report(f"{name}: dsc ckpt verify", code == 0, said)
    # A resume needs the other parts again, and so does a run that starts from the checkpoint or from the export.
    run("rm", "-rf", "save/step-4", "out", "again", "third")
    with open("save/latest", "w") as f:
        f.write("step-2\n")
    resumed = train("wrapped", "--steps", "4", "--save", "save", "--load", "save", ranks=1)
    run(f"{BIN}/dsc", "ckpt", "export", "save/step-4", "--out", "out", "--shard-size", "20KB", "--dtype", "bf16")
    started = train("save/step-4", "--steps", "1", "--save", "again")
    run(f"{BIN}/dsc", "ckpt", "export", "again/step-1", "--out", "third")
    found = {}
    for file in sorted(os.listdir("out")):
        found.update(tensors.read("out/" + file) if file.endswith(".safetensors") else {})
    third = tensors.read("third/model.safetensors")
    report(f"{name}: a resumed run, shards in bf16, and a run from the checkpoint carry the same bytes",
           isinstance(resumed, list) and isinstance(started, list) and all(found.get(k) == before[k] == third.get(k) for k in others),
           f"{resumed} {started} {sorted(found)[:4]}")
    run("rm", "-rf", "save", "out", "again", "third", "plain", "wrapped")


def refused(name, config, weights, words, own=None):
    tensors.write("wrapped", "model.safetensors", config, weights)
    said = train("wrapped", "--steps", "1", ranks=1, own=own)
    lines = [line for line in str(said).splitlines() if line.startswith("dsc: error: ")]
    report(f"refused in one line: {name}", len(lines) == 1 and words in lines[0], str(said))


def check_refusals():
    llava, found = wrapped("language_model.model.", "language_model.lm_head.weight", "vision_", config_of("llava", LLAMA, "llama"), LLAMA)
    refused("an unknown wrapper", dict(llava, model_type="paligemma"), found, 'model_type "paligemma" is not built; what exists: gpt2')
    refused("an unknown text model", dict(llava, text_config={"model_type": "gemma"}), found, 'a text model of type "gemma" is not built')
    refused("no text_config", {k: v for k, v in llava.items() if k != "text_config"}, found, '"text_config" must be an object')
    refused("a text_config without a type", dict(llava, text_config={"hidden_size": 32}), found, '"model_type" is missing in "text_config"')
    refused("quantized weights", dict(llava, quantization_config={"bits": 4}), found, '"quantization_config": quantized weights')
    vl = config_of("qwen2_5_vl", {k: v for k, v in MROPE.items() if k != "hidden_size"}, "qwen2_5_vl_text")
    refused("a size that has another default there", vl, found, '"hidden_size" is missing')
    vl = config_of("qwen2_vl", dict(MROPE, rope_scaling={"type": "mrope", "mrope_section": [1, 1]}), "qwen2_vl_text")
    refused("sections of M-RoPE that are not half a head", vl, found, '"mrope_section" must be sizes whose sum is 4')
    refused("a tensor of the text part that the model does not have", llava, dict(found, **{"language_model.model.layers.7.x": ([1], [0.0])}),
            '"language_model.model.layers.7.x" is not one of a llama')
    refused("adapters beside names that PEFT does not use", llava, found, 'adapters are not built for the text part', {"lora": {"r": 2}})


def check_adapters():
    """Where the files have the names of the modules, adapters have those that PEFT gives them."""
    config, found = wrapped("model.language_model.", "lm_head.weight", "model.visual.", config_of("qwen2_5_vl", MROPE, "qwen2_5_vl_text"), QWEN2)
    tensors.write("wrapped", "model.safetensors", config, found)
    said = train("wrapped", "--steps", "2", "--save", "save", own={"lora": {"r": 2}})
    run(f"{BIN}/dsc", "ckpt", "export", "save/step-2", "--out", "out")
    run(f"{BIN}/dsc", "ckpt", "export", "save/step-2", "--out", "merged", "--merge")
    names = tensors.read("out/adapter_model.safetensors") if os.path.exists("out") else {}
    merged = tensors.read("merged/model.safetensors") if os.path.exists("merged") else {}
    report("adapters: names of PEFT, and a merged folder with all parts",
           "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight" in names and set(merged) == set(found), str(said))


with tempfile.TemporaryDirectory() as place:
    os.chdir(place)
    array.array("H", [case.mixed(5, i // 3) % 600 for i in range(2000)]).tofile(open("tokens.bin", "wb"))
    for row in CASES:
        check_case(*row)
    check_refusals()
    check_adapters()
    os.chdir("/")
python = os.environ.get("DSC_TEST_PYTHON", "/usr/bin/python3")
if subprocess.run([python, "-c", "import torch, transformers"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
    done = subprocess.run([python, os.path.join(HERE, "wrappers_hf.py"), BIN], text=True, stdout=subprocess.PIPE)
    for line in done.stdout.splitlines():
        if line.startswith(("ok ", "not ok ")):
            report(line.split(" - ", 1)[1], line.startswith("ok "))
        elif line.startswith("#"):
            print(line)
    report("transformers' own wrappers were compared", done.returncode == 0)
else:
    tests += 1
    print(f"ok {tests} - transformers' own wrappers # SKIP transformers is not installed (DSC_TEST_PYTHON names a python that has it)")
print(f"1..{tests}")
sys.exit(1 if failures else 0)

# models.py - broken, hostile and foreign model folders. SPDX-License-Identifier: Apache-2.0
import os, shutil, struct

from common import *
from harness import *


def folder(b, name, config=GPT2, weights=None, **files):
    path = b.path(name)
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    if config is not None:
        b.put(name + "/config.json", config)
    if weights is not None:
        b.put(name + "/model.safetensors", weights)
    for file, data in files.items():
        b.put(f"{name}/{file.replace('__', '.')}", data)
    return path


def refuse_folder(b, words, path, plan=False):
    b.refuse(2, words, *without(b.train, "--model"), "--model", path)
    if plan: # the planner also refuses errors that need no weights
        b.refuse(2, words, DSC, "plan", "--config", b.config, "--model", path)


def refuse_weights(b, words, weights, name="m"):
    path = folder(b, name, weights=weights)
    refuse_folder(b, [f"{name}/model.safetensors", *([words] if isinstance(words, str) else words)], path)
    shutil.rmtree(path)


@test
def a_good_folder_trains(b):
    inputs(b)
    for dtype in ("F32", "BF16", "F16"):
        b.accept(*without(b.train, "--model"), "--model", folder(b, "m", weights=safetensors(dtype=dtype)))
    b.nothing_left()


@test
def names_that_are_no_model(b):
    inputs(b)
    os.mkfifo(b.path("pipe"))
    os.symlink("loop", b.path("loop"))
    b.put("weights.bin", b"x" * 100)
    b.put("model.yaml", "x")
    for name in ("nope", "gpt3", "GPT2", "gpt2-", "densenet121", "llama-7b", "squeezenet", "bert-base", "../nope", "/nope",
                 "gpt2-nano/", "m" * 5000, "a\nb", "\x1b[31m", "\xff\xfe", "%s%n%n", "-x"):
        b.refuse(2, "model", *without(b.train, "--model"), "--model=" + name)
    for name, near in (("gpt3", "gpt2-124m"), ("densenet121", "gpt2-nano"), ("llama-7b", "llama-2-7b")):
        b.refuse(2, [f'"{name}"', near, "dsc model list", "config.json"], *without(b.train, "--model"), "--model", name)
    for name, word in (("pipe", "pipe or a device"), ("loop", "loop"), ("weights.bin", "folder"),
                       ("model.yaml", "json")):
        refuse_folder(b, [name, word], b.path(name), plan=True)
    refuse_folder(b, ["/dev/null", "pipe or a device"], "/dev/null", plan=True)


@test
def folders_without_a_model(b):
    inputs(b)
    refuse_folder(b, ["m", "no config.json"], folder(b, "m", config=None), plan=True)
    refuse_folder(b, ["m", "no config.json"], folder(b, "m", config=None, weights=safetensors()), plan=True)
    path = folder(b, "m", config=None)
    os.symlink("/nonexistent/x", path + "/config.json")
    refuse_folder(b, ["m/config.json"], path, plan=True)
    path = folder(b, "m", config=None)
    os.mkdir(path + "/config.json")
    refuse_folder(b, ["m/config.json", "folder"], path, plan=True)
    path = folder(b, "m", config=None)
    os.mkfifo(path + "/config.json")
    refuse_folder(b, ["m/config.json", "pipe or a device"], path, plan=True)


@test
def model_configs_that_are_no_JSON(b):
    inputs(b)
    for text, word in (("", "empty"), ("{", "expected"), ("[]", "model_type"), ("{}", "model_type"), ("\xff\xfe{", ""),
                       ('{"model_type": "gpt2",}', "comma"), ('{"model_type": "gpt2"} // x', "comments"),
                       ('{"model_type": "gpt2", "model_type": "gpt2"}', "duplicate"),
                       ('{"a":' * 100000 + "1" + "}" * 100000, "nested"), ("\0" * 50, ""),
                       ("\ufeff{}", "byte order mark"),
                       (b'{"model_type": "\xe9"}', "UTF-8"), ('{"model_type": 5}', "model_type"),
                       ('{"model_type": "t5"}', "gpt2"), ('{"model_type": "\\u001b[2J"}', "gpt2"),
                       ('{"model_type": "' + "x" * 5000 + '"}', "gpt2")):
        refuse_folder(b, ["m/config.json:1:", word], folder(b, "m", config=text), plan=True)
        refuse_folder(b, ["m.json:1:", word], b.put("m.json", text), plan=True)
    path = folder(b, "m", config="{")
    with open(path + "/config.json", "wb") as f:
        f.write(b'{"a": "' + b"x" * 50_000_000)
    refuse_folder(b, ["m/config.json", "larger than"], path, plan=True)


@test
def model_sizes_that_are_impossible(b):
    inputs(b)
    for key, value, word in (
            ("n_layer", 0, "1 to"), ("n_layer", -1, "1 to"), ("n_layer", 1.5, "whole"), ("n_layer", "12", "whole"),
            ("n_layer", 1e300, "1 to"), ("n_layer", 4097, "1 to 4096"), ("n_layer", [1], "whole"),
            ("n_head", 0, "1 to"),
            ("n_head", 3, "multiple"), ("n_embd", 0, "1 to"), ("n_embd", 1 << 40, "1 to"), ("n_embd", 33, "multiple"),
            ("vocab_size", 0, "1 to"), ("vocab_size", 1 << 50, "1 to"), ("vocab_size", None, ""),
            ("n_positions", 0, "1 to"),
            ("n_positions", 8, "8 positions: give at most that many with --seq-len"), ("n_inner", -4, "1 to"),
            ("layer_norm_epsilon", 0, ""),
            ("layer_norm_epsilon", "x", ""), ("initializer_range", -1, ""), ("activation_function", "selu", "gelu_new"),
            ("activation_function", 7, "string"), ("tie_word_embeddings", "yes", "true or false"),
            ("resid_pdrop", 2, ""), ("resid_pdrop", "x", ""), ("add_cross_attention", True, "not built"),
            ("quantization_config", {"bits": 4}, "quantized")):
        if value is not None:
            for_run = "--seq-len" in word
            refuse_folder(b, ["m/config.json", "" if for_run else key, word],
                          folder(b, "m", config=merged(GPT2, **{key: value})), plan=not for_run)


@test
def weights_with_a_broken_head(b):
    inputs(b)
    whole = safetensors()
    for data, word in ((b"", "8"), (b"\1", "8"), (whole[:8], "truncated"), (whole[:100], "truncated"),
                       (struct.pack("<Q", 0), ""), (struct.pack("<Q", 1 << 62) + b"{}", "a header of"),
                       (struct.pack("<Q", (1 << 64) - 1) + b"{}", "a header of"),
                       (struct.pack("<Q", 500) + b"{", "truncated"),
                       (struct.pack("<Q", 2) + b"[]", ""),
                       (struct.pack("<Q", 4) + b'{"a"', ""), (struct.pack("<Q", 60) + b'{"a":' * 12, ""),
                       (struct.pack("<Q", 4) + b"\xff\xfe{}", ""), (b"PK\3\4" + bytes(500), "a header of"),
                       (b"\x80\x02}q\x00." * 100, "a header of"), (b"version https://git-lfs.github.com/spec/v1\n", "")):
        refuse_weights(b, word, data)
    refuse_folder(b, ["/m", "transformer.wte.weight", "missing"], folder(b, "m", weights=struct.pack("<Q", 2) + b"{}"))


@test
def weights_cut_short_or_with_more(b):
    inputs(b)
    whole = safetensors()
    for data, word in ((whole[:-1], "truncated"), (whole[:-5000], "truncated"), (whole[:len(whole) // 2], "truncated"),
                       (whole + b"x", ""), (whole + bytes(100000), "")):
        refuse_weights(b, word, data)
    path = folder(b, "m", weights=whole)
    with open(path + "/model.safetensors", "r+b") as f:
        f.truncate(1 << 40)
    refuse_folder(b, ["m/model.safetensors"], path)


@test
def weights_whose_tensors_lie(b):
    inputs(b)
    wte = "transformer.wte.weight"

    def edit(**values):
        return lambda entries: entries[wte].update(values)
    end = 256 * 32 * 4
    for change, word in (
            (edit(data_offsets=[0, end - 4]), ""), (edit(data_offsets=[4, end + 4]), ""),
            (edit(data_offsets=[end, 0]), ""),
            (edit(data_offsets=[0, 1 << 62]), ""), (edit(data_offsets=[-4, end - 4]), ""), (edit(data_offsets=[0]), ""),
            (edit(data_offsets="0"), ""), (edit(data_offsets=[0, 2.5]), ""), (edit(data_offsets=[0, 1e300]), ""),
            (edit(shape=[255, 32]), ""), (edit(shape=[32, 256]), "[256,32]"), (edit(shape=[8192]), "[256,32]"),
            (edit(shape=[]), ""), (edit(shape=[1 << 62, 1 << 62]), ""), (edit(shape=[-256, -32]), ""),
            (edit(shape=[0, 32]), ""), (edit(shape="x"), ""), (edit(shape=[1] * 100), ""), (edit(dtype="F33"), ""),
            (edit(dtype=""), ""), (edit(dtype=4), ""), (edit(dtype="F32\n"), ""), (edit(extra=1), ""),
            (lambda e: e.update({wte: 5}), ""), (lambda e: e.update({wte: {}}), ""),
            (lambda e: e.update(__metadata__=5), ""), (lambda e: e.update(__metadata__={"a": 5}), ""),
            (lambda e: e.update({"x" * 3000: e.pop(wte)}), ""), (lambda e: e.update({"\x1b[31mred": e.pop(wte)}), ""),
            (lambda e: e.update({"": e.pop(wte)}), "")):
        refuse_weights(b, word, safetensors(edit=change))
    text = json.dumps({wte: {"dtype": "F32", "shape": [256, 32], "data_offsets": [0, end]}})[1:-1]
    refuse_weights(b, "duplicate", safetensors(header=("{" + text + "," + text + "}").encode()))


@test
def weights_of_another_model(b):
    inputs(b)
    shapes = gpt2_shapes()
    for change, word in (
            (lambda s: s.pop("transformer.ln_f.bias"), ["missing", "transformer.ln_f.bias"]),
            (lambda s: s.update({"transformer.wte.weight": [300, 32]}), ["[300,32]", "[256,32]"]),
            (lambda s: s.update({"transformer.h.1.ln_1.weight": [32]}), ["transformer.h.1.ln_1.weight", "n_layer 1"]),
            (lambda s: s.update({"lm_head.weight": [3, 32]}), ["lm_head.weight", "[256,32]"]),
            (lambda s: s.update({"wte.weight": [256, 32]}), ["wte.weight"]),
            (lambda s: s.update({"model.embed_tokens.weight": [4]}), ["model.embed_tokens.weight"])):
        s = dict(shapes)
        change(s)
        refuse_folder(b, ["/m", *word], folder(b, "m", weights=safetensors(s)))
    refuse_weights(b, ["I32", "F32, BF16 or F16"], safetensors(dtype="I32"))
    refuse_weights(b, ["F64", "F32, BF16 or F16"], safetensors(dtype="F64"))


@test
def weights_that_are_not_finite(b):
    inputs(b)
    last = "transformer.ln_f.bias"
    for dtype, nan, inf in (("F32", b"\0\0\xc0\x7f", b"\0\0\x80\xff"), ("BF16", b"\xc0\x7f", b"\x80\x7f"),
                            ("F16", b"\0\x7e", b"\0\xfc")):
        whole = safetensors(dtype=dtype)
        start = len(whole) - 32 * len(nan)
        for value, word in ((nan, "NaN"), (inf, "infinite")):
            for element in (0, 31):
                at = start + element * len(nan)
                data = whole[:at] + value + whole[at + len(nan):]
                refuse_weights(b, [last, f"is {word} at element {element}:"], data)
    path = folder(b, "m", weights=data)
    b.refuse(2, [last, "at element 31"], LAUNCH, "--num_gpus=2", *without(b.train, "--model"), "--model", path)


@test
def shards_and_their_index(b):
    inputs(b)
    names = list(gpt2_shapes())
    half = {n: s for i, (n, s) in enumerate(gpt2_shapes().items()) if i % 2 == 0}
    rest = {n: s for n, s in gpt2_shapes().items() if n not in half}
    index = {"weight_map": {n: "a.safetensors" if n in half else "b.safetensors" for n in names}}
    both = {"a__safetensors": safetensors(half), "b__safetensors": safetensors(rest)}
    where = "model__safetensors__index__json"
    b.accept(*without(b.train, "--model"), "--model", folder(b, "m", **both, **{where: index}))
    for change, words in (
            ({"weight_map": 5}, ["index.json", "weight_map"]), ({}, ["index.json", "weight_map"]), ([], ["index.json"]),
            ({"weight_map": {n: "../b.safetensors" for n in names}}, ["index.json", "same folder"]),
            ({"weight_map": {n: "/etc/passwd" for n in names}}, ["index.json", "same folder"]),
            ({"weight_map": {n: "a.bin" for n in names}}, ["index.json", "same folder"]),
            ({"weight_map": {n: "c.safetensors" for n in names}}, ["c.safetensors", "No such file"]),
            ({"weight_map": {n: "a.safetensors" for n in names}}, ["index.json", "not in"]),
            ({"weight_map": {n: "a.safetensors" for n in half}}, ["missing"]), ("{", ["index.json:1:2"]),
            ("x" * 1000, ["index.json:1:1"])):
        refuse_folder(b, words, folder(b, "m", **both, **{where: change}))
    refuse_folder(b, ["b.safetensors", "No such file"],
                  folder(b, "m", a__safetensors=safetensors(half), **{where: index}))
    refuse_folder(b, ["also in another"], folder(b, "m", a__safetensors=safetensors(), b__safetensors=safetensors()))
    b.nothing_left()


@test
def formats_that_can_run_code_get_the_command_that_converts_them(b):
    inputs(b)
    pickle = b"PK\3\4" + bytes(100)
    for files in ({"pytorch_model__bin": pickle}, {"pytorch_model__bin__index__json": "{}"}):
        refuse_folder(b, ["/m", "pytorch_model.bin", "python3 -c", "save_pretrained"], folder(b, "m", **files))
    refuse_folder(b, ["/m", "pytorch_model.bin", "python3 -c", "save_file", "config.json"],
                  folder(b, "m", config=None, pytorch_model__bin=pickle), plan=True)
    refuse_folder(b, ["/m", "tf_model.h5", "from_tf=True"], folder(b, "m", tf_model__h5=pickle))
    refuse_folder(b, ["/m", "flax_model.msgpack", "from_flax=True"], folder(b, "m", flax_model__msgpack=pickle))
    deepspeed = ["DeepSpeed", "never read", "--model",
                 "-m deepspeed.utils.zero_to_fp32 . weights --safe_serialization -t global_step7;"]
    whole = ["DeepSpeed", "never read", "in the folder global_step7: python3 -c", "save_file", "--model"]
    for name, words, state in (("two", deepspeed, "mp_rank_00_model_states"),
                               ("none", whole, "mp_rank_00_model_states"),
                               ("three", deepspeed, "zero_pp_rank_0_mp_rank_00_model_states")):
        run = folder(b, name, config=None, latest="global_step7", zero_to_fp32__py="x")
        step = folder(b, name + "/global_step7", config=None, **{state + "__pt": pickle})
        if name != "none":
            b.put(name + "/global_step7/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", pickle)
        for path in (run, step, run + "/", step + "//"):
            refuse_folder(b, words, path, plan=True)
            b.refuse(2, words, *b.train, "--load", path)
        b.refuse(2, words, LAUNCH, "--num_gpus=2", *b.train, "--load", run)
    tag = "a;rm -rf $HOME"
    step = folder(b, tag, config=None, mp_rank_00_model_states__pt=pickle,
                  bf16_zero_pp_rank_0_mp_rank_00_optim_states__pt=pickle)
    refuse_folder(b, ["DeepSpeed", "-t TAG;"], step)
    step = folder(b, "d" * 250, config=None, pytorch_model__bin=pickle)
    refuse_folder(b, ["dddd: its weights", "config.json is missing there too"], step, plan=True)
    b.refuse(2, ["dddd: its weights", "config.json is missing there too"], LAUNCH, "--num_gpus=2",
             *without(b.train, "--model"),
             "--model", step)
    b.refuse(2, ["pytorch_model.bin", "python3 -c"], *b.train, "--load", folder(b, "m", pytorch_model__bin=pickle))
    for name in ("ckpt.pt", "consolidated.00.pth", "last.ckpt", "a b.pt"):
        words = ["pickle", "never read", "torch.load('%s'" % ("FILE" if " " in name else name), "save_file", "--model"]
        step = folder(b, "t", config=None)
        b.put("t/" + name, pickle)
        refuse_folder(b, words, step, plan=True)
        b.refuse(2, words, *b.train, "--load", step)
        refuse_folder(b, [name] + words, step + "/" + name)
        b.refuse(2, [name] + words, *b.train, "--load", step + "/" + name)
    step = folder(b, "t", config=None)
    for name in (".metadata", "__0_0.distcp"):
        b.put("t/" + name, pickle)
    words = ["torch.distributed.checkpoint", "never read", "format_utils dcp_to_torch . weights.pt"]
    refuse_folder(b, words, step, plan=True)
    b.refuse(2, words, *b.train, "--load", step)
    b.refuse(2, ["no checkpoint here", "--model"], *b.train, "--load", folder(b, "m", weights=safetensors()))

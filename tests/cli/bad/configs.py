# configs.py - broken, hostile and unsupported configs. SPDX-License-Identifier: Apache-2.0
import os

from common import *
from harness import *


def programs(b, path):
    """Everything that reads a config."""
    return ([TRAIN, "--config", path, "--data", b.text, "--model", "gpt2-nano", "--seq-len", "16", "--steps", "1"],
            [DSC, "config", "check", path], [DSC, "check", "--kind", "config", path],
            [DSC, "plan", "--config", path, "--model", "gpt2-nano"], [DSC, "config", "explain", path],
            [DSC, "config", "lr", path, "--steps", "1"])


def refuse_text(b, name, text, *words, place=""):
    path = b.put(name + ".json", text)
    for argv in programs(b, path):
        b.refuse(2, [f"{name}.json{place}", *words], *argv)
    os.unlink(path)


GOOD = '{"train_micro_batch_size_per_gpu": 1'


@test
def configs_that_are_no_JSON(b):
    inputs(b)
    for name, text, place, word in (
            ("empty", "", ":1:1", "expected"), ("blank", " \n\n ", ":1:1", "is empty"),
            ("brace", "{", ":1:2", "expected"),
            ("cut_value", GOOD + ', "seed":', ":1:46", "expected a value"),
            ("cut_text", GOOD + ', "a": "bc', "", "text"), ("cut_comment", GOOD + "} /* x", "", "comment"),
            ("list", "[]", "", "object"), ("null", "null", "", "object"), ("text", '"x"', "", "object"),
            ("word", "{'train_batch_size': 1}", ":1:2", "expected"), ("no_colon", '{"a" 1}', ":1:6", "':'"),
            ("two", GOOD + "}{}", "", "after"), ("python", GOOD + ', "seed": None}', "", "expected"),
            ("nan", GOOD + ', "seed": NaN}', "", "expected"), ("leading_zero", GOOD + ', "seed": 01}', "", ""),
            ("plus", GOOD + ', "seed": +1}', "", "expected"),
            ("dot", GOOD + ', "gradient_clipping": .5}', "", "expected"),
            ("hex", GOOD + ', "seed": 0x10}', "", ""), ("double_comma", GOOD + ',, "seed": 1}', "", "expected"),
            ("escape", GOOD + ', "a": "\\x41"}', "", "escape"),
            ("newline", GOOD + ', "a": "b\nc"}', "", "inside a string"),
            ("yaml", "train_batch_size: 8\n", ":1:1", "expected"),
            ("half_pair", GOOD + ', "a": "\\ud800"}', "", "surrogate")):
        refuse_text(b, name, text, word, place=place)


@test
def configs_that_are_too_much(b):
    inputs(b)
    refuse_text(b, "deep", '{"a":' * 100000 + "1" + "}" * 100000, "nested deeper than 32", place=":1:")
    refuse_text(b, "deep_list", "[" * 900000, "nested deeper than 32", place=":1:")
    refuse_text(b, "members", "{" + ",".join(f'"k{i}":1' for i in range(20000)) + "}", "10000", place=":1:")
    refuse_text(b, "values", '{"a":[' + "1," * 400000 + "1]}", "10000", place=":1:")
    refuse_text(b, "long_key", '{"' + "k" * 900000 + '": 1}', "at most 128", place=":1:")
    refuse_text(b, "digits", '{"seed": ' + "9" * 900000 + "}", "", place=":1:")
    refuse_text(b, "exponent", GOOD + ', "seed": 1e99999}', "", place=":1:")


@test
def configs_of_50_MB_and_a_terabyte(b):
    inputs(b)
    path = b.path("huge.json")
    for name, start, size in (("text", b'{"a": "', 50_000_000), ("spaces", b"{", 50_000_000),
                              ("sparse", b"{", 1 << 40)):
        with open(path, "wb") as f:
            f.write(start)
            if name != "sparse":
                f.write((b"x" if name == "text" else b" ") * size)
            else:
                f.truncate(size)
        for argv in programs(b, path):
            b.refuse(2, ["huge.json", "larger than the 1000000 bytes"], *argv)


@test
def configs_with_bytes_that_are_no_text(b):
    inputs(b)
    good = (GOOD + "}").encode()
    for name, data, place, word in (
            ("latin1", good[:-1] + b', "a": "\xe9"}', ":1:45", "not valid UTF-8 (byte 0xe9)"),
            ("overlong", good[:-1] + b', "a": "\xc0\xaf"}', ":1:45", "UTF-8"),
            ("surrogate", good[:-1] + b', "a": "\xed\xa0\x80"}', ":1:45", "UTF-8"),
            ("above", good[:-1] + b', "a": "\xf4\x90\x80\x80"}', ":1:45", "UTF-8"),
            ("cut", good[:-1] + b', "a": "\xe2\x82"}', ":1:45", "UTF-8"),
            ("bom", b"\xef\xbb\xbf" + good, ":1:1", "byte order mark"),
            ("utf16", b"\xff\xfe" + good.decode().encode("utf-16-le"), ":1:1", "UTF-8"),
            ("nul_inside", good[:-1] + b'\0}', ":1:", ""), ("nul_after", good + b"\0", ":1:", ""),
            ("nul_in_text", good[:-1] + b', "a": "b\0c"}', ":1:", "control"),
            ("only_nul", b"\0" * 4096, ":1:1", ""), ("zip", b"PK\3\4" + bytes(range(256)), ":1:1", ""),
            ("escape_sequence", good[:-1] + b', "a": "\x1b]0;x\x07"}', ":1:", "control")):
        refuse_text(b, name, data, word, place=place)


@test
def configs_with_a_key_twice(b):
    inputs(b)
    for name, text, place in (
            ("top", '{"train_batch_size": 1,\n"train_batch_size": 2}', ":2:1"),
            ("nested", GOOD + ', "zero_optimization": {"stage": 1,\n "stage": 2}}', ":2:2"),
            ("escaped", GOOD + ',\n"train_micro_batch_size_per_gp\\u0075": 2}', ":2:1"),
            ("sections", GOOD + ', "bf16": {},\n\n"bf16": {"enabled": true}}', ":3:1")):
        refuse_text(b, name, text, "duplicate key", "first at line 1", place=place)


@test
def configs_that_are_no_files(b):
    inputs(b)
    os.mkfifo(b.path("pipe.json"))
    os.symlink("loop.json", b.path("loop.json"))
    os.mkdir(b.path("folder.json"))
    for path, word in ((b.path("none.json"), "No such file"), (b.path("none/none.json"), "No such file"),
                       (b.path("good.txt/x.json"), "Not a directory"), (b.path("pipe.json"), "pipe or a device"),
                       (b.path("loop.json"), "symbolic links"), (b.path("folder.json"), "is a folder"),
                       ("/dev/zero", "pipe or a device"), ("/dev/stdin", "pipe or a device"),
                       (b.input + "/" + "n" * 300 + ".json", "too long"),
                       (b.input + "/x" * 3000 + ".json", "too long")):
        for argv in programs(b, path):
            b.refuse(2, word, *argv)
    for argv in programs(b, ""):
        b.refuse(2, "", *argv)


@test
def configs_with_control_characters_in_names_and_values(b):
    inputs(b)
    for text in ('"\\u001b]0;owned\\u0007"', '"\\u009b31mred"', '"\\r\\ndsc: error: two"', '"\\u202egnp.exe"',
                 '"\\u0000"'):
        for config in (f'{GOOD}, "optimizer": {{"type": {text}}}}}',
                       f'{GOOD}, "optimizer": {{"params": {{{text}: 1}}}}}}',
                       f'{GOOD}, "zero_optimization": {{{text}: 1}}}}', f'{GOOD}, "dsc": {{"model": {text}}}}}',
                       f'{GOOD}, "dsc": {{"data": {text}, "model": "gpt2-nano"}}}}',
                       f'{GOOD}, "dsc": {{"load": {text}, "model": "gpt2-nano", "data": "{b.text}"}}}}'):
            path = b.put("c.json", config)
            r = b.run(TRAIN, "--config", path, "--seq-len", "16", "--steps", "1")
            check(r.code == 2 and len(r.errors()) == 1, r)
            b.decent(r)
            b.nothing_left()


@test
def configs_with_keys_that_only_look_right(b):
    inputs(b)
    for key, meant in (("zer\u043e_optimization", "zero_optimization"), ("\uff46\uff5016", "fp16"),
                       ("bf\u200b16", "bf16"), ("bf16 ", "bf16"), ("ZERO_OPTIMIZATION", "zero_optimization"), ("\u00f6ptimizer", "optimizer"),
                       ("zero-optimization", "zero_optimization"), ("zero optimization", "zero_optimization"),
                       ("grad1ent_c1ipping", "gradient_clipping"), ("gradient_clippin", "gradient_clipping"),
                       ("gradient_clippnig", "gradient_clipping"), ("optimizer.type", ""), ("f\u0301p16", ""),
                       ("\u202eabc", "not a key"), ("a\u2066b\u2069", "not a key"), ("\ufeffa", "not a key"),
                       ("a\u2028b", "not a key"), ("k" * 129, "at most 128"), ("", "not a key"),
                       ("$schema", "not a key"), ("%n%s", "not a key"), ("../x", "not a key")):
        words = f'did you mean "{meant}"' if meant and " " not in meant else meant
        b.refuse(2, ["c.json:1:", words], DSC, "config", "check", b.put("c.json", {**CONFIG, key: 1}))
    for name in ("a\u202eb", "a\u2028b\u2029c\u0085d", "\u200b\u200d\u2060\ufeff\u061c\u00ad", "a\u2066b", "%s%n",
                 "$(id)"):
        b.refuse(2, ["c.json:1:", "optimizer.type"], DSC, "config", "check",
                 b.put("c.json", merged(CONFIG, optimizer={"type": name})))
    for text in (GOOD + "/**/8}", '{"train_/*x*/batch_size": 8}', GOOD + ', "a": tr/**/ue}', GOOD + "/* /* */ */}",
                 GOOD + ",\u00a0}", GOOD + ",\v}", GOOD + ', "a": "x\r\ny"}', GOOD + '\n, "a": 1 "b": 2}',
                 "// nothing\n# here\n/* at all */", "#" * 900000, '"' * 900000, '"' + "\\" * 900000,
                 GOOD + ', "a": "\\udc00"}', GOOD + ', "a": "\\ud800\\ud800"}', GOOD + ', "\\ud800": 1}'):
        b.refuse(2, "c.json:", DSC, "config", "check", b.put("c.json", text))
    b.refuse(2, ["c.json:1:22", "a string"], DSC, "config", "check", b.put("c.json", '{"train_batch_size": "8"}'))


@test
def values_of_the_wrong_type_or_range(b):
    inputs(b)
    for section, key, value, word in (
            (None, "train_batch_size", 0, "1..2147483647"), (None, "train_batch_size", -1, "1..2147483647"),
            (None, "train_batch_size", 2.5, "integer"), (None, "train_batch_size", 1 << 40, "1..2147483647"),
            (None, "train_batch_size", [1], "integer"), (None, "train_batch_size", {}, "integer"),
            (None, "train_batch_size", True, "integer"), (None, "train_batch_size", "many", "integer"),
            (None, "gradient_clipping", -1, ">= 0"), (None, "gradient_clipping", "x", ""), (None, "seed", "x", ""),
            (None, "optimizer", [], "object"), (None, "zero_optimization", 3, "object"), (None, "bf16", "yes", ""),
            (None, "dsc", "x", "object"), (None, "dsc", [], "object"), (None, "steps_per_print", -1, ""),
            ("zero_optimization", "stage", 4, "0..3"), ("zero_optimization", "stage", -1, "0..3"),
            ("zero_optimization", "stage", "three", ""), ("zero_optimization", "reduce_bucket_size", 0.5, ""),
            ("zero_optimization", "reduce_bucket_size", -5, ""), ("bf16", "enabled", "maybe", ""),
            ("dsc", "seq_length", -8, ""), ("dsc", "seq_length", 1 << 50, ""),
            ("dsc", "steps", -1, ""), ("dsc", "steps", 1e300, ""), ("dsc", "data", 5, ""), ("dsc", "data", [5], ""),
            ("dsc", "model", 5, ""), ("dsc", "model", "m" * 9000, ""), ("dsc", "device", "tpu", "cpu"),
            ("dsc", "threads", -1, ""), ("dsc", "threads", 1 << 40, ""),
            ("dsc", "comm", "ethernet", ""), ("dsc", "comm_timeout_s", -1, ""), ("dsc", "recompute", "some", ""),
            ("dsc", "reproducible", "always", ""), ("dsc", "data", ["a"] * 5000, ""), ("dsc", "vocab_multiple", -2, ""),
            ("dsc", "save_every", -1, ""), ("dsc", "epochs", 0, ""), ("dsc", "nosuch", 1, "unknown key")):
        c = merged(CONFIG)
        c.pop("train_micro_batch_size_per_gpu") if key.startswith("train_") else None
        (c if section is None else c.setdefault(section, {}))[key] = value
        path = b.put("c.json", c)
        argv = [TRAIN, "--config", path, "--data", b.text, "--model", "gpt2-nano", "--seq-len", "16", "--steps", "1"]
        for flag in {"data": ["--data"], "model": ["--model"], "seq_length": ["--seq-len"],
                     "steps": ["--steps"]}.get(key, []):
            argv = without(argv, flag)
        b.refuse(2, ["c.json:1:", f"{section}.{key}" if section else key, word], *argv)


@test
def optimizer_and_schedule_that_make_no_sense(b):
    inputs(b)
    for optimizer, word in (({"type": "Adadelta"}, "AdamW"), ({"type": "sgd"}, "SGD"),
                            ({"type": "MuSGD"}, "AdamW"), ({"type": ""}, ""),
                            ({"type": 3}, ""),
                            ({"type": "Adam", "params": {"lr": -1}}, "lr"),
                            ({"type": "Adam", "params": {"lr": "x"}}, "lr"),
                            ({"type": "Adam", "params": {"betas": [0.9]}}, "betas"),
                            ({"type": "Adam", "params": {"betas": [0.9, 1.0]}}, "betas"),
                            ({"type": "Adam", "params": {"betas": [2, 0.9]}}, "betas"),
                            ({"type": "Adam", "params": {"betas": "x"}}, "betas"),
                            ({"type": "Adam", "params": {"eps": -1}}, "eps"),
                            ({"type": "Adam", "params": {"learning_rate": 1}}, "learning_rate"),
                            ({"type": "Adam", "params": {"amsgrad": True}}, "amsgrad")):
        b.refuse(2, ["c.json:1:", word], *b.train, "--config", b.put("c.json", merged(CONFIG, optimizer=None) | {
            "optimizer": optimizer}))
    for scheduler, word in (({"type": "Cosine"}, "WarmupLR"), ({"type": "OneCycle", "params": {}}, "cycle_min_lr"),
                            ({"type": "WarmupDecayLR", "params": {}}, "total_num_steps"),
                            ({"type": "WarmupLR", "params": {"warmup_num_steps": -1}}, "warmup_num_steps"),
                            ({"type": "WarmupLR", "params": {"warmup_step": 1}}, "warmup_step")):
        b.refuse(2, ["c.json:1:", word], *b.train, "--config", b.put("c.json", merged(CONFIG, scheduler=scheduler)))


@test
def unsupported_options_are_refused_by_name(b):
    inputs(b)
    for more, word in (
            ({"zero_optimization": {"stage": 3, "offload_optimizer": {"super_offload": True}}}, "super_offload"),
            ({"sequence_parallel_size": 2}, "sequence_parallel_size"),
            ({"amp": {"enabled": True}}, "amp.enabled"),
            ({"torch_autocast": {"enabled": True}}, "torch_autocast.enabled")):
        path = b.put("c.json", merged(CONFIG, **more))
        for argv in ([*b.train, "--config", path], [DSC, "check", "--kind", "config", path]):
            b.refuse(2, ["c.json:1:", word, "in this version", "work"], *argv)
        said = b.accept(DSC, "config", "check", path).err.decode()
        check(f"dsc: warning: {path}: " in said and word in said, "no warning names", word, said)
    path = b.put("c.json", merged(CONFIG, pipeline={"stages": 2}))
    b.refuse(2, ["c.json:1:", "pipeline.stages", "2 stages do not divide 1 rank", "sizes that work"], *b.train, "--config", path)
    for key in "zero_hpz_partition_size", "mics_shard_size":
        path = b.put("c.json", merged(CONFIG, zero_optimization={"stage": 3, key: 2}))
        b.refuse(2, [key, "2 does not divide 1 rank"], *b.train, "--config", path)
    b.refuse(2, ["dsc.device", '"cuda"', '"cpu" and "auto" work'], *b.train, "--device", "cuda",
             env={"CUDA_VISIBLE_DEVICES": ""})

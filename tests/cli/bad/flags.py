# flags.py - flags that do not exist, values that make no sense, places that cannot be written.
# SPDX-License-Identifier: Apache-2.0
import os

from common import *
from harness import *

NO_NUMBERS = ("", "x", "-", "1x", "0x10", "1e", "--", "nan", "inf", "1,5", " 1", "1 ", "9" * 400, "1e999", "\x1b[2J",
              "\u00b2", "%n")


@test
def flags_that_do_not_exist(b):
    inputs(b)
    for flag in ("--bogus", "--bogus=1", "--step", "--Steps", "--steps-", "-s", "--", "---", "--=", "--load_",
                 "--nonsense=" + "x" * 100000, "--\xff", "--no-shufle"):
        b.refuse(2, "unknown flag", *b.train, flag)
    for flag, meant in (("--step", "--steps"), ("--learning_rte", "--learning-rate"), ("--no_shufle", "--no-shuffle"),
                        ("--hepl", "--help")):
        b.refuse(2, [flag, "did you mean " + meant + "?"], *b.train, flag)
    for flag in ("-", "stray", "=", "\x1b]0;x\x07", "x" * 5000, "\n", "a\r\ndsc: error: b"):
        b.refuse(2, "unknown argument", *b.train, flag)
    b.refuse(2, "unknown argument", *b.train, "")
    b.refuse(2, ["--bogus", "train --help"], TRAIN, "--bogus")
    for flag in ("--no-shuffle=1", "--strict=yes", "--curve=0"):
        b.refuse(2, [flag.split("=")[0], "takes no value"], *b.train, flag)
    b.refuse(2, ["--deepspeed=x", "write it as --config x"], *b.train, "--deepspeed=x")


@test
def flags_without_their_value(b):
    inputs(b)
    for flag in ("--config", "--deepspeed_config", "--strategy", "--local_rank", "--model", "--model-type", "--data",
                 "--eval-data", "--seq-len", "--steps", "--epochs", "--batch-size", "--gradient-accumulation-steps",
                 "--learning-rate", "--save", "--save-every", "--load", "--seed", "--log", "--device", "--sample"):
        b.refuse(2, [flag, "needs a value"], *b.train, flag)
    for flag in ("--config", "--model", "--data", "--eval-data", "--save", "--load", "--log", "--device", "--strategy"):
        b.refuse(2, flag, *b.train, flag, "")
        b.refuse(2, flag, *b.train, flag + "=")


@test
def numbers_that_are_none(b):
    inputs(b)
    for flag in ("--seq-len", "--steps", "--epochs", "--batch-size", "--gradient-accumulation-steps", "--learning-rate",
                 "--save-every", "--seed"):
        for value in NO_NUMBERS:
            b.refuse(2, flag, *b.train, f"{flag}={value}")
    for flag, values in (("--seq-len", ("-1", "1.5", "1e15")), ("--steps", ("-1", "0.5", "1e17")),
                         ("--epochs", ("0", "-3")),
                         ("--batch-size", ("0", "-1", "2.5", "3e9")),
                         ("--gradient-accumulation-steps", ("0", "-1", "3e9")),
                         ("--learning-rate", ("-1", "1e10", "-1e-9")), ("--save-every", ("-1", "0.1")),
                         ("--seed", ("0.5",))):
        for value in values:
            b.refuse(2, flag, *b.train, flag, value)
    b.refuse(2, ["--seq-len", "256"], *b.train, "--seq-len", "100000")


@test
def choices_that_do_not_exist(b):
    inputs(b)
    for value in ("tpu", "CPU", "cuda:0", "\x1b[2J", "x" * 9000):
        b.refuse(2, "--device", *b.train, "--device", value)
    for value in ("fsdp", "DDP", "zero3", "\x1b[2J", "x" * 9000):
        b.refuse(2, ["--strategy", "ddp, fsdp_stage2 or fsdp_stage3"], *b.train, "--strategy", value)
    for value in ("x", "1.5", "-2", "99999999999999999999"):
        b.refuse(2, "--local_rank", *b.train, "--local_rank", value)
    b.refuse(2, "--sample", *b.train, "--sample", "")
    b.refuse(2, "--sample", *b.train, "--sample", "x" * 2000)
    folder = b.path("v300")
    b.put("v300/config.json", merged(GPT2, vocab_size=100))
    b.refuse(2, "--sample", *without(b.train, "--model", "--data"), "--data", b.put("d.txt", "0123456789" * 99),
             "--model", folder,
             "--sample", "x")


@test
def checkpoints_that_are_not_there(b):
    inputs(b)
    empty = b.path("empty")
    os.mkdir(empty)
    b.put("odd/latest", "step-5\n")
    b.put("names/latest", "../../etc\n")
    b.put("long/latest", "step-" + "9" * 5000)
    b.put("two/latest", "step-1\nstep-2\n")
    b.put("binary/latest", b"step-1\0\xff")
    b.put("step/step-3/manifest.json", "{")
    b.put("step/latest", "step-3")
    os.makedirs(b.path("link"))
    os.symlink("/etc/passwd", b.path("link/latest"))
    os.makedirs(b.path("fifo"))
    os.mkfifo(b.path("fifo/latest"))
    for path, words in ((b.path("none"), ["none", "no such"]), (empty, ["empty", "latest"]), (b.text, ["good.txt"]),
                        (b.path("odd"), ["step-5", "not there"]), (b.path("names"), ["latest", "step-N"]),
                        (b.path("long"), ["latest"]), (b.path("two"), ["latest", "one line"]),
                        (b.path("binary"), ["latest"]),
                        (b.path("step"), ["manifest.json"]), (b.path("step/step-3"), ["manifest.json"]),
                        (b.path("link"), ["latest", "symbolic link"]), (b.path("fifo"), ["latest", "pipe"]),
                        ("/dev/null", ["/dev/null"]), ("x" * 5000, [""]),
                        ("a\x1b[2J\nb", ["without control characters"])):
        b.refuse(2, words, *b.train, "--load", path)
    b.refuse(2, ["--load", "--save"], *b.train, "--load", "auto")
    b.refuse(2, ["odd", "step-5"], *b.train, "--save", b.path("odd"), "--load", "auto")


@test
def checkpoints_that_are_damaged(b):
    inputs(b)
    run = b.path("run")
    b.accept(*b.train, "--save", run)
    b.nothing_left()
    step = run + "/step-1"
    for name in sorted(os.listdir(step)):
        with open(f"{step}/{name}", "rb") as f:
            whole = f.read()
        for data in (b"", whole[:len(whole) // 2], whole[:-1], whole + b"x",
                     whole[:len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1:]):
            b.put(f"run/step-1/{name}", data)
            b.refuse(2, ["step-1/" + name], *b.train, "--load", run)
        os.unlink(f"{step}/{name}")
        b.refuse(2, ["step-1"], *b.train, "--load", run)
        b.put(f"run/step-1/{name}", whole)
    b.accept(*b.train, "--load", run)
    other = without(b.train, "--model")
    b.refuse(2, ["step-1"], *other, "--model", "gpt2-micro", "--load", run)
    b.refuse(2, ["step-1", "exists"], *b.train, "--save", run)


@test
def places_that_cannot_be_written(b):
    """Found before the first step, not after the last: a run of a million steps is refused at once."""
    inputs(b)
    long = without(b.train, "--steps") + ["--steps", "1000000"]
    os.mkfifo(b.path("pipe"))
    os.symlink("/nonexistent/x", b.path("dangling"))
    for path, word in (("/proc/x", ""), ("/proc/a/b/c", ""), ("/dev/null", ""), ("/dev/null/x", ""), (b.text, ""),
                       (b.text + "/x", ""), (b.path("pipe"), ""), (b.path("dangling"), ""), ("x" * 300, "too long"),
                       ("/sys/x", ""), ("a/" * 3000, "at most 1023 bytes")):
        for flag in ("--save", "--log"):
            if (flag, path) != ("--log", "/dev/null") and not (flag == "--log" and path == b.text):
                b.refuse(2, [flag if flag == "--log" else "", word], *long, flag, path)
    b.refuse(2, ["--log", "Is a directory"], *long, "--log", b.input)
    for key in ("log", "log_text", "save"):
        b.refuse(2, "/proc/x", *long, "--config", b.put("c.json", merged(CONFIG, dsc={key: "/proc/x/y"})))
    b.refuse(2, ["dsc.save_every", "--save"], *b.train, "--save-every", "5", "--strict")


@test
def a_disk_without_room_for_a_checkpoint_is_found_before_the_first_step(b):
    inputs(b)
    small = b.path("small")
    os.mkdir(small)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", small],
                                           stderr=subprocess.DEVNULL).returncode != 0:
        return
    try:
        long = without(b.train, "--steps") + ["--steps", "1000000"]
        b.refuse(1, [small + "/run", "a checkpoint needs 9.8 MiB and 0.2 MiB are free"], *long, "--save", small + "/run")
        check(listing(small) == [], "left:", listing(small))
    finally:
        subprocess.run(["umount", small], check=True)


@test
def a_run_that_would_end_at_a_checkpoint_that_exists_is_refused_before_it(b):
    inputs(b)
    run = b.path("run")
    b.accept(*b.train, "--save", run)
    three = without(b.train, "--steps") + ["--steps", "3000000"]
    b.refuse(2, ["step-1", "exists already"], *three, "--save", run, "--save-every", "1")
    os.rename(run + "/step-1", run + "/step-3000000")
    b.put("run/latest", "step-3000000\n")
    b.refuse(2, ["step-3000000", "exists already"], *three, "--save", run)


@test
def a_commit_that_was_cut_short_does_not_stop_the_next_run(b):
    inputs(b)
    run = b.path("run")
    b.accept(*b.train, "--save", run)
    os.rename(run + "/latest", run + "/latest.tmp")
    b.accept(*b.train, "--save", run)
    check(listing(run)[:2] == ["latest", "step-1"], listing(run))


@test
def closed_descriptors_do_not_become_files_of_the_run(b):
    inputs(b)
    script = b.put("closed.sh", '#!/bin/sh\nexec "$@" <&- >&- 2>&-\n')
    os.chmod(script, 0o755)
    log, run = b.path("log.jsonl"), b.path("run")
    b.accept(script, *b.train, "--log", log, "--save", run)
    with open(log) as f:
        check([json.loads(line)["step"] for line in f] == [1], "not one object a step")
    b.accept(DSC, "ckpt", "verify", run)
    for argv in ([*b.train, "--bogus"], [DSC, "plan"], [LAUNCH, "--bogus"]):
        r = b.run(script, *argv)
        check(r.code == 2, r)


@test
def places_in_a_job_that_cannot_be(b):
    inputs(b)
    for env, word in (({"RANK": "x"}, "RANK"), ({"WORLD_SIZE": "x"}, "WORLD_SIZE"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
                      ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK"), ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK"),
                      ({"RANK": "0", "WORLD_SIZE": "99999999999999999999"}, "WORLD_SIZE"),
                      ({"RANK": "\x1b[2J", "WORLD_SIZE": "2"}, "RANK")):
        b.refuse(2, word, *b.train, env=env)


@test
def dsc_with_bad_arguments(b):
    inputs(b)
    plan = [DSC, "plan", "--config", b.config, "--model", "gpt2-nano"]
    for value in ("0", "-1", "x", "", "1.5", "1e3", "99999999999999999999", "4x", "\x1b[2J"):
        b.refuse(2, "--world-size", *plan, "--world-size", value)
        b.refuse(2, "--world-size", DSC, "config", "check", b.config, "--world-size", value)
        b.refuse(2, "--steps", DSC, "config", "lr", b.config, "--steps", value)
    for argv in ([], ["nope"], ["--nope"], [""], ["\x1b[2J"], ["x" * 5000], ["plan"], ["plan", "--config"],
                 ["plan", "x"],
                 ["config"], ["config", "check"], ["config", "nope"], ["config", "explain", "no.such.key"],
                 ["config", "explain", "\x1b[2J"], ["check"], ["check", "--kind"],
                 ["check", "--kind", "nope", b.config],
                 ["check", "--kind", "\x1b[2J", b.config], ["check", "--kind", "config"], ["ckpt"], ["ckpt", "nope"],
                 ["ckpt", "ls"], ["ckpt", "ls", b.path("none")], ["ckpt", "verify", b.text],
                 ["ckpt", "hash", b.path("none")],
                 ["ckpt", "ls", "\x1b[2J"], ["comm"], ["comm", "nope"], ["comm", "bench", "--ranks", "0"],
                 ["comm", "bench", "--nope"], ["doctor", "nope"], ["io"], ["generate"], ["data"]):
        b.refuse(2, "", DSC, *argv)

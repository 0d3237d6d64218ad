# jobs.py - the same through dsc-launch, one line a job, and jobs that are too large for the machine.
# SPDX-License-Identifier: Apache-2.0
import os

from common import *
from harness import *


def job(b, *argv, ranks=2):
    return [LAUNCH, f"--num_gpus={ranks}", *argv]


@test
def every_kind_of_bad_input_with_two_ranks(b):
    inputs(b)
    b.put("none/x", "")
    b.put("cut.json", "{")
    b.put("m/config.json", GPT2)
    b.put("m/model.safetensors", safetensors()[:-1])
    tokens = b.put("t.bin", uint16(*[5] * 30000, 256))
    odd = b.put("c.json", {"train_batch_size": 64, "gradient_accumulation_steps": 8})
    for words, argv in (
            (["cut.json:1:2"], ["--config", b.path("cut.json")]), (["no.json"], ["--config", b.path("no.json")]),
            (["/none", "config.json"], ["--model", b.path("none")]), (["model.safetensors"], ["--model", b.path("m")]),
            (['"nope"'], ["--model", "nope"]), (["gone.txt"], ["--data", b.path("gone.txt")]),
            (["t.bin", "position 30000"], ["--data", tokens]), (["--bogus"], ["--bogus"]),
            (["--steps"], ["--steps", "x"]),
            (["--load"], ["--load", "auto"]), (["/gone"], ["--load", b.path("gone")]),
            (["/proc/x"], ["--save", "/proc/x"]),
            (["/proc/x/y"], ["--log", "/proc/x/y"]), (["--device"], ["--device", "tpu"]),
            (["amp.enabled"], ["--config", b.put("f.json", merged(CONFIG, amp={"enabled": True}))])):
        argv0 = without(b.train, "--data") if "--data" in argv else b.train
        b.refuse(2, words, *job(b, *argv0, *argv))
    b.refuse(2, ["64", "= 48", "1, 2, 4, 8"], *job(b, *b.train, "--config", odd, ranks=3))


@test
def a_rank_alone_that_sees_bad_input_ends_the_job_with_its_line(b):
    """Only the second rank's file is bad: the first must neither wait for it nor speak over it."""
    inputs(b)
    script = b.put("rank.sh", '#!/bin/sh\n[ "$RANK" = 1 ] && set -- "$@" --data ' + b.path("gone.txt") +
                   '\nexec "$TRAIN" "$@"\n')
    os.chmod(script, 0o755)
    b.refuse(2, "gone.txt", *job(b, script, *without(b.train[1:], "--data")), env={"TRAIN": TRAIN})
    b.refuse(2, "gone.txt", *job(b, script, *without(b.train[1:], "--data"), ranks=3), env={"TRAIN": TRAIN})


@test
def launcher_flags_that_make_no_sense(b):
    inputs(b)
    for argv in (["--num_gpus=0"], ["--num_gpus=-2"], ["--num_gpus=x"], ["--num_gpus="], ["--num_gpus=99999999999"],
                 ["--num_gpus"], ["--bogus"], ["--hostfile", b.path("none")], ["--num_nodes=x"], ["--master_port=x"],
                 ["--master_port=99999"], ["-np", "0"], ["-H", ""], ["-np", "2", "-H", "localhost:0"],
                 ["--include", "@"],
                 ["\x1b[2J"], ["--launcher", "nope"]):
        b.refuse(2, "", LAUNCH, *argv, *b.train)
    b.refuse(2, "", LAUNCH)
    b.refuse(2, "", LAUNCH, "--num_gpus=2")
    b.refuse(2, "nope", LAUNCH, "--num_gpus=2", "nope-no-such-program")


@test
def a_model_or_a_number_of_ranks_that_memory_does_not_hold(b):
    inputs(b)
    words = ["memory", "MiB are free; use "]
    vast = b.put("vast.json", merged(GPT2, n_layer=4096, n_embd=8192, n_head=64, vocab_size=1 << 20, n_positions=1024))
    xl = without(b.train, "--model")
    ways = [  # the way out fits the run: nothing is proposed that it does already
        ({"zero_optimization": {"stage": 0}}, "recompute"),
        ({"zero_optimization": {"stage": 3}, "dsc": {"recompute": "full"}}, "")]
    for more, way_out in ways:
        config = ["--config", b.put("c.json", merged(CONFIG, **more))]
        for argv in ([*xl, *config, "--model", vast], [*b.train, *config, "--batch-size", "2000000"],
                     [*b.train, *config, "--gradient-accumulation-steps", "2147483647"],
                     job(b, *xl, *config, "--model", vast)):
            b.refuse(3, [*words, way_out], *argv)
            r = b.run(*argv)
            check(b"plan per rank (MiB):" in r.out and b"  total" in r.out, "no table", r)
            useless = [w for w in (b"stage 3", b"recompute") if w in r.errors()[0]]
            check(way_out or not useless, "advice that is followed already:", useless, r)
        r = b.run(DSC, "plan", "--model", vast, *config)
        check(r.code == 3 and b"does not fit" in r.out and len(r.errors()) == 1, r)
        b.decent(r)
        b.nothing_left()
    b.refuse(3, [*words, "64 ranks", "zero_optimization.stage 3"], *job(b, *xl, "--model", "gpt2-xl", ranks=64))


@test
def sizes_at_the_edge_of_numbers(b):
    inputs(b)
    most = b.put("most.json",
                 merged(GPT2, n_layer=4096, n_embd=1 << 18, n_head=64, vocab_size=1 << 24, n_positions=1 << 24,
                                     n_inner=1 << 20))
    argv = without(b.train, "--model", "--seq-len")
    for more in (["--batch-size", "1"], ["--batch-size", "2147483647"],
                 ["--gradient-accumulation-steps", "2147483647"]):
        r = b.run(*argv, "--model", most, *more)
        check(r.code in (2, 3) and len(r.errors()) == 1, r)
        b.decent(r)
        r = b.run(DSC, "plan", "--config", b.config, "--model", most, "--world-size", "1048576")
        check(r.code in (2, 3) and len(r.errors()) == 1, r)
        b.decent(r)
        b.nothing_left()


@test
def more_threads_than_cores_are_warned_of_once(b):
    inputs(b)
    crowd = os.cpu_count() + 1
    config = ["--config", b.put("c.json", merged(CONFIG, dsc={"threads": crowd}))]
    for argv, env in (([*b.train, *config], {}), (b.train, {"OMP_NUM_THREADS": str(crowd)}),
                      (job(b, *b.train, *config), {})):
        r = b.accept(*argv, env=env)
        lines = [l for l in r.err.split(b"\n") if b"cores" in l]
        check(len(lines) == 1 and b"warning" in lines[0] and b"threads" in lines[0], r)
    for argv in (b.train, job(b, *b.train), job(b, *b.train, ranks=crowd)):  # one thread each only shares the cores
        r = b.accept(*argv)
        check(b"cores" not in r.err, r)

# restart.py - --max_restarts: ranks that failed are started again. SPDX-License-Identifier: Apache-2.0
from harness import *

# Fails in its first N starts; says in which start it is.
FAILS = """#!/bin/sh
echo "start $DSC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS token $DSC_JOB_TOKEN"
[ $RANK = 1 ] && [ $DSC_RESTART_COUNT -lt $1 ] && { echo "dsc: error: broken $DSC_RESTART_COUNT" >&2; exit ${2-7}; }
[ $DSC_RESTART_COUNT -lt $1 ] && exec sleep 600
exit 0
"""


@test
def failed_ranks_start_again_with_a_new_token():
    with Folder() as f:
        marked = Marked()
        r = launch("-np", "2", "--max_restarts", "2", f.file("fails", FAILS, 0o755), "2", env=marked.env)
        equal(r.code, 0, r)
        equal(r.errors(), [], r)
        for part in ("restart 1 of 2 in 1 s", "restart 2 of 2 in 2 s", "rank 1 said \"broken 0\"", "broken 1"):
            check(part in r.err, part, r)
        tokens = set(re.findall("token (\\w+)", r.out))
        equal((len(tokens), "start 2 of 2" in r.out), (3, True), r)
        marked.wait_gone(0.2 * SLOW)


@test
def the_last_failure_is_the_jobs():
    with Folder() as f:
        r = launch("-np", "2", "--max-restarts=1", f.file("fails", FAILS, 0o755), "9")
        equal((r.code, r.errors()), (7, ["dsc: error: broken 1"]), r)


@test
def bad_input_is_not_tried_again():
    with Folder() as f:
        r = launch("-np", "2", "--max_restarts", "1", f.file("fails", FAILS, 0o755), "9", "2")
        equal((r.code, "restart" in r.err), (2, False), r)
        r = launch("--max_restarts", "1", f.file("broken", "#!/no/such/interpreter\n", 0o755))
        equal((r.code, "restart" in r.err), (2, False), r)


@test
def a_signal_ends_the_wait_for_a_restart():
    with Folder() as f:
        p = start("-np", "2", "--max_restarts", "9", f.file("fails", FAILS, 0o755), "9", stderr=subprocess.PIPE)
        seen = b""
        while b"restart 2 of 9" not in seen:
            piece = os.read(p.stderr.fileno(), 4096)
            check(piece, seen)
            seen += piece
        begin = time.monotonic()
        p.terminate()
        p.communicate(timeout=60)
        equal(p.returncode, 143, seen)
        check(time.monotonic() - begin < 1 * SLOW, "it waited")


# Rank 1 of the first start is killed as soon as step 3 is saved.
KILLED = """#!/bin/sh
if [ "$RANK$DSC_RESTART_COUNT" = 10 ]; then
    (while [ ! -e save/step-3 ]; do sleep 0.01; done; kill -9 $$) &
fi
exec "$@"
"""


def tiny_run(f):
    f.file("config.json", json.dumps({
        "train_batch_size": 2, "bf16": {"enabled": False}, "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "dsc": {"model": "gpt2-nano", "data": f.file("text.txt", "so it goes, on and on; " * 400), "threads": 1,
                "seq_length": 16, "save_every": 1}}))


@test
def training_goes_on_from_the_last_checkpoint():
    with Folder() as f:
        tiny_run(f)
        train = ["train", "--config", "config.json", "--steps", "12", "--save"]
        r = launch("-np", "2", *train, "calm", cwd=f.path, timeout=60)
        equal(r.code, 0, r)
        r = launch("-np", "2", "--max_restarts", "1", f.file("killed", KILLED, 0o755),
                   os.path.join(os.path.dirname(LAUNCH), "train"), *train[1:], "save", cwd=f.path, timeout=60)
        equal((r.code, "restart 1 of 1" in r.err), (0, True), r)
        hashes = [subprocess.run([os.path.join(os.path.dirname(LAUNCH), "dsc"), "ckpt", "hash", f"{f.path}/{d}/step-12"],
                                 capture_output=True, text=True).stdout for d in ("calm", "save")]
        equal((len(hashes[0]), hashes[0]), (65, hashes[1]))


@test
def a_restart_cannot_take_another_runs_checkpoint_for_its_own():
    with Folder() as f:
        tiny_run(f)
        def train(*more, restarts="1"):
            return launch("-np", "1", "--max_restarts", restarts, "train", "--config", "config.json", "--save-every",
                          "2", "--save", "save", *more, cwd=f.path, timeout=60)
        equal(train("--steps", "4", restarts="0").code, 0)
        # Dead before its first save, either would start again from step-4.
        refused(train("--steps", "9", "--save-every", "9"), "save", "latest", "--load auto")
        refused(train("--steps", "9", "--save-every", "9", "--load", "save/step-2"), "save", "latest", "--load auto")
        # From what `latest` names a restart goes on as the first start does.
        for steps, load in (("5", "auto"), ("6", "save/"), ("7", "save/step-6")):
            equal(train("--steps", steps, "--load", load).code, 0, load)

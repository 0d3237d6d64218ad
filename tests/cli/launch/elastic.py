# elastic.py - jobs whose ranks leave and join. SPDX-License-Identifier: Apache-2.0
from elastic_job import *


def killed(*victims):
    with Job("-np", "4", "--min_np", "2") as job:
        job.wait_step(3)
        for slot in victims:
            job.signal(slot, signal.SIGKILL)
        job.end()
        job.same_bits(repeated=1)
        check(len(job.worlds()) >= 2 and job.worlds()[-1] >= 3, job.said())
        check("is lost: rank " in job.said() and "after the world before it ended" in job.said(), job.said())


@test
def the_first_rank_is_killed():
    killed(0)


@test
def another_rank_is_killed():
    killed(2)


@test
def two_that_are_no_neighbours_are_killed():
    killed(1, 3)


# Rank 1's states are nowhere: the run goes on from its checkpoint, or from the beginning.
@test
def neighbours_are_killed():
    with Job("-np", "4", "--min-num-proc", "2", more=["--save", "{}/ck", "--save-every", "2"]) as job:
        job.wait_step(4)
        for slot in (1, 2):
            job.signal(slot, signal.SIGSTOP) # so that both are there when the other dies
        for slot in (1, 2):
            job.signal(slot, signal.SIGKILL)
        job.end()
        job.same_bits(repeated=STEPS)
        check("are lost with the ranks that had them" in job.said(), job.said())
        check("resumed at step " in job.said(), job.said())


@test
def a_rank_is_killed_during_the_reform():
    with Job("-np", "4", "--min_np", "1") as job:
        job.wait_step(3)
        job.signal(3, signal.SIGKILL)
        job.wait_line("dsc-launch: world 2: ")
        job.signal(1, signal.SIGKILL)
        job.end()
        job.same_bits(repeated=STEPS)
        check(len(job.worlds()) >= 3, job.said())


@test
def a_new_rank_takes_part_in_the_sample():
    with Job("-np", "2", "--min_np", "1", more=["--sample", "Moses"], steps=60) as job:
        job.wait_step(2)
        job.signal(1, signal.SIGKILL)
        job.end()
        check('the model continues "Moses"' in job.said() and job.worlds()[-1] == 2, job.said())


# Five ranks cannot share twelve micro-batches equally, which their quotas would allow.
@test
def a_world_without_equal_batches_is_refused_at_the_start():
    with Job("-np", "4", "--min_np", "3", "--max_np", "6", quota=None, reproducible="plan") as job:
        equal(job.p.wait(60), 2, job.said())
        errors = [l for l in job.said().splitlines() if "dsc: error: " in l]
        check(len(errors) == 1 and "the run may come to 5 ranks: " in errors[0] and '"quota": "even"' in errors[0],
              job.said())
        equal(losses_of(job.folder.read("log")) if os.path.exists(job.folder.path + "/log") else {}, {}, job.said())


# It has seen none of the evaluations before, which the others leave out then.
@test
def a_new_rank_ends_with_the_others_by_patience():
    with Job("-np", "2", "--min_np", "2", more=["--eval-data", "{}/t.txt"], steps=100, lr=0, eval_every=1, eval_batches=1,
             stop={"eval_patience": 8}, elastic={"mirror_every": 0}) as job:
        job.wait_step(4)
        job.signal(1, signal.SIGKILL)
        job.end()
        check("step 9: 8 evaluations in a row brought no lower loss" in job.said(), job.said())
        equal(job.worlds(), [2, 2], job.said())


# A later world would go on from it.
@test
def a_checkpoint_of_another_run_is_refused_at_the_start():
    with Job("-np", "2", "--min_np", "1", more=["--save", "{}/ck"], steps=2) as job:
        job.end()
        at = job.folder.path
        again = ["-np", "2", "--min_np", "1", "train", "--config", at + "/c.json", "--data", at + "/t.txt", "--steps",
                 "3", "--save", at + "/ck"]
        r = launch(*again)
        equal((r.code, len(r.errors())), (2, 1), r)
        check("names a checkpoint of another run" in r.errors()[0], r)
        r = launch(*again, "--load", "auto")
        equal(r.code, 0, r)


# Nothing is made again, and the slot stays empty.
@test
def sigterm_to_a_rank_is_a_leave():
    with Job("-np", "3", "--min_np", "2") as job:
        job.wait_step(2)
        job.signal(0, signal.SIGTERM)
        job.end()
        job.same_bits(repeated=0)
        equal(job.worlds(), [3, 2], job.said())
        check("slot 0: its rank has left" in job.said(), job.said())
        rows = [json.loads(l) for l in job.folder.read("log").splitlines()]
        worlds = [row for row in rows if "world" in row]
        equal([(row["world"], row["ranks"]) for row in worlds], [(2, 2)], rows)
        plot = subprocess.run([os.path.join(os.path.dirname(LAUNCH), "dsc"), "plot", job.folder.path + "/log", "-o",
                               job.folder.path + "/plot.svg"], capture_output=True, text=True)
        equal(plot.returncode, 0, plot.stderr)
        check(0 < worlds[0]["seconds"] < 60 and worlds[0]["after_step"] >= 2, worlds)


@test
def a_stopped_rank_is_killed_and_replaced():
    with Job("-np", "3", "--min_np", "2") as job:
        job.wait_step(2)
        job.signal(1, signal.SIGSTOP)
        job.end()
        job.same_bits(repeated=1)
        check("is stopped: it is killed" in job.said(), job.said())
        check("killed by SIGKILL" in job.said(), job.said())


@test
def ranks_join_while_checkpoints_are_written():
    save = ["--save", "{}/ck", "--save-every", "1", "--save-async"]
    with Job("-np", "2", "--min_np", "1", "--max_np", "4", "--oversubscribe", more=save) as job:
        job.wait_step(5)
        job.signal(1, signal.SIGKILL)
        job.end()
        job.same_bits(repeated=1)
        equal((job.worlds()[0], job.worlds()[-1]), (2, 4), job.said())
        check(os.path.isdir(f"{job.folder.path}/ck/step-{STEPS}"), job.said())
        check("not saved" not in job.said(), job.said())


@test
def too_few_ranks_save_and_end():
    with Job("-np", "3", "--min_np", "3", "--reset_limit", "0", more=["--save", "{}/ck"]) as job:
        job.wait_step(3)
        job.signal(1, signal.SIGKILL)
        job.end(4)
        errors = [l for l in job.said().splitlines() if l.startswith("dsc: error:")]
        equal(len(errors), 1, job.said())
        check("2 ranks are left, fewer than --min_np 3, and no other came; step " in errors[0], errors)
        check(int(re.search(r"step (\d+) is saved", errors[0]).group(1)) >= 2, errors)
        check(any(n.startswith("step-") for n in os.listdir(job.folder.path + "/ck")), job.said())


@test
def the_user_ends_the_job_once():
    with Job("-np", "3", "--min_np", "1", more=["--save", "{}/ck"], steps=1000) as job:
        job.wait_step(2)
        job.p.terminate()
        job.end(143)
        check("SIGTERM: ended at step " in job.said(), job.said())
        equal(job.worlds(), [3], "no rank leaves by itself", job.said())


def offer(folder, slots):
    folder.file("new", f"localhost:{slots}\n")
    os.replace(folder.path + "/new", folder.path + "/slots")


# A script that prints what is offered.
def offering(folder, slots):
    offer(folder, slots)
    return folder.file("hosts", f"#!/bin/sh\nexec cat {folder.path}/slots\n", 0o755)


@test
def the_user_ends_ranks_that_wait_for_others():
    with Folder() as f:
        script = offering(f, 3)
        with Job("-np", "3", "--min_np", "3", "-H", "localhost:3", "--host-discovery-script", script, steps=1000,
                 more=["--save", "{}/ck"]) as job:
            job.wait_step(2)
            offer(f, 2)
            job.wait_line("slot 2: its rank has left")
            time.sleep(0.5)
            check("fewer than" not in job.said(), job.said())
            job.p.terminate()
            job.end(143)
            check(any(n.startswith("step-") for n in os.listdir(job.folder.path + "/ck")), job.said())


# One failed run of the script names fewer slots, which changes nothing.
@test
def a_script_that_fails_changes_nothing():
    with Folder() as f:
        script = f.file("hosts", f"#!/bin/sh\ntest ! -e {f.path}/bad || {{ echo localhost:1; exit 3; }}\n"
                        "echo localhost:3\n", 0o755)
        with Job("-np", "3", "--min_np", "1", "-H", "localhost:3", "--host-discovery-script", script, steps=1000,
                 more=["--save", "{}/ck"]) as job:
            job.wait_step(2)
            f.file("bad", "")
            job.wait_line("it ended with code 3; the hosts stay as they are")
            time.sleep(1.5)
            job.p.terminate()
            job.end(143)
            equal(job.worlds(), [3], job.said())


@test
def a_job_that_saves_nothing_says_so_at_its_end():
    with Job("-np", "2", "--min_np", "1", steps=1000) as job:
        job.wait_step(2)
        job.p.terminate()
        job.end(143)
        check(re.search(r"SIGTERM: ended at step \d+; nothing is saved; start with --save DIR", job.said()), job.said())
        check("which is saved" not in job.said(), job.said())


@test
def hosts_of_a_script_take_4_ranks_to_3_to_4_to_6():
    with Folder() as f:
        script = offering(f, 4)
        with Job("-np", "4", "--min_np", "3", "--max_np", "6", "-H", "localhost:6", "--host-discovery-script", script,
                 steps=1000, more=["--save", "{}/ck"]) as job:
            for world, (now, then) in enumerate(((4, 3), (3, 4), (4, 6)), 1):
                job.wait_line(f"dsc-launch: world {world}: {now} rank")
                job.wait_step(job.steps_done() + 1)
                offer(f, then)
            wait_for(lambda: job.worlds()[-1] == 6 or job.p.poll() is not None, 60, job.said())
            job.wait_step(job.steps_done() + 2)
            job.p.terminate()
            job.end(143)
            worlds = job.worlds() # two new processes may come one after the other
            equal([w for i, w in enumerate(worlds) if w != 5], [4, 3, 4, 6], job.said())
            got, want = losses_of(job.folder.read("log")), undisturbed()
            equal({k: set(v) for k, v in got.items() if k in want}, {k: set(v) for k, v in want.items() if k in got})
            check(all(len(v) == 1 for v in got.values()) and len(got) >= 8, "a step was repeated", job.said())
        for name, text, part in (("fails", "echo localhost:1; exit 3", "ended with code 3"),
                                 ("long", "yes '' | head -c 70000; echo localhost:1", "more than 64 KiB")):
            wrong = f.file(name, f"#!/bin/sh\n{text}\n", 0o755)
            refused(launch("-np", "2", "--min_np", "1", "--host_discovery_script", wrong, "true"), wrong, part)
        for words, part in (("nowhere:3", "nowhere:3"), ("localhost:x", "localhost:x"), ("", "printed no host")):
            f.file("slots", words)
            refused(launch("-np", "2", "--min_np", "1", "--host_discovery_script", script, "true"), script, part)
    refused(launch("--host_discovery_script", "/no/such", "true"), "--host_discovery_script", "needs --min_np")


# Kills, stops, late processes and a slow disk, drawn from a seed.
@test
def faults_of_chaos_change_no_bit():
    spec = "seed=5,kill=3,stop=8,late=200,disk=1"
    with Job("-np", "3", "--min_np", "1", "--chaos", spec, more=["--save", "{}/ck", "--save-every", "3"],
             steps=30) as job:
        job.end()
        got = losses_of(job.folder.read("log"))
        equal(sorted(got), list(range(1, 31)), job.said())
        want = undisturbed()
        equal({k: set(v) for k, v in got.items() if k in want}, {k: set(v) for k, v in want.items()}, job.said())
        check("dsc-launch: chaos: " in job.said() and len(job.worlds()) > 1, job.said())
    for text in ("kill", "kill=", "kill=0", "kill=-1", "kill=1e9", "kill=1,", "reboot=1", "kill=1;stop=1"):
        refused(launch("-np", "2", "--min_np", "1", "--chaos", text, "true"), "--chaos")
    refused(launch("--chaos", "kill=1", "true"), "--chaos", "needs --min_np")


# Each process fails in the same way: its slot is not filled for ever.
@test
def processes_that_always_fail_end_the_job():
    with Folder() as f:
        r = launch("-np", "2", "--min_np", "1", f.file("fails", "#!/bin/sh\nexit 7\n", 0o755))
        equal(r.code, 7, r)
        r = launch("-np", "2", "--min_np", "1", "train", "--config", f.file("c.json", '{"train_batch_sise": 1,'))
        equal((r.code, len(r.errors())), (2, 1), r)


@test
def a_program_without_worlds_has_fixed_ranks():
    r = launch("-np", "3", "--min_np", "1", "sh", "-c", "echo $RANK/$WORLD_SIZE")
    equal((r.code, sorted(l.split("] ")[-1] for l in r.out.splitlines())), (0, ["0/3", "1/3", "2/3"]), r)


# As without --min_np: -H beside -np is a list, and more ranks than slots are refused.
@test
def hosts_beside_the_number_of_ranks_are_a_list():
    refused(launch("-H", "a,b", "-np", "2", "--min_np", "1", "--dry_run", "true"), "-H", 'expected :N after "a"')
    refused(launch("-np", "8", "-H", "a:2,b:2", "--min_np", "1", "--dry_run", "true"), "-np", "the hosts have 4 slots")
    refused(launch("-np", "8", "-H", "localhost:2", "--min_np", "1", "--dry_run", "true"), "-np", "which has 2 slots")


@test
def flags_that_do_not_fit_are_refused():
    refused(launch("--max_np", "3", "true"), "--max_np", "needs --min_np")
    refused(launch("--reset_limit", "3", "true"), "--reset_limit", "needs --min_np")
    refused(launch("--elastic_timeout", "3", "true"), "--elastic_timeout", "needs --min_np")
    refused(launch("-np", "2", "--min_np", "1", "--chaos", "cut=3", "true"), "--chaos", "there is one host")
    refused(launch("--min_np", "3", "--max_np", "2", "true"), "--max_np", "--min_np <= -np <= --max_np")
    refused(launch("-np", "2", "--min_np", "3", "true"), "--min_np", "more than")
    refused(launch("--nnodes", "1:2", "true"), "--nnodes", "--nproc_per_node")
    refused(launch("--nnodes", "3:2", "--nproc_per_node", "1", "true"), "--nnodes", "MIN:MAX")
    refused(launch("--launcher", "slurm", "--min_np", "1", "true"), "--min_np", "agents")
    refused(launch("--no_ssh", "--min_np", "1", "true"), "--min_np", "--no_ssh")


sys.exit(run_all(next((a for a in sys.argv[1:] if not a.startswith("-")), "")))

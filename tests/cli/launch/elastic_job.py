# elastic_job.py - one training job whose ranks leave and join, beside the same run of one rank that nobody disturbs.
# SPDX-License-Identifier: Apache-2.0
import functools

from harness import *

STEPS = 10
CONFIG = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
          "gradient_clipping": 1.0,
          "dsc": {"quota": "even", "reproducible": "world_size", "elastic": {"mirror_every": 1}, "seq_length": 32,
                  "threads": 1}}


def config_of(lr=1e-3, **own):
    optimizer = {"type": "AdamW", "params": {"lr": lr}}
    return json.dumps({**CONFIG, "optimizer": optimizer, "dsc": {**CONFIG["dsc"], **own}})


def text_of_data():
    return open(os.path.join(ROOT, "CONTRIBUTING.md")).read()


def losses_of(text):
    """The bits of each step's loss; a step that was made again has one more."""
    found = {}
    for line in text.splitlines():
        row = json.loads(line)
        if "step" in row:
            found.setdefault(row["step"], []).append(float(row["loss"]).hex())
    return found


@functools.lru_cache
def undisturbed():
    with Folder() as f:
        args = ["--config", f.file("c.json", config_of()), "--data", f.file("t.txt", text_of_data()), "--steps",
                str(STEPS), "--log", f.path + "/log"]
        p = subprocess.run([os.path.join(os.path.dirname(LAUNCH), "train"), *args], env=clean_env(),
                           capture_output=True)
        equal(p.returncode, 0, p.stderr)
        return losses_of(f.read("log"))


class Job:
    """A job in a folder of its own. `flags` are of dsc-launch, `more` of train; `own` are settings of the config."""

    def __init__(self, *flags, more=(), steps=STEPS, **own):
        self.folder = Folder().__enter__()
        self.marked = Marked()
        f = self.folder
        self.out = open(f.path + "/out", "w")
        more = [a.replace("{}", f.path) for a in more]
        self.p = subprocess.Popen(
            [LAUNCH, *flags, "train", "--config", f.file("c.json", config_of(**own)), "--data",
             f.file("t.txt", text_of_data()), "--steps", str(steps), "--log", f.path + "/log", *more],
            env=self.marked.env, stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        self.out.close()
        self.folder.__exit__()

    def said(self):
        return self.folder.read("out")

    def steps_done(self):
        return max([json.loads(l).get("step", 0) for l in self.folder.read("log").splitlines() if l.endswith("}")] or [0])

    def wait_step(self, step):
        wait_for(lambda: self.steps_done() >= step or self.p.poll() is not None, 60, f"step {step}: {self.said()}")

    def wait_line(self, text):
        wait_for(lambda: text in self.said() or self.p.poll() is not None, 60, f"{text}: {self.said()}")

    def pid_of(self, slot):
        """The newest process of a slot."""
        found = [pid for pid, words in environments().items()
                 if f"DSC_TEST_MARK={self.marked.mark}".encode() in words and f"RANK={slot}".encode() in words]
        return max(found) if found else None

    def signal(self, slot, number):
        pid = self.pid_of(slot)
        check(pid is not None, f"slot {slot} has no process", self.said())
        os.kill(pid, number)

    def worlds(self):
        return [int(n) for n in re.findall(r"dsc-launch: world \d+: (\d+) ranks?$", self.said(), re.M)]

    def end(self, code=0):
        """The job ends, and nothing of it is left."""
        equal(self.p.wait(120), code, self.said())
        self.marked.wait_gone(2 * SLOW)
        left = [n for n in os.listdir("/dev/shm") if "dsc" in n and self.marked.mark in n]
        equal(left, [], "files in /dev/shm")

    def same_bits(self, repeated):
        """Losses as undisturbed, and at most `repeated` steps made again."""
        got, want = losses_of(self.folder.read("log")), undisturbed()
        equal({k: set(v) for k, v in got.items()}, {k: set(v) for k, v in want.items()}, self.said())
        check(sum(len(v) - 1 for v in got.values()) <= repeated, "too many steps were repeated", self.said())

#!/usr/bin/env bash
# test_profile.sh - dsc.trace (a trace of all ranks that is JSON, with every module, collective and step where it
# belongs), flops_profiler and comms_logger tables whose numbers agree with the run. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'mountpoint -q "$tmp/small" && umount "$tmp/small"; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive

for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # MEMBERS OWN_MEMBERS
    cat >config.json <<END
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3, "overlap_comm": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}$1,
 "dsc": {"model": "gpt2-nano", "data": "text.txt", "eval_data": "text.txt", "eval_batches": 1, "seq_length": 16, "threads": 1${2:-}
}}
END
}
train() { code=0; timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config config.json "$@" >out 2>err </dev/null || code=$?; return $code; }

config ', "flops_profiler": {"enabled": true, "profile_step": 3}, "comms_logger": {"enabled": true}' ', "trace": "trace.json", "recompute": "full"'
report "two ranks train" train --steps 4 --save save
rows() { awk '/^modules of rank 0 in step 3/ { on = 1; next } /^step/ { on = 0 } on' out; }
# Parameters and shares of the modules add up to the last row; the blocks' backward has forward's work three times.
table_adds_up() {
    rows | awk '
        NR == 1 { next }
        $1 == "all" { exit !(n == 6 && (p - $2) ^ 2 < 1e-5 && (s - 100) ^ 2 < 0.25 && (f - $4) ^ 2 < 1e-4) }
        { n++; p += $2; f += $4; s += $10 }
        $1 ~ /^h\./ && ($7 / $4 - 3) ^ 2 > 0.1 { exit 1 }'
}
report "a table of the modules of step 3" table_adds_up
# Stage 3, 2 ranks, 2 micro-steps of 4 steps: every group of a block is summed once a micro-step.
report "a table of collectives" grep -qE '^  reduce_scatter +[0-9]+ +32 ' out

if command -v python3 >/dev/null; then
    cat >read.py <<'END'
import collections, json, sys
text, steps, saves = open(sys.argv[1]).read(), int(sys.argv[2]), int(sys.argv[3])
events = json.loads(text.rstrip().rstrip(",") + "]")  # the format lets the bracket be left out
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert sorted(names) == [0, 1] and names[1].startswith("rank 1 of 2 on "), names
spans = [e for e in events if e["ph"] == "X"]
for rank in 0, 1:
    mine = sorted((e for e in spans if e["pid"] == rank and e["tid"] == 0), key=lambda e: (e["ts"], -e["dur"]))
    ends = []  # on one track a span lies inside another or behind it
    for e in mine:
        while ends and ends[-1] <= e["ts"] + 0.002:
            ends.pop()
        assert not ends or e["ts"] + e["dur"] <= ends[-1] + 0.002, e
        ends.append(e["ts"] + e["dur"])
    count = collections.Counter((e["args"]["step"], e["cat"]) for e in mine)
    for step in range(1, steps + 1):
        want = {"forward": 12, "recompute": 8, "backward": 10, "update": 1, "wait for data": 2}
        assert {k: count[step, k] for k in want} == want, (rank, step, count)
    assert sum(n for (_, kind), n in count.items() if kind == "save") == saves, count
    sums = [e for e in spans if e["pid"] == rank and e["name"] == "reduce_scatter"]
    assert len(sums) == 14 * steps and all(e["tid"] == 3 and e["args"]["bytes"] > 0 for e in sums), len(sums)
first = [min(e["ts"] for e in spans if e["pid"] == rank) for rank in (0, 1)]
assert all(0 <= ts < 60e6 for ts in first), first  # microseconds since rank 0 opened the trace
END
    reads() { python3 read.py "$@" >why 2>&1; }
    report "a trace of both ranks" reads trace.json 4 1
    config "" ', "trace": "short.json", "trace_steps": 2, "recompute": "full"'
    train --steps 4
    report "a trace ends at trace_steps" reads short.json 2 0
else
    skip "a trace of both ranks" "no python3"
fi

config ', "flops_profiler": {"enabled": true, "detailed": false, "top_modules": 2, "output_file": "table.txt"},
    "comms_logger": {"enabled": true, "prof_all": false, "prof_ops": ["all_gather_into_tensor"]}'
train --steps 1
report "two modules in a file" [ "$(grep -c . table.txt)" = 5 -a "$(grep -c '^modules of rank' out)" = 0 ]
report "one operation" [ "$(awk '/^collectives of rank 0/ { on = 1 } on && /^  [a-z]/ { print $1 }' out | sort | uniq | tr '\n' ' ')" = "all_gather operation " ]
config ', "comms_logger": {"enabled": true, "prof_ops": ["all_the_things"]}'
report "an operation that is none" [ "$(train --steps 1; echo $?)/$(grep -c '^dsc: error: .*prof_ops.*"all_the_things"' err)" = 2/1 ]
config "" ', "trace": "none/trace.json"'
report "a trace that cannot be written" [ "$(train --steps 1; echo $?)/$(grep -c '^dsc: error: .*none/trace.json' err)" = 2/1 ]
if mkdir small && mount -t tmpfs -o size=8k none small 2>/dev/null; then
    config "" ', "trace": "small/trace.json"'
    report "a full disk does not end the run" train --steps 5
    report "each rank tells of it once" [ "$(grep -c 'warning: dsc.trace: .*No space left.*the run goes on' err)" = 2 ]
else
    skip "a full disk" "tmpfs cannot be mounted here"
fi
end_of_tests

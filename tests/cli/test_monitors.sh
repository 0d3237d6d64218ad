#!/usr/bin/env bash
# test_monitors.sh - TensorBoard, CSV, Weights & Biases and Comet files have the numbers of --log, also after a kill and a
# resume. A folder that cannot be written is refused, and a disk that becomes full does not end the run.
#
# DSC_TEST_PYTHON names a python3 that has the tensorboard, wandb and comet_ml packages; their readers are then asked too.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'kill $(jobs -p) 2>/dev/null; mountpoint -q "$tmp/small" && umount "$tmp/small"; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
python=${DSC_TEST_PYTHON:-python3}

for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # OUTPUT_PATH
    cat <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "wall_clock_breakdown": true, "steps_per_print": 2,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "tensorboard": {"enabled": true, "output_path": "$1/tb", "job_name": "a run"},
 "csv_monitor": {"enabled": true, "output_path": "$1/csv"}, "wandb": {"enabled": true, "group": "a group"},
 "comet": {"enabled": true, "project": "a project", "experiment_name": "a \\"name\\"", "samples_log_interval": 8},
 "dsc": {"model": "gpt2-nano", "data": "text.txt", "eval_data": "text.txt", "eval_batches": 1, "seq_length": 16, "threads": 1}}
END
}
as_logged() { "$@" >why 2>&1; }
train() { timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config config.json "$@" >out 2>err </dev/null; }

export WANDB_DIR=logs COMET_OFFLINE_DIRECTORY=logs/comet
config logs >config.json
report "two ranks train" train --steps 5 --save save --save-every 3 --log log.jsonl
report "a line of times with each detailed one" [ "$(grep -c '^time (ms) | forward: [0-9.]* | backward: [0-9.]* | step: [0-9.]* | ' out)" = 2 ]
report "one event file" [ "$(find logs/tb -type f | wc -l)" = 1 ]
rm -rf save/step-5 && echo step-3 >save/latest # as if killed after step 5
sleep 1.1                                               # the time in the file's name is of another second
report "it resumes at step 3" train --steps 7 --save save --load save --log log.jsonl
report "into a second event file" [ "$(find logs/tb -type f | wc -l)" = 2 ]
if ! command -v "$python" >/dev/null; then skip "the files have the numbers of the log" "no python3"; else
    report "the files have the numbers of the log" as_logged "$python" -B "$root/tests/cli/read_events.py" "logs/tb/a run" logs/csv/DeepSpeedJobName log.jsonl 8
    "$python" -c 'import tensorboard' 2>/dev/null || skip "TensorBoard's own reader" "the tensorboard package is not installed"
    report "so have the offline runs" as_logged "$python" -B "$root/tests/cli/read_wandb.py" logs/wandb log.jsonl 8 2
    report "and the offline experiments" as_logged "$python" -B "$root/tests/cli/read_comet.py" logs/comet log.jsonl 8 2
    "$python" -c 'import comet_ml' 2>/dev/null || skip "as Comet's package writes them" "the comet_ml package is not installed"
    config logs | sed 's/"samples_log_interval": 8/"experiment_key": "..\/..\/x"/' >config.json
    report "a key that is none is refused" [ "$(train --steps 1; echo $?)" = 2 ]
    report "and named" grep -q '^dsc: error: comet.experiment_key: ".*32 to 50 letters' err
    config logs >config.json
    report "one of several blocks" eval 'WANDB_DIR=long train --steps 60 --log long.jsonl && as_logged "$python" -B "$root/tests/cli/read_wandb.py" long/wandb long.jsonl 8 1 && [ $(cat long/wandb/*/*.wandb | wc -c) -gt 32768 ]'
    "$python" -c 'import wandb.sdk.internal.datastore' 2>/dev/null ||
        skip "wandb's own reader" "no wandb package that reads such files in Python (before 0.20) is installed"
fi

echo plain >file
config file >config.json
report "a file in the place of the folder is bad input" [ "$(train --steps 2 --log none.jsonl; echo $?)" = 2 ]
report "the error names the folder" grep -q '^dsc: error: file.*folder' err
config there >config.json
for variable in WANDB_DIR COMET_OFFLINE_DIRECTORY; do
    report "so is a path in $variable that is too long" [ "$(export "$variable=$(printf '%05000d' 0)"; train --steps 2 --log none.jsonl; echo $?)" = 2 ]
    report "and told with its monitor" grep -q '^dsc: error: \(wandb\|comet\): the path of its folder is longer than 4095 bytes' err
done
if mkdir small && mount -t tmpfs -o size=64k none small 2>/dev/null; then
    export WANDB_DIR=small COMET_OFFLINE_DIRECTORY=small
    config small >config.json
    head -c 1M /dev/zero >small/zeros 2>/dev/null
    report "a full disk does not end the run" train --steps 3 --log full.jsonl
    report "each monitor that stopped is told of once" [ "$(grep -c 'warning: \(tensorboard\|csv_monitor\|wandb\|comet\): .*No space left.*the run goes on' err)" = 4 ]
else
    skip "a full disk" "tmpfs cannot be mounted here"
fi

# ---- Prometheus ----
port=$((20000 + $$ % 20000))
config logs | sed "s/\"threads\": 1/&, \"prometheus_port\": $port/" >config.json
if [ ! -e "${DSC_LIB:-$root/lib}/dsc/libdsc_http.so" ] || ! command -v "$python" >/dev/null; then
    skip "a page for Prometheus" "no libdsc_http.so (make deps-http) or no python3"
    end_of_tests
fi
cat >scrape.py <<'END'
import json, re, sys, time, urllib.error, urllib.request
at = "http://127.0.0.1:" + sys.argv[1]
deadline = time.time() + 120
while True:  # until the first detailed step is done
    try:
        reply = urllib.request.urlopen(at + "/metrics", timeout=30)
        page = reply.read().decode()
        if "dsc_elapsed_time_ms_step" in page:
            break
    except (urllib.error.URLError, ConnectionError) as e:
        assert time.time() < deadline, e
    time.sleep(0.05)
assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4"), reply.headers
values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
assert int(values["dsc_samples_total"]) % 8 == 0 and 0 < float(values["dsc_train_loss"]) < 6, values
assert values["dsc_lr"] == "0.001" and float(values["dsc_tokens_per_second"]) > 0, values
for name in values:
    assert re.fullmatch(r'dsc_[a-z_]+({version="[0-9.]+"})?', name), name
    assert f"# TYPE {name.split('{')[0]} " in page, name
asked = set(re.findall(r"dsc_[a-z_]+", open(sys.argv[2]).read()))
assert asked - {"dsc_validation_loss"} <= set(values), asked - set(values)
run = json.load(urllib.request.urlopen(at + "/run.json", timeout=30))
series = {s["name"]: s for s in run["series"]}
assert run["model"] == "gpt2-nano" and run["ranks"] == 2 and run["steps"] == 100000 and run["step"] >= 1, run
assert len(run["rank"]) == 2 and all(r["host"] and 0 < r["loss"] < 6 and r["work_ms"] > 0 for r in run["rank"]), run["rank"]
assert series["loss"]["step"][0] == 1 and series["loss"]["step"][-1] == run["step"], series["loss"]
assert len(series["loss"]["value"]) == len(series["loss"]["step"]), series["loss"]
losses = dict(zip(series["loss"]["step"], series["loss"]["value"]))
told = [re.match(r"step (\d+): loss ([0-9.]+),", line) for line in run["log"]]  # the last lines, whichever these are
assert any(told) and all(abs(losses[int(m[1])] - float(m[2])) < 1e-5 for m in told if m), run["log"]
html = urllib.request.urlopen(at + "/", timeout=30)
assert html.headers["Content-Type"].startswith("text/html") and "run.json" in html.read().decode()
for path, code in ("/", 404), ("/run.json", 404), ("/metrics", 200):  # another site's name that points here
    try:
        got = urllib.request.urlopen(urllib.request.Request(at + path, headers={"Host": "a.example:80"}), timeout=30).status
    except urllib.error.HTTPError as e:
        got = e.code
    assert got == code, (path, got)
for path, method, code in ("/x", "GET", 404), ("/metrics/../x", "GET", 404), ("/metrics", "HEAD", 200):
    try:
        got = urllib.request.urlopen(urllib.request.Request(at + path, method=method), timeout=30).status
    except urllib.error.HTTPError as e:
        got = e.code
    assert got == code, (path, got)
END
timeout 100 "$bin/dsc-launch" --num_gpus=2 train --config config.json --steps 100000 >served.out 2>&1 </dev/null &
job=$!
report "a page for Prometheus, with what the dashboard asks for" as_logged "$python" -B scrape.py $port "$root/examples/grafana/dsc.json"
report "on the loopback address only" [ "$(ss -Hltn "sport = :$port" | awk '{ print $4 }')" = "127.0.0.1:$port" ]
report "a port that is taken is bad input" [ "$(train --steps 2; echo $?)/$(grep -c "^dsc: error: dsc.prometheus_port: .*$port: Address already in use" err)" = 2/1 ]
if command -v prometheus >/dev/null; then
    cat >prometheus.yml <<END
global: {scrape_interval: 1s}
scrape_configs: [{job_name: dsc, static_configs: [{targets: ["127.0.0.1:$port"]}]}]
END
    cat >ask.py <<'END'
import json, sys, time, urllib.request
for _ in range(150):
    time.sleep(0.2)
    try:
        url = "http://127.0.0.1:" + sys.argv[1] + "/api/v1/query?query=dsc_train_loss"
        result = json.load(urllib.request.urlopen(url, timeout=30))["data"]["result"]
    except OSError:
        continue
    if result:
        assert result[0]["metric"]["job"] == "dsc" and 0 < float(result[0]["value"][1]) < 6, result
        sys.exit(0)
sys.exit("Prometheus has no dsc_train_loss")
END
    prometheus --config.file=prometheus.yml --storage.tsdb.path=tsdb --web.listen-address=127.0.0.1:$((port + 1)) >prometheus.out 2>&1 &
    server=$!
    report "Prometheus itself scrapes it" as_logged "$python" -B ask.py $((port + 1))
    kill $server && wait $server 2>/dev/null
else
    skip "Prometheus itself scrapes it" "prometheus is not installed"
fi
if command -v chromium >/dev/null; then
    seen() { timeout 60 chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=5000 --dump-dom "http://127.0.0.1:$port/" >dom 2>why; }
    report "a browser shows the page" seen
    report "with its curves and ranks" [ "$(grep -o '<polyline' dom | wc -l)" -ge 4 -a "$(grep -o '<tr><td>[01]</td>' dom | wc -l)" = 2 ]
else
    skip "a browser shows the page" "chromium is not installed"
fi
kill $job
wait $job 2>/dev/null
end_of_tests

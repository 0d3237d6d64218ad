#!/usr/bin/env bash
# test_mlflow.sh - dsc.mlflow: every number of the log arrives, also when the server is busy for a time. A server that goes
# away does not end the run, and a wrong setting is an error before the first step.
#
# DSC_TEST_PYTHON names a python3 that has the mlflow package; a real server is then asked too.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
python=${DSC_TEST_PYTHON:-python3}
if [ ! -e "${DSC_LIB:-$root/lib}/dsc/libdsc_web.so" ] || ! command -v "$python" >/dev/null; then
    echo "no libdsc_web.so (make deps-http) or no python3"
    exit 77
fi
for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # URI
    cat >config.json <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
 "dsc": {"model": "gpt2-nano", "data": "text.txt", "eval_data": "text.txt", "eval_batches": 1, "seq_length": 16, "threads": 1,
         "mlflow": {"tracking_uri": "$1", "experiment": "a \"text\" & more", "run_name": "nano"}}}
END
}
train() { timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config config.json "$@" >out 2>err </dev/null; }
serve() { # MODE
    kill $(jobs -p) 2>/dev/null
    rm -f kept.json port
    "$python" -B "$root/tests/cli/mlflow_server.py" kept.json port "$1" >served 2>&1 &
    for _ in $(seq 200); do [ -s port ] && break; sleep 0.05; done
    config "http://127.0.0.1:$(cat port)/"
}
cat >same.py <<'END'
import json, sys
run = json.load(open("kept.json"))["runs"]["r-1"]
log = [json.loads(line) for line in open("log.jsonl")]
assert run["name"] == "nano" and run["status"] == sys.argv[1], run
assert run["params"]["model"] == "gpt2-nano" and run["params"]["train_batch_size"] == "8" and run["params"]["ranks"] == "2", run
assert run["metrics"]["train_loss"] == [[l["step"], l["loss"]] for l in log], run["metrics"]["train_loss"]
assert run["metrics"]["lr"] == [[l["step"], l["lr"]] for l in log] and len(run["metrics"]["validation_loss"]) == 1
assert len(log) == int(sys.argv[2])
END
same() { "$python" same.py "$@" 2>why; }

serve good
export MLFLOW_TRACKING_TOKEN=secret
report "a run in a server" train --steps 6 --log log.jsonl
report "has the numbers of the log" same FINISHED 6
report "and the token" grep -q '"authorization": "Bearer secret"' kept.json
report "which no file of ours has" [ -z "$(grep -l secret config.json log.jsonl out err)" ]
rm -f log.jsonl
serve busy
report "a server that is busy for a time" train --steps 6 --log log.jsonl
report "has them all the same, in the end" [ "$(same FINISHED 6; echo $?)" = 0 -a "$(grep -o '"refused": [0-9]*' kept.json | tr -dc 0-9)" -ge 2 ]
serve gone
report "a server that refuses later does not end the run" train --steps 300
report "which is told of once" [ "$(grep -c 'warning: dsc.mlflow: .*HTTP 400.*; the run goes on without it' err)" = 1 ]
report "without its control characters" [ "$(grep -c "$(printf '\033')" err)" = 0 ]
serve other
report "another server is bad input" [ "$(train --steps 2; echo $?)/$(grep -c '^dsc: error: dsc.mlflow.tracking_uri: .*is not an MLflow server' err)" = 2/1 ]
config http://127.0.0.1:1
report "no server is bad input" [ "$(train --steps 2; echo $?)/$(grep -c '^dsc: error: dsc.mlflow.tracking_uri: http://127.0.0.1:1: ' err)" = 2/1 ]
config file:///etc/passwd
report "a file is no server" [ "$(train --steps 2; echo $?)/$(grep -c 'is not an http:// or https:// address' err)" = 2/1 ]

if ! "$python" -c 'import mlflow' 2>/dev/null; then
    skip "MLflow itself" "the mlflow package is not installed"
    end_of_tests
fi
unset MLFLOW_TRACKING_TOKEN
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$python" -m mlflow server --host 127.0.0.1 --port "$port" --backend-store-uri "sqlite:///$tmp/real.db" >served 2>&1 &
until "$python" -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do sleep 0.5; done
config "http://127.0.0.1:$port"
rm -f log.jsonl
report "MLflow itself takes a run" train --steps 6 --log log.jsonl
cat >ask.py <<'END'
import json, sys, mlflow
mlflow.set_tracking_uri("http://127.0.0.1:" + sys.argv[1])
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name('a "text" & more')
[run] = client.search_runs([experiment.experiment_id])
losses = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train_loss")]
assert losses == [(l["step"], l["loss"]) for l in map(json.loads, open("log.jsonl"))], losses
assert run.info.status == "FINISHED" and run.data.params["zero_stage"] == "0" and run.info.run_name == "nano", run
END
asked() { "$python" ask.py "$port" >why 2>&1; }
report "and has its numbers" asked
end_of_tests

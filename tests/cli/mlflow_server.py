"""A stand-in for an MLflow server: keeps all requests in OUT.json and checks each request as MLflow's REST API 2.0 has it.

mlflow_server.py OUT.json PORT_FILE MODE; modes: good, busy (each batch of metrics is refused twice with 503), gone (batches of
metrics are refused for good with 400), other (some other server). SPDX-License-Identifier: Apache-2.0"""
import http.server
import json
import os
import sys
import urllib.parse

out, port_file, mode = sys.argv[1:]
kept = {"experiments": {}, "runs": {}, "batches": 0, "refused": 0}


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, code, answer):
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        with open(out + ".new", "w") as file:
            json.dump(kept, file)
        os.replace(out + ".new", out)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        assert url.path == "/api/2.0/mlflow/experiments/get-by-name", self.path
        name = urllib.parse.parse_qs(url.query, strict_parsing=True)["experiment_name"][0]
        if mode == "other":
            self.reply(200, {"hello": "world"})
        elif name in kept["experiments"]:
            self.reply(200, {"experiment": {"experiment_id": kept["experiments"][name]}})
        else:
            self.reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        what = self.path.removeprefix("/api/2.0/mlflow/")
        assert self.headers["Content-Type"] == "application/json"
        if what == "experiments/create":
            kept["experiments"][asked["name"]] = "7"
            self.reply(200, {"experiment_id": "7"})
        elif what == "runs/create":
            assert asked["experiment_id"] == "7" and asked["start_time"] > 1e12, asked
            kept["runs"]["r-1"] = {"name": asked["run_name"], "params": {}, "metrics": {}, "status": "RUNNING",
                                   "authorization": self.headers.get("Authorization")}
            self.reply(200, {"run": {"info": {"run_id": "r-1"}}})
        elif what == "runs/log-batch":
            self.take(asked)
        else:
            assert what == "runs/update" and asked["end_time"] > 1e12, (what, asked)
            kept["runs"][asked["run_id"]]["status"] = asked["status"]
            self.reply(200, {})

    def take(self, asked):
        run = kept["runs"][asked["run_id"]]
        metrics = asked.get("metrics", [])
        kept["batches"] += 1
        if metrics and mode == "gone" or metrics and mode == "busy" and kept["batches"] % 3 != 1:
            kept["refused"] += 1
            self.reply(400 if mode == "gone" else 503, {"message": "not \x1b[31mnow"})
            return
        assert len(metrics) <= 1000
        for one in metrics:
            assert one["timestamp"] > 1e12
            run["metrics"].setdefault(one["key"], []).append([one["step"], one["value"]])
        run["params"].update({p["key"]: p["value"] for p in asked.get("params", [])})
        self.reply(200, {})


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.replace(port_file + ".new", port_file)
server.serve_forever()

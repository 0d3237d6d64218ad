"""read_comet.py - checks the offline experiments that a run's starts wrote against its --log: read_comet.py FOLDER LOG
BATCH STARTS. The archive is read by Python's zipfile; where the comet_ml package is installed, it is held against one
that the package writes. SPDX-License-Identifier: Apache-2.0"""
import glob
import json
import math
import sys
import tempfile
import zipfile

from read_events import TAGS


def read(path):
    """The experiment's description, and its lines."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and sorted(archive.namelist()) == ["experiment.json", "messages.json"]
        return (json.loads(archive.read("experiment.json")),
                [json.loads(line) for line in archive.read("messages.json").decode().splitlines()])


def metrics(lines):
    """tag -> {samples: value}"""
    found = {}
    for line in lines:
        if line["type"] == "metric_msg":
            metric = line["payload"]["metric"]
            found.setdefault(metric["metricName"], {})[metric["step"]] = metric["metricValue"]
    return found


def shape(value):
    return {k: shape(v) for k, v in value.items()} if isinstance(value, dict) else None


def check_shapes(experiment, lines):
    try:
        from comet_ml import OfflineExperiment
    except ImportError:
        return
    with tempfile.TemporaryDirectory() as folder:
        theirs = OfflineExperiment(project_name="a project", offline_directory=folder, log_code=False, log_graph=False,
                                   log_env_details=False, auto_output_logging=False, display_summary_level=0)
        theirs.set_name("a name")
        theirs.log_metric("x", 1.5, step=8)
        theirs.end()
        their_experiment, their_lines = read(glob.glob(folder + "/*.zip")[0])
    assert shape(experiment) == shape(their_experiment), (experiment, their_experiment)
    for kind in "metric_msg", "log_other":
        mine, other = ([line for line in all_lines if line["type"] == kind][-1 if kind == "metric_msg" else 0]
                       for all_lines in (lines, their_lines))
        assert shape(mine) == shape(other), (mine, other)


def main():
    folder, log, batch, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    paths = glob.glob(folder + "/*.zip")
    assert len(paths) == count, paths
    starts = []
    for path in paths:
        experiment, lines = read(path)
        assert experiment["project_name"] == "a project" and experiment["offline_id"] in path, experiment
        assert [line["payload"]["message_id"] for line in lines] == list(range(1, len(lines) + 1))
        assert lines[0]["payload"]["value"] == 'a "name"', lines[0]
        starts.append(metrics(lines))
    check_shapes(experiment, lines)
    starts.sort(key=lambda found: min(found["Train/Samples/train_loss"]))
    said = {row["step"] * batch: row for row in map(json.loads, open(log)) if "loss" in row}
    for tag, key in TAGS.items():
        values = {}
        for found in starts:
            values.update(found["Train/Samples/" + tag])
        assert sorted(values) == sorted(said), (tag, sorted(values))
        for samples, row in said.items():
            assert math.isclose(values[samples], row[key], rel_tol=1e-8), (tag, samples, values[samples], row[key])
    assert any("Validation/Samples/loss" in found for found in starts)
    print(f"{len(said)} steps of {len(starts)} starts")


main()

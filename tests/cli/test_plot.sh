#!/usr/bin/env bash
# test_plot.sh - `dsc plot`: a picture that an XML parser reads, with every run's curves at the right coordinates. A file
# that is not a log is refused with file and line. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
run() { code=0; timeout 60 "$dsc" plot "$@" >out 2>err </dev/null || code=$?; }
fails() { [ $code -eq 2 ] && [ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] && grep -q '^dsc: error: ' err && grep -qF -- "$1" err; }

log() { # FIRST LAST: a line falls from 10
    local i
    for ((i = $1; i <= $2; i++)); do
        echo "{\"step\":$i,\"loss\":$((10 - i)),\"lr\":0.001,\"grad_norm\":null,\"tokens\":64,\"step_ms\":2.5,\"tokens_per_s\":25600,\"skipped\":false,\"loss_scale\":1}"
    done
}
log 1 5 >one.jsonl
{ log 1 4; log 3 8; } >'a & <b>.jsonl' # resumed at step 2
run one.jsonl 'a & <b>.jsonl' -o both.svg
report "two runs" [ $code -eq 0 -a -s both.svg ]
report "the later line of a step counts" grep -q 'a & <b>.jsonl, 8 steps, loss 2.0000 at the end' out
if command -v python3 >/dev/null; then
    cat >read.py <<'END'
import re, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
tag = "{http://www.w3.org/2000/svg}"
texts = [t.text for t in root.iter(tag + "text")]
assert {"loss", "gradient norm", "learning rate", "tokens per second", "one.jsonl", "a & <b>.jsonl"} <= set(texts), texts
curves = [p.get("d") for p in root.iter(tag + "path") if p.get("class") == "curve"]
points = [[tuple(map(float, p.split())) for p in re.split("[ML]", d)[1:]] for d in curves]
assert [len(p) for p in points] == [5, 8, 5, 8, 5, 8], [len(p) for p in points]  # no norm: no curve
for p in points[:2]:  # a line in the numbers is one in the picture
    steps = {(round(b[0] - a[0], 0), round(b[1] - a[1], 0)) for a, b in zip(p, p[1:])}
    assert len(steps) <= 2 and all(dx > 0 and dy > 0 for dx, dy in steps), steps
assert points[0][0] == points[1][0] and points[0][4] == points[1][4]
END
    report "curves where the numbers belong" python3 read.py both.svg
else
    skip "curves where the numbers belong" "no python3"
fi
run one.jsonl -o - --y loss --y step_ms --x time --smooth 0.9 --log
report "to standard output" [ $code -eq 0 -a "$(grep -c 'class="title"' out)" = 2 -a "$(grep -c '>hours<' out)" = 2 ]
printf '{"step":6,"lo' >>one.jsonl
run one.jsonl -o -
report "a line that is being written is not there yet" [ $code -eq 0 ]
awk 'BEGIN { for (i = 1; i <= 100000; i++) printf "{\"step\":%d,\"loss\":%s}\n", i, i % 7 ? i : "null" }' >long.jsonl
run long.jsonl -o long.svg --y loss
report "a long run is a small picture" [ $code -eq 0 -a "$(wc -c <long.svg)" -lt 60000 ]

run; report "no log" fails 'dsc plot: RUN.jsonl is missing'
run none.jsonl; report "no such file" fails 'none.jsonl: cannot open'
: >empty.jsonl; run empty.jsonl; report "an empty log" fails 'empty.jsonl: no step in it yet'
printf '{"step":1}\n{"loss":1}\n' >other.jsonl; run other.jsonl; report "another file" fails 'other.jsonl:2: no "step" here'
printf '{"step":1}\n{"step":2,"loss":NaN}\n' >nan.jsonl; run nan.jsonl; report "no JSON" fails 'nan.jsonl:2'
head -c 200000 /dev/zero | tr '\0' x >wide.jsonl; echo >>wide.jsonl; run wide.jsonl; report "a line without end" fails 'wide.jsonl:1'
run one.jsonl --y speed; report "no such series" fails '"speed" is unknown'
run one.jsonl --smooth 1; report "too smooth" fails '--smooth'
run one.jsonl -o none/x.svg; report "nowhere to write" [ $code -ne 0 -a "$(grep -c '^dsc: error: none/x.svg' err)" = 1 ]
run /dev/zero; report "a device" fails '/dev/zero'
end_of_tests

#!/usr/bin/env bash
# test_demo_vision.sh - `make demo-vision` without a network: drawn pictures take the place of digits. And the files that it makes
# of scikit-learn's table. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
mkdir offline sklearn sklearn/datasets sklearn/datasets/data
printf '#!/bin/sh\nexit 3\n' >offline/python3 && chmod +x offline/python3
cp -r "$root/scripts" scripts && ln -s "$bin" bin # the demo runs in the folder above its own
code=0
PATH=$tmp/offline:$PATH RANKS=2 EPOCHS=1 FOLDER=out timeout 100 scripts/demo_vision.sh >demo.out 2>demo.err </dev/null || code=$?
cp demo.out out.txt
report "the demo ends well, and says what its pictures are" eval '[ $code -eq 0 ] && grep -q "^pictures: drawn shapes, as " demo.out'
report "the accuracy is printed" grep -q '^evaluation: accuracy 0\.[0-9]*, [0-9]* of 256 samples' demo.out
report "a PNG file has the predictions" eval 'head -c 4 out/predictions.png | grep -q PNG'
touch sklearn/__init__.py
data() { PYTHONPATH=$tmp python3 -B "$root/scripts/demo_vision_data.py" "$1" >data.out 2>&1; }
table() { python3 -c "import gzip
rows = [','.join(['%d' % (i % 17)] * 64 + ['%d' % (i % 10)]) for i in range($1)]
gzip.open('sklearn/datasets/data/digits.csv.gz', 'wt').write('\n'.join(rows) + '\n')"; }
files() {
    mkdir -p idx && table 1797 && data idx && python3 - <<'END_OF_CHECK'
train, labels = open("idx/train-images-idx3-ubyte", "rb").read(), open("idx/t10k-labels-idx1-ubyte", "rb").read()
assert train[:16] == bytes.fromhex("00000803000005dc0000000800000008") and len(train) == 16 + 1500 * 64
assert train[16 + 64 * 16] == 255 and train[16 + 64 * 15] == 240 and train[16 + 64 * 17] == 0
assert labels[:8] == bytes.fromhex("0000080100000129") and list(labels[8:11]) == [0, 1, 2]
END_OF_CHECK
}
report "digits of an installed scikit-learn become IDX files" files
other() { table 5 && ! data idx && grep -q "another file of digits" data.out; }
report "another table is refused" other
end_of_tests

#!/usr/bin/env bash
# test_classify_pictures.sh - `dsc classify` says about pictures what an evaluation of the training counted, draws them with their
# labels, and refuses what is no picture of a known class. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
run() { code=0; timeout 60 "$@" >out 2>err </dev/null || code=$?; }
refused() { [ $code -eq 2 ] && grep '^dsc: error: ' err | grep -qF -- "$1"; }
says() { [ $code -eq 0 ] && grep -qF -- "$1" err; }

echo '{"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 0.002}}}' >config.json
for model in basic_cnn mobilenet_v3_small; do # the second one has buffers
    run "$bin/train" --config config.json --model $model --data shapes:train --eval-data shapes:test --steps 6 --save $model.save
    words=$(sed -n 's/^evaluation: accuracy \([0-9.]*, [0-9]* of 256\) .*/\1/p' out)
    report "$model is trained and evaluated" [ -n "$words" ]
    run "$dsc" classify --model $model.save/step-6 shapes:test --grid $model.png
    report "$model: as many right ones as in the evaluation" says "accuracy $words pictures"
    report "$model: a line for each picture" [ "$(grep -c '"truth":"' out)" -eq 256 ]
done
fields='^\{"file":"shapes:test: 3","label":"[a-z]+","class":[0-9],"probability":0\.[0-9]+,"truth":"ring","top":\[(\{"label":"[a-z]+","class":[0-9],"probability":[0-9.e-]+\},?){5}\]\}$'
report "five classes, the likeliest first" grep -qE "$fields" out
run "$dsc" classify --model basic_cnn.save/step-6 shapes:test --show 4
report "text pictures instead of lines" eval '[ $code -eq 0 ] && [ "$(wc -l <out)" -eq 10 ] && ! grep -q "{" out'
drawn() {
    python3 -B - basic_cnn.png <<'END_OF_CHECK'
import struct, sys, zlib
data, at, pixels = open(sys.argv[1], "rb").read(), 8, b""
assert data[:8] == b"\x89PNG\r\n\x1a\n"
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + size]
    assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0]
    if kind == b"IHDR":
        width, height = struct.unpack(">II", body[:8])
    pixels += body if kind == b"IDAT" else b""
    at += 12 + size
rows = zlib.decompress(pixels)
assert len(rows) == height * (1 + 3 * width) and width == 720 and not any(rows[::1 + 3 * width])
END_OF_CHECK
}
report "the grid is a PNG file with right sums" drawn
mkdir -p loose class/ring class/zebra && cp basic_cnn.png loose/a.png && cp basic_cnn.png class/ring && cp basic_cnn.png class/zebra
run "$dsc" classify --model basic_cnn.save/step-6 loose loose/a.png --top 1
if [ $code -eq 0 ]; then
    report "files and folders without classes" eval '[ "$(grep -c "\"file\":\"loose/a.png\"" out)" -eq 2 ] && ! grep -q truth out && [ ! -s err ]'
else # without libpng
    report "the library that is missing is named" refused "libpng"
fi
run "$dsc" classify --model basic_cnn.save/step-6 class
report "a class that the model does not know" refused 'the class "zebra" is unknown to the model'
run "$dsc" classify --model basic_cnn.save/step-6 class loose
report "known and unknown classes" refused "one kind at a time"
run "$dsc" classify --model basic_cnn.save/step-6 none.jpg
report "no such picture" refused "there is no such picture"
run "$dsc" classify --model mobilenet shapes:test
report "a model without weights" refused "has no weights here"
run "$dsc" classify --model gpt2-nano --grid a.png x.jsonl
report "a grid of texts" refused "--grid and --show are for a model of pictures"
end_of_tests

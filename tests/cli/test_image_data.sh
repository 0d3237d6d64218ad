#!/usr/bin/env bash
# test_image_data.sh - training on folders, shards and lists of pictures: the same bits for any number of ranks and readers, after
# a resumption within an epoch, and from every kind of list. Broken pictures are named, refused or skipped.
# SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
python3 -c 'import ctypes; [ctypes.CDLL(name) for name in ("libpng16.so.16", "libturbojpeg.so.0", "libwebp.so.7")]' 2>/dev/null ||
    { echo "libpng, TurboJPEG or libwebp is not installed (make deps-images)"; exit 77; }
python3 -B "$root/tests/cli/image_files.py" "$tmp" || exit 1
cp "$root/tests/fuzz/corpus/image/a.jpg" "$root/tests/fuzz/corpus/image/a.webp" train/cat/ && mkdir names vit
cat >vit/config.json <<'END'
{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32, "initializer_range": 0.1, "num_hidden_layers": 1,
 "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16, "patch_size": 4, "num_labels": 3}
END
sed 's/"num_labels": 3/"id2label": {"0": "cat", "1": "dog", "2": "bird"}/' vit/config.json >names/config.json
images='"random_crop": true, "mixup": 0.4, "cutmix": 1.0, "mixup_prob": 0.6, "flip": 0.5, "color_jitter": [0.2, 0.2, 0.2, 0.05], "rand_augment": [1, 3], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]'
config() { # NAME DATA IMAGES
    cat >"$1.json" <<END
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
 "dsc": {"model": "vit", "data": $2, "steps": 12, "threads": 1, "reproducible": "world_size", "images": {$3}}}
END
}
trains() { # NAME RANKS FLAGS...
    local name=$1 ranks=$2
    shift 2
    rm -rf "$name.save" "$name.log"
    timeout 60 "$bin/dsc-launch" --num_gpus="$ranks" train --config "$name.json" --save "$name.save" --log "$name.log" "$@" >"$name.out" 2>&1 \
        </dev/null || { cp "$name.out" why; return 1; }
    { sed -E '/"eval_step"/d; s/.*"step":([0-9]+),.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2 \3/' "$name.log"; "$dsc" ckpt hash "$name.save/step-12"; } >"$name.result"
}
same() { cmp -s reference.result "$1.result" || { diff reference.result "$1.result" >why; return 1; }; }
config reference '"train"' "$images"
report "a folder of classes is learned" trains reference 1 --eval-data eval
learned() { grep -q "accuracy 1.0000, 12 of 12 samples" reference.out || { cp reference.out why; return 1; }; }
report "the evaluation sees all pictures" learned
named() { grep -q '"2":.*"dog"' reference.save/step-12/config.json && grep -q '"ant":.*0' reference.save/step-12/config.json; }
report "the checkpoint names the classes" named
for ranks in 2 4; do
    config ranks '"train"' "$images, \"readers\": 3"
    report "$ranks ranks with 3 readers have the same bits" eval "trains ranks $ranks && same ranks"
done
planned() { # 32 MiB and 9 bytes a pixel for each reader, in the plan before a run and in that of the run
    library() { # READERS
        config plan '"train"' "$images, \"pixels_max\": 1000000, \"readers\": $1"
        "$dsc" plan --config plan.json --json | python3 -c '
import json, sys
print(sum(row["bytes"] for row in json.load(sys.stdin)["per_rank"] if row["tag"] == "library" and row["tier"] == "host"))'; }
    [ "$(($(library 3) - $(library 1)))" -eq $((2 * ((32 << 20) + 9000000))) ] || { echo "$(library 3) $(library 1)" >why; return 1; }
    "$dsc" plan --config plan.json >planned 2>why && trains plan 1 && cp plan.out why && for out in planned plan.out; do
        grep -E '^ *library +host' $out | awk '{print $NF}' >$out.bytes; done
    [ -s planned.bytes ] && cmp planned.bytes plan.out.bytes >why 2>&1
}
report "the plan has the decoders of each reader" planned
resumed() {
    config resumed '"train"' "$images"
    timeout 60 "$bin/train" --config resumed.json --save resumed.save --steps 3 >out 2>&1 </dev/null || return 1
    timeout 60 "$bin/train" --config resumed.json --save resumed.save --load latest --steps 12 >out 2>&1 </dev/null || return 1
    "$dsc" ckpt hash resumed.save/step-12 >resumed.result
    tail -n "$(wc -l <resumed.result)" reference.result | cmp -s - resumed.result
}
report "a run that is resumed within an epoch has the same bits" resumed
rm train/cat/a.jpg train/cat/a.webp
config reference '"train"' "$images"
report "the folder without the other formats" trains reference 1
config csv '"list.csv"' "$images"
report "a CSV file of the same pictures has the same bits" eval "trains csv 1 && same csv"
config tar '"all.tar"' "$images"
report "a shard has the same bits" eval "trains tar 1 && same tar"
config range '"part-{000000..000001}.tar"' "$images"
report "a range of shards has the same bits" eval "trains range 2 && same range"

refuses() { # WORDS NAME FLAGS...: within the time limit, and in 4 GiB without a sanitizer
    local words=$1 name=$2
    shift 2
    code=0
    ([ -n "${DSC_SAN:-}" ] || ulimit -v 4194304; exec timeout 60 "$bin/train" --config "$name.json" --steps 4 "$@") >out 2>err </dev/null || code=$?
    [ $code -eq 2 ] && grep -qF -- "$words" err && code=0
}
config plain '"one"' ''
broken() { # FILE WORDS
    rm -rf one && mkdir -p one/ant && cp "broken/$1" one/ant/
    report "$1 is refused" refuses "$2" plain
}
broken truncated.png "the PNG file is broken"
broken header.png "the PNG file is truncated"
broken crc.png "the PNG file is broken"
broken bomb.png "the header says 65535 by 65535 pixels"
broken short.png "the PNG file is broken"
broken bomb.jpg "the header says 65535 by 65535 pixels"
broken scans.jpg "more than 64 scans"
broken cut.jpg "the JPEG file is truncated"
broken bomb.webp "and dsc.images.pixels_max allows"
broken empty.png "the file is empty"
broken text.png "the file is not a picture; expected JPEG, PNG or WebP"
broken gif.png "the picture is GIF"
named_file() { grep -q 'one/ant/gif.png: .*dsc.images.broken "skip"' err; }
report "the line names the file and the key" named_file
cp broken/truncated.png train/dog/005.png
skips() {
    for ranks in 1 2; do
        config skip '"train"' "$images, \"broken\": \"skip\""
        trains skip $ranks || return 1
        grep -q 'skipped 1 broken picture: train/dog/005.png: the PNG file is broken' skip.out || { cp skip.out why; return 1; }
        cp skip.result skip.$ranks
    done
    cmp skip.1 skip.2 >why
}
report "skip takes another picture for it, on 1 and 2 ranks the same" skips
report "a picture that was skipped is counted by dsc data images" eval \
    '"$dsc" data images train -o skip.pictures --crop 16 --skip-broken >out 2>err && grep -q "33 pictures of 16 by 16, 1 broken ones replaced" out'
report "without the flag it is refused, and nothing is left" eval \
    '! "$dsc" data images train -o none.pictures --crop 16 >out 2>err && grep -q "train/dog/005.png: the PNG file is broken" err && ! ls none.pictures* 2>/dev/null'
rm train/dog/005.png
packed() { # the same pictures as floats of the evaluation's transform
    "$dsc" data images train -o train.pictures --resize 18 --crop 16 >out 2>err || return 1
    [ "$(cat train.pictures.classes | tr '\n' ' ')" = "ant cat dog " ] || fail "the names of classes" || return 1
    "$dsc" data images eval -o eval.pictures --crop 16 --classes train.pictures.classes >out 2>err || return 1
    config packed '"train.pictures"' '"resize": 18' && config folder '"train"' '"resize": 18'
    sed -i 's/"resize": 18//' packed.json
    trains packed 1 && trains folder 2 && cmp folder.result packed.result >why
}
report "a packed file has the bits of its folder" packed
names_of_packed() {
    grep -q '"2":.*"dog"' packed.save/step-12/config.json || { cp packed.save/step-12/config.json why; return 1; }
    trains packed 1 --eval-data eval.pictures && cp eval.pictures other.pictures && printf 'cat\nant\ndog\n' >other.pictures.classes || return 1
    code=0
    timeout 20 "$bin/train" --config packed.json --eval-data other.pictures >out 2>err </dev/null || code=$?
    [ $code -eq 2 ] && grep -q 'class 0 is "cat", and the model or another file has "ant"' err
}
report "names beside a packed file are those of the checkpoint and of evaluations" names_of_packed
cp all.tar all.tar.gz && config gz '"all.tar.gz"' ''
report "a compressed shard is refused" refuses "decompress it with gzip -d" gz
rm -rf one && mkdir -p one/ant one/empty && cp train/ant/000.png one/ant/
report "a class without a picture is refused" refuses "the class has no picture" plain
rmdir one/empty && cp train/ant/000.png one/
report "a picture beside the classes is refused" refuses "a picture beside the folders of classes" plain
mkdir none && config none '"none"' ''
report "a folder without classes is refused" refuses "the folder has no folders of classes" none
report "a class that the model does not know is refused" refuses 'the class "ant" is unknown to the model' reference --model names
config cut '"cut.tar"' ''
report "a truncated shard is refused" refuses "(truncated?)" cut
printf 'file,kind\na.png,1\n' >no.csv
config no '"no.csv"' ''
report "a CSV file without the columns is refused" refuses "begins with the names of its columns, path and label" no
printf 'path,label\ntrain/ant/000.png,7\n' >seven.csv
config seven '"seven.csv"' ''
report "a class above the model's is refused" refuses "the picture has class 7, and the model has 3 classes" seven
config alone '"train"' '"mixup": 0.2'
sed -i 's/"train_micro_batch_size_per_gpu": 2/"train_micro_batch_size_per_gpu": 1/' alone.json
report "a micro-batch of one picture cannot be mixed" refuses "has none to mix it with" alone
report "a text model mixes no pictures" refuses "does not classify pictures" alone --model gpt2-nano --data "$root/README.md"
config mixed '["all.tar", "list.csv"]' ''
report "numbers beside names are refused" refuses "expected one kind in all files" mixed
config small '"train"' '"resize": 8'
report "a resize below the model's size is refused" refuses "give as much or more" small
end_of_tests

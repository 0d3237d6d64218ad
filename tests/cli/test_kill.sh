#!/usr/bin/env bash
# test_kill.sh - kill -9 of a rank at every labelled point of a commit and at random moments. Each next life resumes from
# the folder's checkpoints, and at the end every loss and the `dsc ckpt hash` are those of an undisturbed run.
#
# Lives follow each other on one folder; every other one saves asynchronously. In the first chain their number of ranks
# changes too ("world_size" bits). A seed (DSC_TEST_SEED) chooses the random moments; DSC_TEST_NIGHT=1 makes 200 of them.
# SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # thousands of fsyncs
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more ranks than cores
seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "# seed $seed; rerun: DSC_TEST_SEED=$seed $0"
RANDOM=$((seed % 32768))

# Text without a period, so that every sample has its own loss.
awk 'BEGIN { x = 7; for (i = 0; i < 9000; i++) { x = (x * 1103515245 + 12345) % 2147483648
    printf "%s%s", substr("abcdefghijklmnopqrstuvwxyz", int(x / 65536) % 26 + 1, 1 + i % 3), i % 5 ? "" : " " } }' >text.txt
mkdir model
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}' >model/config.json
config() { # NAME STAGE REPRODUCIBLE
    cat >"$1.json" <<END
{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "zero_optimization": {"stage": $2},
 "dsc": {"model": "$tmp/model", "data": "$tmp/text.txt", "seq_length": 16, "threads": 1, "save_every": 1, "reproducible": "$3"}}
END
}
# life NAME RANKS STEPS: saves every step into NAME.save, unless $flags say else; its losses go to the end of NAME.lives.
flags=
life() {
    rm -f "$1.log"
    timeout 120 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --save "$1.save" --load auto --steps "$3" \
        --log "$1.log" $flags >"$1.out" 2>&1 </dev/null
    local code=$?
    [ -e "$1.log" ] && sed -nE 's/^\{"step":([0-9]+),"loss":([^,]*),.*"grad_norm":([^,]*),.*\}$/\1 \2 \3/p' "$1.log" >>"$1.lives"
    return $code
}
latest() { [ -e "$1.save/latest" ] && sed 's/step-//' "$1.save/latest" || echo 0; }
# Whatever has the name of a checkpoint is one: all that are newer than when this was last asked.
all_whole() {
    local step
    for step in "$1".save/step-*; do
        case $step in *.tmp | *'*') continue ;; esac
        [ "${step##*-}" -gt "$checked" ] || continue
        "$bin/dsc" ckpt verify "$step" >/dev/null 2>>why || return 1
    done
    checked=$(latest "$1")
}
# The chain has ended at step $3: compared with a run by $2 ranks that nobody disturbed.
same_as_undisturbed() { # NAME RANKS STEPS
    cp "$1.json" calm.json
    sed -i 's/"save_every": 1, //' calm.json
    rm -rf calm.save calm.lives
    flags=
    life calm "$2" "$3" || { cp calm.out why; return 1; }
    [ "$("$bin/dsc" ckpt hash "calm.save/step-$3")" = "$("$bin/dsc" ckpt hash "$1.save/step-$3")" ] || fail "other hash" || return 1
    [ "$(wc -l <calm.lives)" -eq "$3" ] || fail "$(wc -l <calm.lives) lines of losses" || return 1
    # Every line that any life wrote is a line of the calm run.
    sort -u "$1.lives" | comm -23 - <(sort -u calm.lives) >why
    [ ! -s why ] || fail "losses that the undisturbed run has not"
}

# ---- labelled points ----
# RANK OP PATH NTH WHEN SAVE: SAVE 2 is the second save of this life, so that every life gets further. SAVE 1 is the first,
# which removes the remains of the dead life before (after a death of rank 0; a living rank 0 removes them itself).
# N in a path is the step of the save.
labels='
0 mkdir    */step-N.tmp                        1 after  2
0 truncate */step-N.tmp/model.safetensors      1 after  2
1 write    */step-N.tmp/model.safetensors      1 half   2
1 write    */step-N.tmp/optimizer.safetensors  3 after  2
0 write    */step-N.tmp/model.safetensors      1 half   2
0 unlink   */step-N.tmp/*                      1 after  1
0 rmdir    */step-N.tmp                        1 before 1
0 fsync    */step-N.tmp/model.safetensors      1 before 2
1 fsync    */step-N.tmp/optimizer.safetensors  1 after  2
0 write    */step-N.tmp/ds_config.json         1 half   2
0 fsync    */step-N.tmp                        1 before 2
0 open     */step-N.tmp/manifest.json          1 after  2
0 write    */step-N.tmp/manifest.json          1 half   2
0 fsync    */step-N.tmp/manifest.json          1 after  2
0 open     */latest.tmp                        2 after  2
0 write    */latest.tmp                        2 half   2
0 fsync    */latest.tmp                        2 after  2
0 rename   */step-N                            1 before 2
0 rename   */step-N                            1 after  2
0 rename   */step-N.tmp                        1 after  1
0 fsync    */labels.save                       5 after  2
0 unlink   */latest.tmp                        1 before 1
0 rename   */latest                            2 before 2
0 rename   */latest                            2 after  2
0 fsync    */labels.save                       6 after  2
'
kill_at_labels() {
    local rank op path nth when save ranks step code lives=0 checked=0
    : >why
    while read -r rank op path nth when save; do
        [ -n "$rank" ] || continue
        ranks=$((1 << (lives % 3)))
        [ "$rank" -lt $ranks ] || ranks=2
        step=$(($(latest labels) + save))
        flags=$([ $((lives % 2)) -eq 1 ] && echo --save-async)
        DIE_RANK=$rank DIE_OP=$op DIE_PATH=${path/N/$step} DIE_NTH=$nth DIE_WHEN=$when LD_PRELOAD="$tmp/die_at.so" \
            life labels $ranks $((step + 5))
        code=$?
        [ $code -eq 137 ] || { tail -n 3 labels.out >why; fail "$rank $op $path $nth $when: exit $code, $ranks ranks"; } || return 1
        all_whole labels || fail "after $rank $op $path $nth $when" || return 1
        lives=$((lives + 1))
    done <<<"$labels"
    step=$(($(latest labels) + 2)) flags=
    life labels 2 $step || { cp labels.out why; return 1; }
    [ -z "$(find labels.save -name '*.tmp' -o -name '*.new')" ] || fail "$(ls labels.save)" || return 1
    same_as_undisturbed labels 4 $step
}

# ---- random moments ----
kill_one_rank() { # after MILLISECONDS, or when there is one: a random rank of this folder's run
    local victims=()
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
    while [ "${#victims[@]}" -eq 0 ]; do
        [ ! -e life.ended ] || return
        mapfile -t victims < <(ps -eo pid=,args= | awk '$2 ~ /train$/ { print $1 }' | while read -r pid; do
            [ "$(readlink "/proc/$pid/cwd")" = "$tmp" ] && echo "$pid"
        done)
    done
    kill -9 "${victims[$2 % ${#victims[@]}]}" 2>/dev/null
}
kill_at_random() { # KILLS
    local kills=0 tries=0 step code checked=0
    : >why
    while [ $kills -lt "$1" ] && [ $tries -lt $(($1 * 3)) ]; do
        rm -f life.ended
        # Half of the lives save all the time, half now and then; half of each beside training.
        flags="--save-every $((1 + tries % 2 * 149)) $([ $((tries / 2 % 2)) -eq 1 ] && echo --save-async)"
        kill_one_rank $((RANDOM % 400)) $RANDOM &
        life random 2 1000000
        code=$?
        : >life.ended
        wait $!
        tries=$((tries + 1))
        case $code in
        137) kills=$((kills + 1)) ;;
        *) tail -n 3 random.out >>why; fail "life $tries ended with $code" || return 1 ;;
        esac
        all_whole random || return 1
    done
    [ $kills -eq "$1" ] || fail "only $kills kills reached a rank" || return 1
    # A life may have come further than its last save.
    step=$(($(sort -n random.lives | tail -n 1 | cut -d ' ' -f 1) + 2)) flags=
    life random 2 $step || { cp random.out why; return 1; }
    echo "# tried $kills kills, $step steps"
    same_as_undisturbed random 2 $step
}

config labels 2 world_size
config random $((RANDOM % 4)) plan
if [ -n "${DSC_SAN:-}" ]; then
    number=$((number + 1)); echo "ok $number - killed at every labelled point # SKIP nothing is preloaded into a sanitized program"
elif ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC -o die_at.so "$root/tests/cli/die_at.c" -ldl 2>why; then
    report "die_at.c compiles" false
else
    report "killed at every labelled point of a commit, resumed by other numbers of ranks: the same end" kill_at_labels
fi
[ "${DSC_TEST_NIGHT:-0}" = 1 ] && kills=200 || kills=12
report "killed at $kills random moments: the same end" kill_at_random $kills
end_of_tests

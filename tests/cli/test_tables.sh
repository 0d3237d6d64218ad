#!/usr/bin/env bash
# test_tables.sh - scripts/tables.py prints the guides' tables, and says what is predicted, simulated or measured.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export DSC_BIN=$bin
cd "$tmp" || exit 1
tables() { code=0; timeout 60 python3 -B "$root/scripts/tables.py" "$@" >out 2>err </dev/null || code=$?; }
tables --models basic_cnn,none,gpt2-nano --strategies ddp,fsdp_stage3 --gpu H100 --gpus 4 --batch 8 --ranks 1,2
report "images or tokens, memory and step of each model and strategy" eval '[ $code -eq 0 ] && grep -qE "^\| basic_cnn \| fsdp_stage3 \| 8 \| [0-9]+ images/s \| [0-9]+ MiB \| [0-9.]+ ms \|$" out && grep -qE "^\| gpt2-nano \| ddp \| 8 \| [0-9]+ tokens/s " out'
report "the table is a prediction, and says so" grep -q '^Models by strategies, predicted for 4 x H100' out
report "scaling is simulated, and says so" grep -q '^Scaling of ddp, each rank with 8 samples, simulated for H100' out
report "speed-up and efficiency" grep -qE '^\| basic_cnn \| 2 \| [0-9]+ images/s \| [0-9.]+ ms \| [12]\.[0-9]+ \| [0-9.]+ % \|$' out
report "a model that is not there is named" grep -q '^| none | ddp | .*"none" is not a built-in model' out
tables --models basic_cnn --ranks 1,2 --batch 2 --measure
report "CPU ranks are measured, and the table says so" eval 'grep -q "measured on CPU ranks of this host" out && grep -qE "^\| basic_cnn \| 2 \| [0-9]+ images/s " out && ! grep -qi "simulated\|predicted" out'
end_of_tests

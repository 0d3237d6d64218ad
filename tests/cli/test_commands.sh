#!/usr/bin/env bash
# test_commands.sh - the single-node commands that users of other launchers type today, as their guides print them.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
launch=$bin/dsc-launch
export DSC_LAUNCH=$launch
cd "$tmp" || exit 1

run() { code=0; timeout 60 "$@" >out 2>err </dev/null || code=$?; }
trains() { [ $code -eq 0 ] && grep -q '^step 1/1 ' out && grep -qF -- "$1" out; }
refused() { [ $code -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep '^dsc: error: ' err | grep -qF -- "$1"; }
short=(--steps 1 --seq-len 16)

# The guides' smallest config, byte for byte.
cat >ds_config.json <<'END_OF_CONFIG'
{
  "train_batch_size": 64,
  "gradient_accumulation_steps": 8,
  "optimizer": {
    "type": "Adam",
    "params": {
      "lr": 0.00015
    }
  },
  "zero_optimization": {
    "stage": 2
  }
}
END_OF_CONFIG

run "$launch" train --deepspeed --deepspeed_config ds_config.json "${short[@]}"
report "--deepspeed --deepspeed_config" trains "effective batch 64 = micro-batch 8 x accumulation 8 x 1 rank;"
report "it trains in fp32" grep -q '^numerics: params fp32' out
for pair in 4:2 8:1; do
    run "$launch" --num_gpus=${pair%:*} train --config ds_config.json "${short[@]}"
    report "the same config on ${pair%:*} ranks" \
        trains "effective batch 64 = micro-batch ${pair#*:} x accumulation 8 x ${pair%:*} ranks;"
done
for ranks in 3 16; do
    run "$launch" --num_gpus=$ranks train --config ds_config.json "${short[@]}"
    report "on $ranks ranks: the equation and the world sizes that work" refused "world size $ranks = "
    report "they are named" refused "world sizes that work: 1, 2, 4, 8"
done
run "$launch" --num_gpus=8 --master_port 29500 train --model-type gpt2-nano --strategy fsdp_stage2 --epochs 100 \
    --batch-size 8 --gradient-accumulation-steps 2 --learning-rate 0.001 "${short[@]}"
report "--model-type --strategy --epochs --batch-size --learning-rate" trains "ZeRO stage 2"
report "each override is a line" grep -q -- '^--learning-rate 0.001 overrides optimizer.params.lr' out
run "$launch" --num_gpus=8 train --batch-size 16 --gradient-accumulation-steps 4 "${short[@]}"
report "the effective batch is printed" trains "effective batch 512 = micro-batch 16 x accumulation 4 x 8 ranks;"
report "without --config: the preset of ddp" trains "ZeRO stage 1"
run "$launch" --num_gpus=2 train --config ds_config.json --strategy fsdp_stage3 "${short[@]}"
report "--strategy with --config overrides the stage and says so" trains '--strategy 3 overrides zero_optimization.stage 2'
run "$launch" -np 2 -H localhost:2 train --config ds_config.json "${short[@]}"
report "-np 2 -H localhost:2" trains "2 ranks"
run bash "$root/scripts/launch_distributed.sh" gpt2-nano ddp 4 16 1 "${short[@]}"
report "scripts/launch_distributed.sh MODEL STRATEGY NUM_GPUS BATCH_SIZE EPOCHS" trains "4 ranks"
report "logs/training.log has the plain lines" grep -q '^step 1/1 ' logs/training.log

# Pictures: the guides' commands train on drawn ones, and say so.
run "$launch" --num_gpus=8 train --model-type efficientnet --strategy fsdp_stage2 --epochs 100 --batch-size 16 \
    --gradient-accumulation-steps 2 --learning-rate 0.001 --steps 1
report "efficientnet without data" trains "effective batch 256 = micro-batch 16 x accumulation 2 x 8 ranks;"
report "drawn pictures are taken" grep -q '^no data is named (dsc.data, --data): taking shapes:train$' out
report "a line names what data may be" grep -q 'a folder for each class.*csv.*tar.*idx3.*CIFAR.*packed' out
report "the accuracy is printed" grep -q '^evaluation: accuracy 0\.[0-9]*, [0-9]* of 256 samples' out
run bash "$root/scripts/launch_distributed.sh" mobilenet ddp 4 16 50 --steps 1
report "launch_distributed.sh mobilenet ddp 4 16 50" trains "4 ranks"
run bash "$root/scripts/launch_distributed.sh" ensemble fsdp_stage3 8 4 100 --steps 1
report "launch_distributed.sh ensemble fsdp_stage3 8 4 100" trains "8 ranks"
run bash "$root/scripts/launch_distributed.sh" cnn_lstm fsdp_stage3 4 8 50 --steps 1
report "launch_distributed.sh cnn_lstm fsdp_stage3 4 8 50" trains "ZeRO stage 3"
run "$launch" --num_gpus=2 train --model-type cnn-lstm --strategy fsdp_stage2 --batch-size 4 --steps 1
report "--model-type cnn-lstm" trains "2 ranks"
run "$launch" --num_gpus=2 train --model-type basic_cnn --strategy ddp --steps 1 --save saved
names() { grep -q '"circle"' saved/step-1/config.json && grep -q '"image_size"' saved/step-1/config.json; }
report "the checkpoint has the names of the shapes" names

# Features that are not built are refused by name.
run bash "$root/scripts/launch_distributed.sh" densenet121 ddp 4 16 1
report "a model that is not built yet, and those that are" refused '"densenet121" is not a built-in model'
report "the list" refused "gpt2-nano, gpt2-micro"
run "$launch" -np 8 -H localhost:4,host2:4 train --config ds_config.json
report "a second host that does not exist" grep -q 'dsc: error: host host2: there is no such host name' err
run "$launch" --num_gpus=2 train --config "$root/configs/training_config.yaml" "${short[@]}"
report "a config that is YAML" trains "2 ranks"
run "$launch" -np 24 -H node1:8,node2:8,node3:8 --dry-run train --config configs/training_config.yaml
report "--dry-run of 24 ranks on three nodes" grep -q '"world_size":24' out
run "$bin/dsc" doctor
report "dsc doctor" grep -q 'built in this version' out
report "and the file engine that a run takes" grep -qE 'file engine +(io_uring|libaio|threads)' out
end_of_tests

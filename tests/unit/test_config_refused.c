/* test_config_refused.c - invalid contents of a ds_config.json and the error lines that refuse them: a fragment a row.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

typedef struct refusal {
    const char *fragment;
    dsc_status status;
    const char *message; /* a part of it */
} refusal;

static void check_refusals(const refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const dsc_status status = parse_to_run(around(cases[i].fragment));
        if (status != cases[i].status || strstr(err.message, cases[i].message) == NULL)
            fail_msg("%s\n  wanted %d with \"%s\"\n  got %d: %s: %s", cases[i].fragment, cases[i].status,
                     cases[i].message, status, err.where, err.message);
    }
}

static void wrong_values(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { "\"train_micro_batch_size_per_gpu\":0", DSC_ERR_CONFIG,
          "train_micro_batch_size_per_gpu: 0 is not an integer, 1.." },
        { "\"train_micro_batch_size_per_gpu\":-1", DSC_ERR_CONFIG, "train_micro_batch_size_per_gpu: -1" },
        { "\"train_micro_batch_size_per_gpu\":1.5", DSC_ERR_CONFIG, "1.5 is not an integer" },
        { "\"train_micro_batch_size_per_gpu\":\"two\"", DSC_ERR_CONFIG, "\"two\" is not an integer" },
        { "\"train_micro_batch_size_per_gpu\":\"2\"", DSC_ERR_CONFIG, "\"2\" is a string" },
        { "\"train_micro_batch_size_per_gpu\":true", DSC_ERR_CONFIG, "true is not an integer" },
        { "\"train_micro_batch_size_per_gpu\":1e300", DSC_ERR_CONFIG, "1e+300 is not an integer" },
        { "\"train_micro_batch_size_per_gpu\":[8]", DSC_ERR_CONFIG, "a list is not an integer" },
        { "\"gradient_clipping\":-1", DSC_ERR_CONFIG, "gradient_clipping: -1 is not a number, >= 0" },
        { "\"gradient_clipping\":\"nan\"", DSC_ERR_CONFIG, "\"nan\" is not a number" },
        { "\"gradient_clipping\":\"0x10\"", DSC_ERR_CONFIG, "\"0x10\" is not a number" },
        { "\"gradient_predivide_factor\":0", DSC_ERR_CONFIG, "gradient_predivide_factor: 0 is not a number, > 0" },
        { "\"gradient_predivide_factor\":1e-60", DSC_ERR_CONFIG, "1 / 1e-60 is not an fp32 number" },
        { "\"prescale_gradients\":true,\"dsc\":{\"reproducible\":\"world_size\"}", DSC_ERR_CONFIG,
          "prescale_gradients: true conflicts with dsc.reproducible \"world_size\"" },
        { "\"fp32_allreduce\":true,\"communication_data_type\":\"bf16\"", DSC_ERR_CONFIG,
          "fp32_allreduce: true conflicts with communication_data_type \"bf16\"" },
        { "\"zero_optimization\":{\"stage\":4}", DSC_ERR_CONFIG, "zero_optimization.stage: 4 is not an integer, 0..3" },
        { "\"zero_optimization\":{\"stage\":-1}", DSC_ERR_CONFIG, "zero_optimization.stage: -1" },
        { "\"zero_optimization\":{\"stage\":\"2.5\"}", DSC_ERR_CONFIG, "\"2.5\" is not an integer" },
        { "\"zero_optimization\":{\"stage\":\"1e0\"}", DSC_ERR_CONFIG, "\"1e0\" is not an integer" },
        { "\"zero_optimization\":{\"reduce_bucket_size\":\"5e8\"}", DSC_ERR_CONFIG, "\"5e8\" is not an integer" },
        { "\"zero_optimization\":{\"reduce_bucket_size\":-1}", DSC_ERR_CONFIG,
          "reduce_bucket_size: -1 is not an integer, >= 0" }, /* releases up to 0.16 took 0 */
        { "\"fp16\":{\"enabled\":true,\"fp16_master_weights_and_grads\":true}", DSC_ERR_CONFIG,
          "fp16.fp16_master_weights_and_grads: true needs stage 1, 2 or 3" },
        { "\"fp16\":{\"enabled\":true,\"loss_scale\":128},\"optimizer\":{\"type\":\"Lamb\"}", DSC_ERR_CONFIG,
          "fp16.loss_scale: 128 is a static scale, and Lamb needs a dynamic one" },
        { "\"zero_optimization\":{\"overlap_comm\":2}", DSC_ERR_CONFIG, "2 is not true or false" },
        { "\"zero_optimization\":\"auto\"", DSC_ERR_CONFIG, "zero_optimization: \"auto\" is not an object" },
        { "\"zero_optimization\":2", DSC_ERR_CONFIG, "2 is not an object" },
        { "\"zero_optimization\":{\"stage\":1,\"offload_optimizer\":{\"device\":\"CPU\"}}", DSC_ERR_CONFIG,
          "one of none|cpu|nvme" },
        { "\"dsc\":{\"lora\":{\"r\":0}}", DSC_ERR_CONFIG, "dsc.lora.r: 0 is not an integer, 1..65536" },
        { "\"dsc\":{\"lora\":{\"alpha\":0}}", DSC_ERR_CONFIG, "dsc.lora.alpha: 0 is not a number" },
        { "\"dsc\":{\"lora\":{\"rank\":4}}", DSC_ERR_CONFIG, "rank" },
        { "\"dsc\":{\"lora\":{\"adapter\":\"a\",\"r\":4}}", DSC_ERR_CONFIG,
          "dsc.lora.r: 4 conflicts with dsc.lora.adapter" },
        { "\"dsc\":{\"lora\":{\"adapter\":\"a\",\"target_modules\":\"all-linear\"}}", DSC_ERR_CONFIG,
          "conflicts with dsc.lora.adapter" },
        { "\"bf16\":{\"enabled\":\"maybe\"}", DSC_ERR_CONFIG, "bf16.enabled: \"maybe\" is not true or false" },
        { "\"bf16\":true", DSC_ERR_CONFIG, "bf16: true is not an object" },
        { "\"fp16\":{\"enabled\":false,\"min_loss_scale\":-1}", DSC_ERR_CONFIG, "fp16.min_loss_scale: -1" },
        { "\"fp16\":{\"enabled\":true,\"initial_scale_power\":127}", DSC_ERR_CONFIG, "2 to the power 127" },
        { "\"fp16\":{\"enabled\":true,\"loss_scale\":1e39}", DSC_ERR_CONFIG, "is not an fp32 number" },
        { "\"fp16\":{\"enabled\":false,\"loss_scale\":true}", DSC_ERR_CONFIG, "fp16.loss_scale: true is not a number" },
        { "\"fp16\":{\"enabled\":true},\"bf16\":{\"enabled\":true}", DSC_ERR_CONFIG,
          "fp16.enabled: true conflicts with bf16.enabled true" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":-1}}", DSC_ERR_CONFIG, "optimizer.params.lr: -1" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":[1,2]}}", DSC_ERR_CONFIG,
          "optimizer.params.lr: a list" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[0.9]}}", DSC_ERR_CONFIG,
          "optimizer.params.betas: expected" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[0.9,1.0]}}", DSC_ERR_CONFIG, "betas: expected" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[0.9,0.99,0.9]}}", DSC_ERR_CONFIG,
          "betas: expected" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[\"x\",0.9]}}", DSC_ERR_CONFIG, "betas: expected" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[]}}", DSC_ERR_CONFIG, "betas: expected" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"momentum\":0.9}}", DSC_ERR_CONFIG,
          "optimizer.params.momentum: AdamW does not take it (SGD does)" },
        { "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"betas\":[0.9,0.99]}}", DSC_ERR_CONFIG,
          "betas: SGD does not take it (Lion does)" },
        { "\"optimizer\":{\"type\":\"lion\",\"params\":{\"eps\":1e-8}}", DSC_ERR_CONFIG, "eps: Lion does not take it" },
        { "\"optimizer\":{\"type\":\"LAMB\",\"params\":{\"max_coeff\":1,\"min_coeff\":2}}", DSC_ERR_CONFIG,
          "optimizer.params.min_coeff: 2, but max_coeff is 1" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"max_coeff\":1}}", DSC_ERR_CONFIG,
          "max_coeff: Adam does not take it (Lamb does)" },
        { "\"optimizer\":{\"type\":\"Lamb\",\"params\":{\"freeze_step\":1}}", DSC_ERR_CONFIG,
          "freeze_step: Lamb does not take it (OneBitAdam does)" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\",\"params\":{\"freeze_step\":1}}", DSC_ERR_CONFIG,
          "freeze_step: ZeroOneAdam does not take it (OneBitAdam does)" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\",\"params\":{\"var_freeze_step\":1}}", DSC_ERR_CONFIG,
          "var_freeze_step: OneBitAdam does not take it (ZeroOneAdam does)" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\",\"params\":{\"var_freeze_step\":-1}}", DSC_ERR_CONFIG,
          "optimizer.params.var_freeze_step: -1" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\",\"params\":{\"var_update_scaler\":0}}", DSC_ERR_CONFIG,
          "optimizer.params.var_update_scaler: 0" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\",\"params\":{\"local_step_scaler\":0}}", DSC_ERR_CONFIG,
          "optimizer.params.local_step_scaler: 0" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\",\"params\":{\"local_step_clipper\":0}}", DSC_ERR_CONFIG,
          "optimizer.params.local_step_clipper: 0" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\"},\"dsc\":{\"moments\":\"bf16\"}", DSC_ERR_CONFIG,
          "\"ZeroOneAdam\" conflicts with dsc.moments \"bf16\"" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"var_freeze_step\":1}}", DSC_ERR_CONFIG,
          "var_freeze_step: OneBitLamb does not take it (ZeroOneAdam does)" },
        { "\"optimizer\":{\"type\":\"Lamb\",\"params\":{\"factor_max\":2}}", DSC_ERR_CONFIG,
          "factor_max: Lamb does not take it (OneBitLamb does)" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"coeff_beta\":1}}", DSC_ERR_CONFIG,
          "optimizer.params.coeff_beta: 1; it is below 1" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"coeff_beta\":-0.1}}", DSC_ERR_CONFIG,
          "optimizer.params.coeff_beta: -0.1" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"factor_min\":0}}", DSC_ERR_CONFIG,
          "optimizer.params.factor_min: 0" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"factor_max\":0}}", DSC_ERR_CONFIG,
          "optimizer.params.factor_max: 0" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"factor_max\":0.4}}", DSC_ERR_CONFIG,
          "optimizer.params.factor_min: 0.5, but factor_max is 0.4" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"factor_threshold\":-1}}", DSC_ERR_CONFIG,
          "optimizer.params.factor_threshold: -1" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"max_coeff\":1,\"min_coeff\":2}}", DSC_ERR_CONFIG,
          "optimizer.params.min_coeff: 2, but max_coeff is 1" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\",\"params\":{\"amsgrad\":true}}", DSC_ERR_UNSUPPORTED,
          "optimizer.params.amsgrad: true" },
        { "\"fp16\":{\"enabled\":true,\"loss_scale\":128},\"optimizer\":{\"type\":\"OneBitLamb\"}", DSC_ERR_CONFIG,
          "OneBitLamb needs a dynamic one" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\"},\"dsc\":{\"moments\":\"bf16\"}", DSC_ERR_CONFIG,
          "\"OneBitLamb\" conflicts with dsc.moments \"bf16\"" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\",\"params\":{\"freeze_step\":-1}}", DSC_ERR_CONFIG,
          "optimizer.params.freeze_step: -1" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\",\"params\":{\"comm_backend_name\":\"tcp\"}}", DSC_ERR_CONFIG,
          "optimizer.params.comm_backend_name: \"tcp\"" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\"},\"dsc\":{\"reproducible\":\"world_size\"}", DSC_ERR_CONFIG,
          "\"OneBitAdam\" conflicts with dsc.reproducible \"world_size\"" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\"},\"dsc\":{\"gradient_compression\":\"int8\"}", DSC_ERR_CONFIG,
          "\"OneBitAdam\" conflicts with dsc.gradient_compression" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\"},\"zero_optimization\":{\"zero_quantized_gradients\":true}",
          DSC_ERR_CONFIG, "\"OneBitAdam\" conflicts with zero_optimization.zero_quantized_gradients" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\"},\"dsc\":{\"moments\":\"bf16\"}", DSC_ERR_CONFIG,
          "\"OneBitAdam\" conflicts with dsc.moments \"bf16\"" },
        { "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"nesterov\":true}}", DSC_ERR_CONFIG,
          "needs a momentum above 0" },
        { "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"nesterov\":true,\"momentum\":0.9,\"dampening\":0.1}}",
          DSC_ERR_CONFIG, "a dampening of 0" },
        { "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"momentum\":-0.1}}", DSC_ERR_CONFIG, "momentum: -0.1" },
        { "\"optimizer\":{\"type\":\"sgd\"}", DSC_ERR_CONFIG, "did you mean \"SGD\"" },
        { "\"scheduler\":{\"type\":\"WarmupLR\"},\"dsc\":{\"lr_schedule\":\"cosine\"}", DSC_ERR_CONFIG,
          "conflicts with scheduler.type" },
        { "\"dsc\":{\"lr_schedule\":\"cosin\"}", DSC_ERR_CONFIG, "dsc.lr_schedule" },
        { "\"dsc\":{\"lr_schedule\":\"wsd\",\"lr_min_ratio\":1.5}", DSC_ERR_CONFIG, "dsc.lr_min_ratio" },
        { "\"optimizer\":{\"type\":\"AdamX\"}", DSC_ERR_CONFIG, "is not an optimizer; did you mean \"Adam" },
        { "\"optimizer\":{\"type\":5}", DSC_ERR_CONFIG, "optimizer.type: 5 is not a name" },
        { "\"optimizer\":[]", DSC_ERR_CONFIG, "optimizer: a list is not an object" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"max_grad_norm\":1}},\"gradient_clipping\":2", DSC_ERR_CONFIG,
          "1 conflicts with gradient_clipping 2" },
        { "\"scheduler\":{\"type\":\"warmuplr\"}", DSC_ERR_CONFIG, "did you mean \"WarmupLR\"" },
        { "\"scheduler\":{\"type\":\"WarmupDecayLR\",\"params\":{}}", DSC_ERR_CONFIG, "needs total_num_steps" },
        { "\"scheduler\":{\"type\":\"WarmupCosineLR\",\"params\":{\"total_num_steps\":null}}", DSC_ERR_CONFIG,
          "needs total_num_steps" },
        { "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"total_num_steps\":9}}", DSC_ERR_CONFIG,
          "WarmupDecayLR does" },
        { "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":-1}}", DSC_ERR_CONFIG,
          "warmup_num_steps: -1" },
        { "\"scheduler\":{\"type\":\"WarmupCosineLR\",\"params\":{\"total_num_steps\":9,\"warmup_max_lr\":1}}",
          DSC_ERR_CONFIG, "WarmupCosineLR does not take it" },
        { "\"scheduler\":{\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":1}}", DSC_ERR_CONFIG, "cycle_max_lr" },
        { "\"scheduler\":{\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":1,\"cycle_max_lr\":2,\"cycle_first_step_"
          "size\":0}}",
          DSC_ERR_CONFIG, "cycle_first_step_size: 0" },
        { "\"scheduler\":{\"type\":\"LRRangeTest\",\"params\":{\"lr_range_test_step_size\":0}}", DSC_ERR_CONFIG,
          "step_size: 0" },
        { "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"last_batch_iteration\":-2}}", DSC_ERR_CONFIG,
          "last_batch_iteration: -2" },
        { "\"communication_data_type\":\"float32\"", DSC_ERR_CONFIG, "one of fp32|fp16|bf16" },
        { "\"data_types\":{\"grad_accum_dtype\":\"x\"}", DSC_ERR_CONFIG, "\"x\" is not a dtype" },
        { "\"gradient_allreduce_op\":\"SUM\",\"zero_optimization\":{\"stage\":3}", DSC_ERR_CONFIG,
          "gradient_allreduce_op: sum is for stages 0 to 2, not 3" },
        { "\"gradient_allreduce_op\":\"sum\",\"dsc\":{\"reproducible\":\"world_size\"}", DSC_ERR_CONFIG,
          "sum grows with the number of ranks" },
        { "\"gradient_allreduce_op\":\"max\"", DSC_ERR_CONFIG, "one of mean|sum" },
        { "\"checkpoint\":{\"tag_validation\":\"loud\"}", DSC_ERR_CONFIG, "one of Ignore|Warn|Fail" },
        { "\"zero_optimization\":{\"stage\":3,\"compute_grad_norm\":false}", DSC_ERR_CONFIG, "stages 1 and 2" },
        { "\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\",\"ratio\":0.5}}",
          DSC_ERR_CONFIG, "stage 3" },
        { "\"zero_optimization\":{\"stage\":2,\"cpu_offload\":false,\"offload_optimizer\":{\"device\":\"cpu\"}}",
          DSC_ERR_CONFIG, "cpu_offload: false conflicts with zero_optimization.offload_optimizer " },
        { "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"nvme\"}}", DSC_ERR_CONFIG, "nvme_path" },
        { "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":[]}}",
          DSC_ERR_CONFIG, "needs zero_optimization.offload_param.nvme_path" },
        { "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":[\"/x\",\"\"]}}",
          DSC_ERR_CONFIG, "an empty name" },
        { "\"zero_optimization\":{\"stage\":1,\"offload_optimizer\":{\"device\":\"nvme\",\"nvme_path\":"
          "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]}}",
          DSC_ERR_CONFIG, "9 folders; at most 8" },
        { "\"aio\":{\"queue_depth\":2000}", DSC_ERR_CONFIG, "1..1024" },
        { "\"dsc\":{\"aio\":\"uring\"}", DSC_ERR_CONFIG, "one of auto|io_uring|libaio|threads" },
        { "\"zero_optimization\":{\"stage\":3,\"prefetch_bucket_size\":5,\"stage3_prefetch_bucket_size\":6}",
          DSC_ERR_CONFIG, "its other name" },
        { "\"zero_optimization\":{\"stage\":3,\"stage3_prefetch_bucket_size\":6,\"prefetch_bucket_size\":5}",
          DSC_ERR_CONFIG, "its other name" },
        { "\"dsc\":{\"model\":5}", DSC_ERR_CONFIG, "dsc.model: 5 is not a string" },
        { "\"dsc\":{\"model\":\"a\\u0007b\"}", DSC_ERR_CONFIG, "without control characters" },
        { "\"dsc\":{\"data\":[1]}", DSC_ERR_CONFIG, "dsc.data: a list is not a string or a list" },
        { "\"dsc\":{\"comm_timeout_s\":0}", DSC_ERR_CONFIG, "comm_timeout_s: 0" },
        { "\"dsc\":{\"reproducible\":\"bits\"}", DSC_ERR_CONFIG, "one of plan|world_size" },
        { "\"dsc\":{\"comm\":\"pigeons\"}", DSC_ERR_CONFIG, "one of auto|self|local|shm|tcp|hier|gloo|mpi|nccl" },
        { "\"dsc\":{\"reduce\":\"fast\"}", DSC_ERR_CONFIG, "one of exact|native" },
        { "\"dsc\":{\"seed\":-1}", DSC_ERR_CONFIG, "dsc.seed: -1" },
    };
    check_refusals(cases, DSC_COUNT(cases));
    assert_int_equal(parse("[]"), DSC_ERR_CONFIG);
    assert_int_equal(parse("5"), DSC_ERR_CONFIG);
    assert_int_equal(parse("{}"), DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "one of them is needed"));
    assert_int_equal(parse("{\"gradient_accumulation_steps\":4}"), DSC_ERR_CONFIG);
    assert_int_equal(parse(""), DSC_ERR_CONFIG);
    /* The place is that of the value. */
    assert_int_equal(parse("{\n  \"zero_optimization\": {\n    \"stage\": 7\n  }\n}"), DSC_ERR_CONFIG);
    assert_string_equal(err.where, "t.json:3:14");
}

static void not_built(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { "\"zero_optimization\":{\"stage\":1},\"fp16\":{\"enabled\":true,\"fp16_master_weights_and_grads\":true}",
          DSC_ERR_UNSUPPORTED, "master weights are fp32" },
        { "\"zero_optimization\":{\"stage\":3,\"zero_quantized_gradients\":true},\"dsc\":{\"reduce\":\"native\"}",
          DSC_ERR_CONFIG, "keep one of them" },
        { "\"dsc\":{\"gradient_compression\":\"int8\",\"reproducible\":\"world_size\"}", DSC_ERR_CONFIG,
          "\"int8\" conflicts with dsc.reproducible \"world_size\"" },
        { "\"zero_optimization\":{\"stage\":2,\"zero_quantized_gradients\":true},\"dsc\":{\"gradient_compression\":"
          "\"bf16\"}",
          DSC_ERR_CONFIG, "keep one of them" },
        { "\"zero_optimization\":{\"stage\":3,\"zenflow\":{\"topk_ratio\":0.1}}", DSC_ERR_UNSUPPORTED,
          "zenflow: the section" },
        { "\"zero_optimization\":{\"stage\":2,\"mics_shard_size\":8}", DSC_ERR_CONFIG, "not stage 2" },
        { "\"zero_optimization\":{\"stage\":3,\"mics_shard_size\":2},\"dsc\":{\"reproducible\":\"world_size\"}",
          DSC_ERR_CONFIG, "2 conflicts with dsc.reproducible \"world_size\"" },
        { "\"zero_optimization\":{\"stage\":3,\"mics_shard_size\":2,\"zero_hpz_partition_size\":2}",
          DSC_ERR_UNSUPPORTED, "2 conflicts with zero_optimization.zero_hpz_partition_size 2" },
        { "\"zero_optimization\":{\"stage\":3,\"mics_shard_size\":2},\"checkpoint\":{\"use_node_local_storage\":true}",
          DSC_ERR_UNSUPPORTED, "only the first group of ranks saves" },
        { "\"zero_optimization\":{\"stage\":1,\"find_unused_parameters\":true}", DSC_ERR_CONFIG, "a key of DDP" },
        { "\"zero_optimization\":{\"stage\":1,\"legacy_stage1\":true}", DSC_ERR_CONFIG, "legacy_stage1: true" },
        { "\"zero_optimization\":{\"stage\":1,\"offload_optimizer\":{\"buffer_size\":1}}", DSC_ERR_CONFIG,
          "offload_param" },
        { "\"tensor_parallel\":{\"autotp_size\":2}", DSC_ERR_UNSUPPORTED, "tensor_parallel.autotp_size: 2" },
        { "\"tensor_parallel\":{\"tp\":{\"tp_size\":2}}", DSC_ERR_UNSUPPORTED, "tensor_parallel.tp.tp_size: 2" },
        { "\"pipeline\":{\"stages\":2}", DSC_ERR_UNSUPPORTED, "pipeline.stages: 2" },
        { "\"sequence_parallel_size\":2", DSC_ERR_UNSUPPORTED, "sequence_parallel_size: 2" },
        { "\"expert_parallel\":{\"enabled\":true}", DSC_ERR_UNSUPPORTED, "expert_parallel.enabled" },
        { "\"curriculum_learning\":{\"enabled\":true}", DSC_ERR_UNSUPPORTED, "curriculum_learning.enabled" },
        { "\"data_efficiency\":{\"enabled\":true}", DSC_ERR_UNSUPPORTED, "data_efficiency.enabled" },
        { "\"sparse_attention\":{}", DSC_ERR_UNSUPPORTED, "sparse_attention" },
        { "\"amp\":{\"enabled\":true,\"opt_level\":\"O1\"}", DSC_ERR_UNSUPPORTED, "amp.enabled" },
        { "\"torch_autocast\":{\"enabled\":true}", DSC_ERR_UNSUPPORTED, "torch_autocast.enabled" },
        { "\"bf16\":{\"enabled\":true,\"bf16_optimizer_states\":true}", DSC_ERR_UNSUPPORTED, "bf16_optimizer_states" },
        { "\"bf16\":{\"enabled\":true},\"data_types\":{\"grad_accum_dtype\":\"fp16\"}", DSC_ERR_UNSUPPORTED,
          "fp32 works" },
        { "\"fp16\":{\"enabled\":true},\"data_types\":{\"param_dtype\":\"bf16\"}", DSC_ERR_UNSUPPORTED, "fp16 works" },
        { "\"data_types\":{\"grad_accum_dtype\":\"bf16\"}", DSC_ERR_UNSUPPORTED, "fp32 works" },
        { "\"optimizer\":{\"type\":\"musgd\",\"params\":{\"muon_lr\":10,\"odd\":1}}", DSC_ERR_UNSUPPORTED,
          "AdamW, Adam, SGD, Adagrad, Lion, Lamb, Muon, Adafactor, OneBitAdam, ZeroOneAdam and OneBitLamb work" },
        { "\"optimizer\":{\"type\":\"MuAdam\",\"params\":{\"momentum\":0.9}}", DSC_ERR_UNSUPPORTED,
          "optimizer.type: \"MuAdam\"" },
        { "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"momentum\":1}}", DSC_ERR_CONFIG, "below 1" },
        { "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"ns_method\":\"cubic\"}}", DSC_ERR_CONFIG, "ns_method" },
        { "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"dampening\":0.5}}", DSC_ERR_CONFIG, "Muon does not take it" },
        { "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"muon_lr\":0,\"adam_lr\":1}}", DSC_ERR_CONFIG, "fixed ratio" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"d\":2,\"beta1\":0.9}}", DSC_ERR_CONFIG,
          "use the words of one" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"eps\":1e-8}}", DSC_ERR_CONFIG, "has two of them" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"eps\":[1e-8,\"x\"]}}", DSC_ERR_CONFIG,
          "optimizer.params.eps" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"eps\":[null,1e-3],\"decay_rate\":-0.8}}", DSC_ERR_CONFIG,
          "has two of them" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"lr\":1e-3,\"scale_parameter\":false}}", DSC_ERR_CONFIG,
          "add \"relative_step\": false" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"relative_step\":false}}", DSC_ERR_CONFIG, "needs lr" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"lr\":1,\"relative_step\":false,\"warmup_init\":true}}",
          DSC_ERR_CONFIG, "needs relative_step" },
        { "\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"lr\":1,\"relative_step\":false,\"beta1\":1}}",
          DSC_ERR_CONFIG, "below 1" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"eps\":[1e-8,1e-3]}}", DSC_ERR_CONFIG, "has one number" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"beta1\":0.9}}", DSC_ERR_CONFIG, "does not take it" },
        { "\"optimizer\":{\"type\":\"ZeroOneAdam\"},\"zero_optimization\":{\"stage\":1}", DSC_ERR_UNSUPPORTED,
          "\"ZeroOneAdam\" conflicts with zero_optimization.stage 1 (as in DeepSpeed" },
        { "\"optimizer\":{\"type\":\"OneBitLamb\"},\"zero_optimization\":{\"stage\":1}", DSC_ERR_UNSUPPORTED,
          "\"OneBitLamb\" conflicts with zero_optimization.stage 1 (as in DeepSpeed" },
        { "\"optimizer\":{\"type\":\"OneBitAdam\"},\"zero_optimization\":{\"stage\":1}", DSC_ERR_UNSUPPORTED,
          "\"OneBitAdam\" conflicts with zero_optimization.stage 1 (as in DeepSpeed" },
        { "\"optimizer\":{\"type\":\"Adagrad\",\"params\":{\"initial_accumulator_value\":0.1}}", DSC_ERR_UNSUPPORTED,
          "0 works" },
        { "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"maximize\":true}}", DSC_ERR_UNSUPPORTED, "false works" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"amsgrad\":true}}", DSC_ERR_UNSUPPORTED, "amsgrad: true" },
        { "\"scheduler\":{\"type\":\"CosineAnnealingLR\"}", DSC_ERR_UNSUPPORTED, "WarmupCosineLR" },
        { "\"dsc\":{\"accumulate\":\"local\"}", DSC_ERR_UNSUPPORTED, "dsc.accumulate" },
        { "\"dsc\":{\"dropout\":\"model\"}", DSC_ERR_UNSUPPORTED, "dsc.dropout" },
        { "\"compression_training\":{\"weight_quantization\":{\"shared_parameters\":{\"enabled\":true}},\"row_"
          "pruning\":"
          "{\"shared_parameters\":{\"enabled\":false}}}",
          DSC_ERR_UNSUPPORTED, "shared_parameters.enabled" },
    };
    check_refusals(cases, DSC_COUNT(cases));
}

static void unknown_keys(void **state)
{
    (void)state;
    static const refusal cases[] = {
        { "\"bf16\":{\"enabeld\":true}", DSC_ERR_CONFIG, "did you mean \"enabled\"" },
        { "\"zero_optimization\":{\"stages\":1}", DSC_ERR_CONFIG, "did you mean \"stage\"" },
        { "\"zero_optimization\":{\"something_else\":1}", DSC_ERR_CONFIG,
          "zero_optimization.something_else: unknown key" },
        { "\"zero_optimization\":{\"gradient_clipping\":1}", DSC_ERR_CONFIG, "belongs in the top level" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"learning_rate\":1}}", DSC_ERR_CONFIG,
          "optimizer.params.learning_rate" },
        { "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup\":1}}", DSC_ERR_CONFIG,
          "scheduler.params.warmup" },
        { "\"dsc\":{\"sede\":1}", DSC_ERR_CONFIG, "did you mean \"seed\"" },
        { "\"timers\":{\"throughput\":{\"odd\":1}}", DSC_ERR_CONFIG, "timers.throughput.odd" },
        /* near misses of common keys, where DeepSpeed says nothing */
        { "\"zero_optimisation\":{\"stage\":3}", DSC_ERR_CONFIG, "did you mean \"zero_optimization\"" },
        { "\"Gradient_Clipping\":1", DSC_ERR_CONFIG, "did you mean \"gradient_clipping\"" },
        { "\"gradient_cliping\":1", DSC_ERR_CONFIG, "did you mean \"gradient_clipping\"" },
        { "\"gradient_clippnig\":1", DSC_ERR_CONFIG, "did you mean \"gradient_clipping\"" },
        { "\"gradient-clipping\":1", DSC_ERR_CONFIG, "did you mean \"gradient_clipping\"" },
        { "\"gradient_c1ipping\":1", DSC_ERR_CONFIG, "did you mean \"gradient_clipping\"" },
        { "\"tra1n_m1cro_batch_s1ze_per_gpu\":1", DSC_ERR_CONFIG, "did you mean \"train_micro_batch_size_per_gpu\"" },
        { "\"zer0_0ptimization\":{}", DSC_ERR_CONFIG, "did you mean \"zero_optimization\"" },
        { "\"train_micro_batch_size_per_gp\\u0075s\":1", DSC_ERR_CONFIG,
          "did you mean \"train_micro_batch_size_per_gpu\"" },
        { "\"\xD0\xBE\xD1\x80timizer\":{}", DSC_ERR_CONFIG, "did you mean \"optimizer\"" }, /* Cyrillic o and p */
        { "\"bf1\xE2\x80\x8B\x36\":{}", DSC_ERR_CONFIG, "did you mean \"bf16\"" },          /* a zero width space */
        { "\"optimizer\":{\"tpye\":\"Adam\"}", DSC_ERR_CONFIG, "did you mean \"type\"" },
        /* no plain identifier */
        { "\"my key\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"$schema\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"a.b\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"optimizer.type\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"0abc\":1", DSC_ERR_CONFIG, "not a key" },
        { "\"gr\xC3\xB6\xC3\x9F\x65\":1", DSC_ERR_CONFIG, "not a key" },
    };
    check_refusals(cases, DSC_COUNT(cases));
    char text[512];
    memset(text, 'k', sizeof text);
    memcpy(text, "\"", 1);
    snprintf(text + 130, sizeof text - 130, "\":1"); /* 129 letters */
    assert_int_equal(parse(around(text)), DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "129 bytes"));
    snprintf(text + 129, sizeof text - 129, "\":1");
    parse_ok(around(text));
    assert_true(warned("unknown key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(not_built),
        cmocka_unit_test(unknown_keys),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

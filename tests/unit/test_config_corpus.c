/* test_config_corpus.c - shapes of real configs, old and new, and what they resolve to on 8 ranks, as both generations
 * of DeepSpeed (0.16.5, 0.19.8) resolve them. Rewritten from what public repositories hold: one row a shape.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "tests/unit/config_case.h"

typedef struct shape {
    const char *text;
    int stage;
    dsc_offload optimizer_device, param_device;
    dsc_precision precision;
    int64_t t, m, g;
    const char *optimizer, *scheduler;
    double clipping;
} shape;

#define NONE DSC_OFFLOAD_NONE
#define CPU DSC_OFFLOAD_CPU
#define NVME DSC_OFFLOAD_NVME
#define FP32 DSC_PRECISION_FP32
#define BF16 DSC_PRECISION_BF16
#define FP16 DSC_PRECISION_FP16

static const shape shapes[] = {
    /* 2020: fp16 by hand, cpu_offload, a boolean for a stage, names in lower case, no comma at a line's end */
    { "{\"train_batch_size\": 4096, \"train_micro_batch_size_per_gpu\": 64, \"steps_per_print\": 1000,\n"
      "\"prescale_gradients\": false, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 6e-3,\n"
      "\"betas\": [0.9, 0.99], \"eps\": 1e-8,\n"
      "\"weight_decay\": 0.01, \"bias_correction\": false, \"max_grad_norm\": 1.0}},\n"
      "\"gradient_clipping\": 1.0, \"wall_clock_breakdown\": false,\n"
      "\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 16}}",
      0, NONE, NONE, FP16, 4096, 64, 8, "Adam", "", 1 },
    { "{\"train_batch_size\": 64, \"zero_optimization\": true, \"zero_allow_untested_optimizer\": true\n"
      "\"fp16\": {\"enabled\": True, \"opt_level\": \"O2\", \"min_loss_scale\": 0.5, \"hysteresis\": 2}\n"
      "\"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 1e-4}},}",
      1, NONE, NONE, FP16, 64, 8, 1, "adam", "", 0 },
    { "{\"train_batch_size\": 16, // of the whole\n \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true,\n"
      "\"contiguous_gradients\": true, \"overlap_comm\": true, \"reduce_bucket_size\": 50000000},\n"
      "\"activation_checkpointing\": {\"partition_activations\": true, \"cpu_checkpointing\": true}}",
      2, CPU, NONE, FP32, 16, 2, 1, "", "", 0 },
    { "{\"train_batch_size\": 96, \"train_micro_batch_size_per_gpu\": 12, \"optimizer\": {\"type\": \"OnebitAdam\",\n"
      "\"params\": {\"lr\": 2e-4, \"freeze_step\": 1000, \"cuda-aware\": false, \"bias_correction\": false}},\n"
      "\"fp16\": {\"enabled\": true}}",
      0, NONE, NONE, FP16, 96, 12, 1, "OnebitAdam", "", 0 },
    { "{\"train_batch_size\": 65536, \"train_micro_batch_size_per_gpu\": 64, \"optimizer\": {\"type\":\n"
      "\"OneBitLamb\", \"params\": {\"lr\": 11e-3, \"max_coeff\": 0.3, \"min_coeff\": 0.01, \"freeze_step\": 1000,\n"
      "\"cuda_aware\": false, \"comm_backend_name\": \"nccl\", \"coeff_beta\": 0.9, \"factor_max\": 4.0,\n"
      "\"factor_min\": 0.5, \"factor_threshold\": 0.1}}, \"gradient_clipping\": 1.0,\n"
      "\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 16}}",
      0, NONE, NONE, FP16, 65536, 64, 128, "OneBitLamb", "", 1 },
    { "{\"train_batch_size\": 65536, \"train_micro_batch_size_per_gpu\": 64, \"optimizer\": {\"type\": \"Lamb\",\n"
      "\"params\": {\"lr\": 11e-3, \"weight_decay\": 0.01, \"bias_correction\": false, \"max_coeff\": 0.3,\n"
      "\"min_coeff\": 0.01}}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-5,\n"
      "\"cycle_max_lr\": 1e-2}}}",
      0, NONE, NONE, FP32, 65536, 64, 128, "Lamb", "OneCycle", 0 },
    { "{\"train_micro_batch_size_per_gpu\": 4, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1,\n"
      "\"momentum\": 0.9, \"nesterov\": true}}, \"scheduler\": {\"type\": \"CosineAnnealingLR\",\n"
      "\"params\": {\"T_max\": 100}}, \"lr-decay-style\": \"cosine\"}",
      0, NONE, NONE, FP32, 32, 4, 1, "SGD", "CosineAnnealingLR", 0 },
    { "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, \"sparse_attention\": {\"mode\":\n"
      "\"fixed\", \"block\": 16}, \"curriculum_learning\": {\"enabled\": true, \"curriculum_type\": \"seqlen\"},\n"
      "\"progressive_layer_drop\": {\"enabled\": true, \"theta\": 0.5}, \"amp\": {\"enabled\": true}}",
      0, NONE, NONE, FP32, 32, 1, 4, "", "", 0 },
    /* 2021 to 2023: Hugging Face's files, infinity, loose precision sections */
    { "{\"bfloat16\": {\"enabled\": true, \"loss_scale\": 0, \"auto_cast\": false},\n"
      "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\",\n"
      "\"nvme_path\": \"/local_nvme\",\n"
      "\"pin_memory\": true, \"buffer_count\": 4, \"fast_init\": false}, \"offload_param\": {\"device\": \"nvme\",\n"
      "\"nvme_path\": \"/local_nvme\", \"buffer_size\": 1e8, \"max_in_cpu\": 1e9},\n"
      "\"stage3_gather_fp16_weights_on_model_save\": true, \"sub_group_size\": 1e14},\n"
      "\"aio\": {\"block_size\": 262144, \"queue_depth\": 32, \"thread_count\": 1},\n"
      "\"train_batch_size\": 128, \"gradient_accumulation_steps\": 2, \"steps_per_print\": 2e5}",
      3, NVME, NVME, BF16, 128, 8, 2, "", "", 0 },
    { "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,\n"
      "\"fp16\": {\"enabled\": \"true\", \"min_loss_scale\": 1e-10, \"fp16_opt_level\": \"O2\"},\n"
      "\"zero_optimization\": {\"stage\": 1, \"elastic_checkpoint\": true},\n"
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-5, \"betas\": [0.9, 0.95], \"eps\": 1e-8}},\n"
      "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 1e-5,\n"
      "\"warmup_num_steps\": 100, \"total_num_steps\": 1000}}, \"monitor_config\": {\"enabled\": true},\n"
      "\"wandb\": {\"enabled\": true, \"project\": \"p\"}, \"checkpoint\": {\"use_node_local_storage\": true}}",
      1, NONE, NONE, FP16, 32, 2, 2, "AdamW", "WarmupDecayLR", 0 },
    { "{\"compile\": {\"disable\": false, \"backend\": \"inductor\"}, \"bf16\": {\"enabled\": true},\n"
      "\"communication_data_type\": \"fp32\", \"data_types\": {\"grad_accum_dtype\": \"bf16\"},\n"
      "\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5, \"zero_optimization\": {\"stage\": 3,\n"
      "\"zero_hpz_partition_size\": 8, \"zero_quantized_weights\": true, \"mics_shard_size\": 4,\n"
      "\"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true}}}",
      3, NONE, CPU, BF16, 16, 2, 1, "", "", 0.5 },
    /* devices that the stage leaves without effect */
    { "{\"train_batch_size\": 64, \"fp16\": {\"enabled\": true, \"opt_level\": \"O2\"},\n"
      "\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"},\n"
      "\"offload_optimizer\": {\"device\": \"cpu\"}}}",
      2, CPU, CPU, FP16, 64, 8, 1, "", "", 0 },
    { "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"},\n"
      "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/n\"}}}",
      0, CPU, NVME, FP32, 8, 1, 1, "", "", 0 },
    /* 2024 to 2026 */
    { "{\"train_batch_size\": 64, \"tensor_parallel\": {\"autotp_size\": 2}, \"zero_optimization\": {\"stage\": 2,\n"
      "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}, \"zenflow\": {\"topk_ratio\": 0.05,\n"
      "\"select_strategy\": \"auto\", \"update_interval\": 4, \"overlap_step\": true}},\n"
      "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 2e-2, \"ns_method\": \"gram\"}},\n"
      "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true},\n"
      "\"autotuning\": {\"enabled\": true, \"fast\": false}, \"torch_autocast\": {\"enabled\": true}}",
      2, CPU, NONE, BF16, 64, 16, 1, "Muon", "", 0 },
    { "{\"train_batch_size\": 64, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3},\n"
      "\"zero_allow_untested_optimizer\": true, \"optimizer\": {\"type\": \"Adafactor\", \"params\": {\"lr\": 1e-3,\n"
      "\"eps\": [1e-30, 1e-3], \"clip_threshold\": 1.0, \"decay_rate\": -0.8, \"beta1\": null, \"weight_decay\": 0.0,\n"
      "\"scale_parameter\": false, \"relative_step\": false, \"warmup_init\": false}}}",
      3, NONE, NONE, BF16, 64, 8, 1, "Adafactor", "", 0 },
};

static void resolve_as_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
        const shape *w = &shapes[i];
        if (parse_with(w->text, NULL, 0, false, 8) != DSC_OK)
            fail_msg("shape %zu was refused: %s: %s", i, err.where, err.message);
        if (config.zero.stage != w->stage || config.zero.optimizer_named != w->optimizer_device ||
            config.zero.param_named != w->param_device || config.precision != w->precision)
            fail_msg("shape %zu: stage %d, offload %d %d, precision %d", i, config.zero.stage,
                     config.zero.optimizer_named, config.zero.param_named, config.precision);
        assert_int_equal(config.zero.offload_optimizer, w->stage >= 1 ? w->optimizer_device : NONE);
        assert_int_equal(config.zero.offload_param, w->stage >= 3 ? w->param_device : NONE);
        assert_int_equal(config.train_batch_size, w->t);
        assert_int_equal(config.train_micro_batch_size_per_gpu, w->m);
        assert_int_equal(config.gradient_accumulation_steps, w->g);
        assert_string_equal(config.optimizer.type, w->optimizer);
        assert_string_equal(config.schedule.type, w->scheduler);
        assert_true(config.gradient_clipping == w->clipping);
    }
}

/* A word that is in the range, and one that is not; NULL where there is none. */
static void values_of(const dsc_config_key *key, char *good, char *bad, size_t room)
{
    const char *range = key->range;
    bad[0] = 0;
    snprintf(good, room, "%s", *key->default_json != 0 ? key->default_json : "");
    switch (key->type) {
    case DSC_KEY_BOOL:
        snprintf(good, room, "true");
        snprintf(bad, room, "\"perhaps\"");
        break;
    case DSC_KEY_INT: case DSC_KEY_FLOAT: case DSC_KEY_RATE: case DSC_KEY_NUMBERS:
        if (*good == 0)
            snprintf(good, room, "8");
        snprintf(bad, room, "%s", *range == '>' && range[1] == ' ' ? "0" : *range != 0 ? "-7" : "[]");
        if (strstr(range, "..") != NULL)
            snprintf(bad, room, "%.17g", strtod(range, NULL) - 1); /* below the least */
        break;
    case DSC_KEY_CHOICE: {
        const int length = (int)strcspn(range, "|/");
        snprintf(good, room, "\"%.*s\"", length, range);
        snprintf(bad, room, "\"%.*sx\"", length, range);
        break;
    }
    case DSC_KEY_TEXT: case DSC_KEY_TEXTS:
        snprintf(good, room, "\"log\"");
        snprintf(bad, room, "{}");
        break;
    case DSC_KEY_LIST:
        if (*good == 0)
            snprintf(good, room, "[]");
        snprintf(bad, room, "7");
        break;
    case DSC_KEY_SECTION:
        snprintf(good, room, "{}");
        snprintf(bad, room, "\"section\"");
        break;
    case DSC_KEY_ANY:
        snprintf(good, room, "{}");
        break;
    }
}

/* {"a": {"b": value}} with what the key needs beside it. */
static void around_key(const char *path, const char *value, char *text, size_t room)
{
    const int id = dsc_config_key_find(path);
    const bool of_sgd = dsc_config_key_is_in(id, "optimizer.params") &&
                        !dsc_optimizer_has_param(DSC_OPTIMIZER_ADAMW, id) &&
                        dsc_optimizer_has_param(DSC_OPTIMIZER_SGD, id);
    const struct { const char *section, *needs; } beside[] = {
        { "optimizer", of_sgd ? "\"type\":\"SGD\"," : "\"type\":\"AdamW\"," },
        { "scheduler", "\"type\":\"WarmupDecayLR\"," },
    };
    char closing[32] = "";
    const bool batch = strncmp(path, "train_", 6) == 0 || strncmp(path, "gradient_acc", 12) == 0;
    size_t used = (size_t)snprintf(text, room, "{%s", batch ? "" : "\"train_batch_size\":8,");
    if (strcmp(path, "gradient_accumulation_steps") == 0)
        used += (size_t)snprintf(text + used, room - used, "\"train_batch_size\":64,");
    for (const char *from = path; *from != 0;) {
        const int length = (int)strcspn(from, ".");
        used += (size_t)snprintf(text + used, room - used, "\"%.*s\":", length, from);
        if (from[length] == 0)
            break;
        used += (size_t)snprintf(text + used, room - used, "{");
        for (size_t i = 0; from == path && i < DSC_COUNT(beside); i++)
            if (strncmp(path, beside[i].section, (size_t)length) == 0 && strcmp(path + length, ".type") != 0)
                used += (size_t)snprintf(text + used, room - used, "%s", beside[i].needs);
        if (strncmp(from, "params", 6) == 0 && strcmp(path, "scheduler.params.total_num_steps") != 0 &&
            strncmp(path, "scheduler", 9) == 0)
            used += (size_t)snprintf(text + used, room - used, "\"total_num_steps\":100,");
        strcat(closing, "}");
        from += length + 1;
    }
    snprintf(text + used, room - used, "%s%s}", value, closing);
}

/* Values that the type alone does not decide. */
static const char *own_good_value(const char *path)
{
    static const struct { const char *path, *value;
    } own[] = {
        { "optimizer.type", "\"AdamW\"" },
        { "scheduler.type", "\"WarmupLR\"" },
        { "scheduler", "{\"type\":\"WarmupLR\"}" },
        { "scheduler.params", "{\"total_num_steps\":9}" },
        { "data_types.grad_accum_dtype", "\"fp32\"" },
        { "train_batch_size", "64" },
        { "dsc.images.mean", "[0.5]" },
        { "dsc.images.std", "[0.5]" },
        { "dsc.images.rand_augment", "[2, 9]" },
        { "dsc.images.scale", "[0.5, 1]" },
        { "dsc.images.ratio", "[0.5, 2]" },
        { "dsc.lora.layers_to_transform", "[0, 1]" },
        { "optimizer.params.nesterov", "false" }, /* true needs a momentum */
        { "dsc.fp8.enabled", "false" },           /* true needs bf16 */
    };
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        if (strcmp(own[i].path, path) == 0)
            return own[i].value;
    return NULL;
}

/* Keys of another schedule than the one around them. */
static bool of_another_schedule(int id)
{
    return dsc_config_key_is_in(id, "scheduler.params") && !dsc_schedule_has_param(DSC_SCHEDULE_WARMUP_DECAY, id);
}

static void common_keys_good_and_bad(void **state)
{
    (void)state;
    int good_count = 0, bad_count = 0;
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const dsc_config_key *key = &dsc_config_keys[id];
        char good[256], bad[256], text[2048];
        if (key->tier == 'C' || of_another_schedule(id))
            continue;
        values_of(key, good, bad, sizeof good);
        around_key(key->path, own_good_value(key->path) != NULL ? own_good_value(key->path) : good, text, sizeof text);
        if (parse_with(text, NULL, 0, false, 8) != DSC_OK)
            fail_msg("%s\n  was refused: %s: %s", text, err.where, err.message);
        good_count++;
        if (bad[0] == 0)
            continue;
        around_key(key->path, bad, text, sizeof text);
        if (parse_with(text, NULL, 0, false, 8) != DSC_ERR_CONFIG)
            fail_msg("%s\n  was not refused", text);
        if (strncmp(err.message, key->path, strlen(key->path)) != 0 || strncmp(err.where, "t.json:1:", 9) != 0)
            fail_msg("%s\n  names another key: %s: %s", text, err.where, err.message);
        bad_count++;
    }
    assert_true(good_count > 130);
    assert_true(bad_count > 130);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolve_as_deepspeed),
        cmocka_unit_test(common_keys_good_and_bad),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

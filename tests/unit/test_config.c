/* test_config.c - valid contents of a ds_config.json and their meaning; test_config_refused.c has the invalid ones.
 *
 * Most rules are rows: a fragment of JSON and what must come of it. The batch triad is compared with DeepSpeed's own
 * code (tests/golden/make_batch.py). SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

/* ---- the batch triad ---- */

static void batch_as_deepspeed(void **state)
{
    (void)state;
    char line[256];
    int count = 0;
    FILE *file = fopen("tests/golden/batch.txt", "r");
    if (file == NULL)
        fail_msg("tests/golden/batch.txt is not there: run from the repository's root");
    while (fgets(line, sizeof line, file) != NULL) {
        char given[3][16], text[256] = "{";
        static const char *const keys[] = { "train_batch_size", "train_micro_batch_size_per_gpu",
                                            "gradient_accumulation_steps" };
        long long world, wanted[3] = { 0, 0, 0 };
        assert_int_equal(sscanf(line, "%15s %15s %15s %lld", given[0], given[1], given[2], &world), 4);
        const char *result = strstr(line, "-> ") + 3;
        const bool fails = strncmp(result, "error", 5) == 0;
        for (int i = 0; i < 3; i++)
            if (strcmp(given[i], "-") != 0)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"%s\":%s", strlen(text) > 1 ? "," : "",
                         keys[i], given[i]);
        snprintf(text + strlen(text), sizeof text - strlen(text), "}");
        const dsc_status status = parse_with(text, NULL, 0, false, world);
        if ((status != DSC_OK) != fails)
            fail_msg("%s: ours %s", line, status != DSC_OK ? err.message : "passed");
        if (!fails) {
            assert_int_equal(sscanf(result, "%lld %lld %lld", &wanted[0], &wanted[1], &wanted[2]), 3);
            assert_int_equal(config.train_batch_size, wanted[0]);
            assert_int_equal(config.train_micro_batch_size_per_gpu, wanted[1]);
            assert_int_equal(config.gradient_accumulation_steps, wanted[2]);
        }
        count++;
    }
    fclose(file);
    assert_true(count > 3000);
}

/* The guides' smallest config. */
static void batch_error_says_what_works(void **state)
{
    (void)state;
    const char *guide = "{\n  \"train_batch_size\": 64,\n  \"gradient_accumulation_steps\": 8,\n  \"optimizer\": {\n"
                        "    \"type\": \"Adam\",\n    \"params\": {\n      \"lr\": 0.00015\n    }\n  },\n"
                        "  \"zero_optimization\": {\n    \"stage\": 2\n  }\n}\n";
    const int64_t micro[] = { 0, 8, 4, 0, 2, 0, 0, 0, 1 };
    for (int64_t w = 1; w <= 8; w++) {
        const dsc_status status = parse_with(guide, NULL, 0, false, w);
        assert_int_equal(status, micro[w] > 0 ? DSC_OK : DSC_ERR_CONFIG);
        if (status == DSC_OK)
            assert_int_equal(config.train_micro_batch_size_per_gpu, micro[w]);
    }
    assert_int_equal(parse_with(guide, NULL, 0, false, 3), DSC_ERR_CONFIG);
    assert_string_equal(err.where, "t.json:2:23");
    assert_non_null(strstr(err.message,
                           "train_batch_size 64 is not train_micro_batch_size_per_gpu 2 (inferred) * "
                           "gradient_accumulation_steps 8 * world size 3 = 48; world sizes that work: 1, 2, 4, 8"));
    assert_int_equal(parse_with(guide, NULL, 0, false, 16), DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "world sizes that work: 1, 2, 4, 8"));
    /* Without a world size the parts that depend on it stay open. */
    assert_int_equal(parse_with(guide, NULL, 0, false, 0), DSC_OK);
    assert_true(config.train_micro_batch_size_per_gpu == DSC_AUTO_I64);
    assert_int_equal(config.train_batch_size, 64);
    assert_int_equal(parse_with("{\"train_batch_size\":7,\"train_micro_batch_size_per_gpu\":2}", NULL, 0, false, 0),
                     DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "any world size"));
}

static void zeros_of_older_releases(void **state)
{
    (void)state;
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"reduce_bucket_size\":0},"
                    "\"flops_profiler\":{\"enabled\":true,\"profile_step\":0}"));
    assert_int_equal(config.zero.reduce_bucket_size, 0);
    assert_int_equal(config.flops_profiler.profile_step, 1);
}

static void resolve_starts_over(void **state)
{
    (void)state;
    const dsc_config_facts four = { 4, 64, 0, "cpu" }, two = { 2, 0, 0, "cpu" };
    parse_ok("{\"train_batch_size\":8,\"zero_optimization\":{\"stage\":1,\"reduce_bucket_size\":\"auto\",\"offload_"
             "optimizer\":"
             "{\"device\":\"cpu\"}}}");
    assert_int_equal(dsc_config_resolve(&config, &four, &err), DSC_OK);
    assert_int_equal(config.train_micro_batch_size_per_gpu, 2);
    assert_int_equal(config.zero.reduce_bucket_size, 64 * 64);
    const int warnings = config.warning_count, notes = config.note_count;
    assert_int_equal(dsc_config_resolve(&config, &two, &err), DSC_OK);
    assert_int_equal(config.train_micro_batch_size_per_gpu, 4);
    assert_int_equal(config.zero.reduce_bucket_size, 500000000);
    assert_int_equal(config.warning_count, warnings);
    assert_int_equal(config.note_count, notes);
}

/* ---- accepted, with or without a word ---- */

typedef struct acceptance {
    const char *fragment;
    const char *warning; /* a part of one, or NULL: none at all */
} acceptance;

static void warnings(void **state)
{
    (void)state;
    static const acceptance cases[] = {
        { "\"something_else\":1", "something_else (line 2): unknown key, ignored" },
        { "\"bf16\":{\"enabled\":True}", "enabled (line 2): True is Python and not JSON; write true" },
        { "\"wall_clock_breakdown\":False,\"bf16\":{\"enabled\":True}",
          "wall_clock_breakdown (line 2): False is Python and not JSON; write false (and 1 more such words)" },
        { "\"monitor_config\":{\"tensorboard\":{}}", "sections of the top level" },
        { "\"warmup_num_steps\":1", "belongs in \"scheduler.params\"" },
        { "\"stage3_prefetch_bucket_size\":1", "belongs in \"zero_optimization\"" },
        { "\"optimizer\":{\"type\":\"Adam\",\"extra\":1}", "optimizer.extra" },
        { "\"optimizer\":{\"params\":{\"lr\":1}}", "has no type" },
        { "\"aio\":{\"odd\":1}", "aio.odd" },
        { "\"comet\":{\"enabled\":true,\"online\":true}", "comet.online (line 2): true is ignored" },
        { "\"zero_optimization\":true", "an old form, taken as {\"stage\": 1}" },
        { "\"zero_optimization\":{\"stage\":2,\"cpu_offload\":true}", "cpu_offload (line 2): an old form" },
        { "\"zero_optimization\":{\"stage\":2,\"stage3_max_live_parameters\":1}", "no effect at stage 2" },
        { "\"zero_optimization\":{\"stage\":2,\"offload_param\":{\"device\":\"nvme\"}}",
          "no effect at stage 2: it needs stage 3" },
        { "\"zero_optimization\":{\"stage\":0,\"offload_optimizer\":{\"device\":\"cpu\"}}", "no effect at stage 0" },
        { "\"zero_optimization\":{\"stage\":1,\"round_robin_gradients\":true}",
          "round_robin_gradients (line 2): true is ignored" },
        { "\"zero_optimization\":{\"stage\":1,\"allgather_bucket_size\":\"auto\"}",
          "has no meaning for this key; using the default 5e8" },
        { "\"zero_optimization\":{\"stage\":3,\"leaf_module\":{\"names\":\"a\"}}", "leaf_module" },
        { "\"gradient_clipping\":\"1.5\"", "\"1.5\" is a string, taken as a number" },
        { "\"wall_clock_breakdown\":\"False\"", "\"False\" is a string" },
        { "\"data_types\":{\"grad_accum_dtype\":\"auto\"}", "has no meaning for this key" },
        { "\"fp16\":{\"enabled\":true},\"data_types\":{\"grad_accum_dtype\":\"half\"}",
          "gradients are accumulated in fp32 all the same" },
        { "\"fp16\":{\"enabled\":true,\"auto_cast\":true}", "auto_cast" },
        { "\"bf16\":{\"enabled\":true},\"bfloat16\":{\"enabled\":false}", "ignored because bf16 is there" },
        { "\"bf16\":{\"enabled\":true,\"check_grad_overflow\":false}", "always so" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"max_grad_norm\":1}}", "taken as gradient_clipping 1" },
        { "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"adam_w_mode\":false}}", "no effect with type AdamW" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.1}},\"scheduler\":{\"type\":\"WarmupLR\"}",
          "0.001, the default as in DeepSpeed 0.16, replaces the optimizer's lr 0.1 after the warm-up; DeepSpeed 0.19 "
          "takes lr. Set scheduler.params.warmup_max_lr" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.1}},"
          "\"scheduler\":{\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":5000}}",
          "0.001, the default, replaces the optimizer's lr 0.1" },
        { "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.1}},\"scheduler\":{\"type\":\"WarmupLR\",\"params\":"
          "{\"warmup_max_lr\":0.2}}",
          "warmup_max_lr 0.2 replaces" },
        { "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_type\":\"cubic\"}}", "log is used" },
        { "\"scheduler\":{\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":5}}",
          "less than warmup_num_steps" },
        { "\"scheduler\":{\"params\":{}}", "it has no type" },
        { "\"seed\":7", "taken as dsc.seed" },
        { "\"dsc\":{\"eval_every\":2}",
          "dsc.eval_every (line 2): no effect without data to evaluate; set dsc.eval_data" },
        { "\"dsc\":{\"save_every\":2}", "dsc.save_every (line 2): no effect without a folder to save to" },
        { "\"dsc\":{\"eval_batches\":2}", "dsc.eval_batches (line 2): no effect without data to evaluate" },
        { "\"dsc\":{\"stop\":{\"eval_patience\":2}}",
          "dsc.stop.eval_patience (line 2): no effect without data to evaluate" },
        { "\"activation_checkpointing\":{\"partition_activations\":true}", "partition_activations" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        parse_ok(around(cases[i].fragment));
        if (!warned(cases[i].warning))
            fail_msg("%s\n  wanted a warning with \"%s\", got %d: %s", cases[i].fragment, cases[i].warning,
                     config.warning_count, config.warnings[0]);
        /* The same under --strict is an error at the same place. */
        assert_int_equal(parse_with(around(cases[i].fragment), NULL, 0, true, 1), DSC_ERR_CONFIG);
        assert_non_null(strstr(err.message, "--strict"));
    }
}

/* Once, whichever steps are known when: those of the config, then those of the data. */
static void schedules_that_are_longer_than_the_run(void **state)
{
    (void)state;
    static const struct { const char *fragment, *warning; } cases[] = {
        { "\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":21,\"warmup_num_steps\":2}",
          "scheduler.params.total_num_steps: 21 steps are more than the 20 of the run" },
        { "\"type\":\"WarmupCosineLR\",\"params\":{\"total_num_steps\":100,\"warmup_num_steps\":2}",
          "scheduler.params.total_num_steps: 100 steps are more than the 20 of the run" },
        { "\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":20,\"warmup_num_steps\":2}", NULL },
        { "\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":\"auto\",\"warmup_num_steps\":2}", NULL },
        { "\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":0.1,\"cycle_max_lr\":0.5,\"cycle_first_step_size\":11}",
          "cycle_second_step_size: 22 steps are more than the 20 of the run" },
        { "\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":0.1,\"cycle_max_lr\":0.5,\"cycle_first_step_size\":10}",
          NULL },
    };
    const dsc_config_facts unknown = { 1, 64, 0, "cpu" }, known = { 1, 64, 20, "cpu" };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        for (int in_config = 0; in_config < 2; in_config++) {
            char text[512];
            snprintf(text, sizeof text, "\"scheduler\":{%s}%s", cases[i].fragment,
                     in_config ? ",\"dsc\":{\"steps\":20}" : "");
            parse_ok(around(text));
            assert_int_equal(dsc_config_resolve(&config, &unknown, &err), DSC_OK);
            assert_int_equal(config.warning_count, in_config && cases[i].warning != NULL ? 1 : 0);
            assert_int_equal(dsc_config_resolve(&config, &known, &err), DSC_OK);
            assert_int_equal(config.warning_count, cases[i].warning != NULL ? 1 : 0);
            if (cases[i].warning != NULL)
                assert_true(warned(cases[i].warning));
        }
}

static void silent(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "\"fp16\":{\"enabled\":false,\"loss_scale\":0,\"initial_scale_power\":32,\"loss_scale_window\":100,"
        "\"hysteresis\":2}",
        "\"fp16\":null,\"bf16\":null,\"zero_optimization\":null,\"optimizer\":null,\"scheduler\":null",
        "\"optimizer\":{\"type\":\"Adam\",\"params\":null},\"scheduler\":{\"type\":\"WarmupLR\",\"params\":null}",
        "\"zero_optimization\":{\"stage\":\"2\",\"overlap_comm\":\"true\",\"contiguous_gradients\":true,\"reduce_"
        "scatter\":true,"
        "\"allgather_partitions\":true,\"reduce_bucket_size\":\"5_000\",\"offload_optimizer\":{\"device\":\"none\"}}",
        "\"zero_optimization\":{\"stage\":3,\"stage3_gather_16bit_weights_on_model_save\":true,\"zero_hpz_partition_"
        "size\":1}",
        "\"zero_optimization\":{\"stage\":3,\"prefetch_bucket_size\":1000,\"param_persistence_threshold\":1e5}",
        "\"bfloat16\":{\"enabled\":true}",
        "\"bf16\":{\"enabled\":true},\"communication_data_type\":\"BF16\"",
        "\"communication_data_type\":\"fp32\",\"data_types\":{\"grad_accum_dtype\":\"torch.float32\"}",
        "\"communication_data_type\":null,\"data_types\":{\"grad_accum_dtype\":null}",
        "\"tensor_parallel\":{\"autotp_size\":1},\"sequence_parallel_size\":1,\"pipeline\":{\"stages\":\"auto\"}",
        "\"elasticity\":{\"enabled\":false,\"max_train_batch_size\":10},\"tensorboard\":{\"enabled\":false}",
        "\"zero_allow_untested_optimizer\":true,\"zero_force_ds_cpu_optimizer\":false,\"steps_per_print\":2000",
        "\"sparse_attention\":{\"mode\":\"dense\"},\"checkpoint\":{\"tag_validation\":\"WARN\"}",
        "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":0.5}}", /* nobody gave an lr to replace */
        "// a comment\n\"steps_per_print\": 5, # another\n /* and */ \"dump_state\": false,",
        "\"compression_training\":{\"row_pruning\":{\"shared_parameters\":{\"enabled\":false,\"method\":\"l1\"},"
        "\"different_groups\":{\"any name\":{\"params\":{}}}}}",
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        if (parse_with(around(cases[i]), NULL, 0, true, 1) != DSC_OK)
            fail_msg("%s\n  was refused: %s: %s", cases[i], err.where, err.message);
        assert_int_equal(config.warning_count, 0);
    }
}

static void values_of_a_config(void **state)
{
    (void)state;
    parse_ok("{\"train_micro_batch_size_per_gpu\":4,\"optimizer\":{\"type\":\"aDaM\",\"params\":{\"lr\":[2e-4],"
             "\"betas\":[0.8,0.9],"
             "\"eps\":1e-6,\"weight_decay\":0.1,\"bias_correction\":false}},\"gradient_clipping\":0.5,\"bf16\":{"
             "\"enabled\":true},"
             "\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":1e7,\"sub_group_size\":9223372036854775807,"
             "\"stage3_max_live_parameters\":0,\"offload_param\":{\"device\":\"cpu\"}},\"steps_per_print\":0,"
             "\"wall_clock_breakdown\":true,\"csv_monitor\":{\"enabled\":true,\"output_path\":\"o\"},"
             "\"dsc\":{\"model\":\"gpt2-nano\",\"data\":[\"a\",\"b.bin\"],\"eval_data\":\"c\",\"seq_length\":64,"
             "\"steps\":5,\"epochs\":2,"
             "\"save\":\"out\",\"save_every\":3,\"save_failure\":\"stop\","
             "\"load\":\"auto\",\"shuffle\":false,\"device\":\"cpu\",\"log\":\"l\","
             "\"log_text\":\"t\","
             "\"reproducible\":\"world_size\",\"recompute\":\"full\",\"eval_every\":7,\"eval_batches\":8,\"vocab_"
             "multiple\":64,"
             "\"threads\":2,\"comm\":\"shm\",\"comm_timeout_s\":1.5,\"seed\":99,\"dropout\":\"off\",\"accumulate\":"
             "\"leaf\","
             "\"lora\":{\"r\":16,\"alpha\":32,\"use_rslora\":true,\"target_modules\":[\"q_proj\",\"v_proj\"]}}}");
    const dsc_ext_config *own = &config.own;
    assert_string_equal(config.optimizer.type, "aDaM");
    assert_int_equal(config.optimizer.kind, DSC_OPTIMIZER_ADAMW); /* DeepSpeed's meaning of Adam */
    assert_true(config.optimizer.lr == 2e-4 && config.optimizer.beta1 == 0.8 && config.optimizer.beta2 == 0.9);
    assert_true(config.optimizer.eps == 1e-6 && config.optimizer.weight_decay == 0.1 &&
                !config.optimizer.bias_correction);
    assert_true(config.gradient_clipping == 0.5);
    assert_int_equal(config.precision, DSC_PRECISION_BF16);
    assert_int_equal(config.zero.stage, 3);
    assert_false(config.zero.overlap_comm); /* not given: on CPUs compute takes every core */
    assert_int_equal(config.zero.reduce_bucket_size, 10000000);
    assert_int_equal(config.zero.sub_group_size, (int64_t)1 << 53);
    assert_int_equal(config.zero.stage3_max_live_parameters, 0);
    assert_int_equal(config.zero.offload_param, DSC_OFFLOAD_CPU);
    assert_int_equal(config.steps_per_print, 0);
    assert_true(config.wall_clock_breakdown);
    assert_true(config.csv_monitor.enabled && !config.tensorboard.enabled);
    assert_string_equal(config.csv_monitor.output_path, "o");
    assert_string_equal(config.csv_monitor.job_name, "DeepSpeedJobName");
    assert_string_equal(own->model, "gpt2-nano");
    assert_true(own->lora.enabled && own->lora.rank == 16 && own->lora.alpha == 32 && own->lora.rank_stabilized);
    assert_int_equal(own->lora.target_count, 2);
    assert_string_equal(own->lora.targets[1], "v_proj");
    assert_int_equal(own->data.count, 2);
    assert_string_equal(dsc_config_path(&own->data, 1), "b.bin");
    assert_int_equal(own->eval_data.count, 1);
    assert_string_equal(dsc_config_path(&own->eval_data, 0), "c");
    assert_int_equal(own->seq_length, 64);
    assert_int_equal(own->steps, 5);
    assert_int_equal(own->epochs, 2);
    assert_string_equal(own->save, "out");
    assert_int_equal(own->save_every, 3);
    assert_true(own->save_failure_stops);
    assert_string_equal(own->load, "auto");
    assert_false(own->shuffle);
    assert_string_equal(own->device, "cpu");
    assert_string_equal(own->log, "l");
    assert_string_equal(own->log_text, "t");
    assert_int_equal(own->reproducible, DSC_REPRODUCIBLE_WORLD_SIZE);
    assert_int_equal(own->recompute, DSC_RECOMPUTE_FULL);
    assert_int_equal(own->eval_every, 7);
    assert_int_equal(own->eval_batches, 8);
    assert_int_equal(own->vocab_multiple, 64);
    assert_int_equal(own->threads, 2);
    assert_string_equal(own->comm, "shm");
    assert_true(own->comm_timeout_s == 1.5);
    assert_true(own->comm_timeout_given);
    assert_int_equal(config.seed, 99);
    assert_string_equal(config.name, "t.json");
    assert_int_equal(strlen(config.sha256), 64);
}

static void defaults(void **state)
{
    (void)state;
    parse_ok("{\"train_batch_size\":1}");
    assert_int_equal(config.optimizer.kind, DSC_OPTIMIZER_NONE);
    assert_true(config.optimizer.lr == 1e-3 && config.optimizer.beta1 == 0.9 && config.optimizer.beta2 == 0.999);
    assert_true(config.optimizer.eps == 1e-8 && config.optimizer.weight_decay == 0 && config.optimizer.bias_correction);
    assert_int_equal(config.schedule.kind, DSC_SCHEDULE_NONE);
    assert_true(config.gradient_clipping == 0);
    assert_true(noted_as_warning("gradient_clipping is not given: 0, no clipping, as DeepSpeed before June 2026"));
    assert_true(noted("no optimizer is given: AdamW, lr 0.001"));
    assert_int_equal(config.precision, DSC_PRECISION_FP32);
    assert_int_equal(config.zero.stage, 0);
    assert_false(config.zero.overlap_comm);
    assert_int_equal(config.zero.reduce_bucket_size, 500000000);
    assert_int_equal(config.zero.allgather_bucket_size, 500000000);
    assert_int_equal(config.zero.stage3_prefetch_bucket_size, 50000000);
    assert_int_equal(config.zero.sub_group_size, 1000000000);
    assert_int_equal(config.steps_per_print, 1);
    assert_int_equal(config.seed, 1234);
    assert_int_equal(config.own.epochs, 1);
    assert_int_equal(config.own.vocab_multiple, 1);
    assert_true(config.own.shuffle);
    assert_string_equal(config.own.device, "auto");
    assert_string_equal(config.own.comm, "auto");
    assert_true(config.own.comm_timeout_s == 600);
    assert_false(config.own.comm_timeout_given);
    parse_ok(around("\"optimizer\":{\"type\":\"Adam\",\"params\":{\"adam_w_mode\":false}}"));
    assert_int_equal(config.optimizer.kind, DSC_OPTIMIZER_ADAM);
    parse_ok(around("\"scheduler\":{\"type\":\"WarmupLR\"}"));
    assert_true(config.schedule.warmup_max_lr == 0.001);
    assert_int_equal(config.schedule.warmup_num_steps, 1000);
    parse_ok(around(
        "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.3}},\"scheduler\":{\"type\":\"WarmupLR\",\"params\":"
        "{\"warmup_max_lr\":null,\"warmup_num_steps\":1}}"));
    assert_true(config.schedule.warmup_max_lr == 0.3);
    assert_int_equal(config.schedule.warmup_num_steps, 2);
}

static void automatic(void **state)
{
    (void)state;
    const dsc_config_facts facts = { 2, 768, 500, "cpu" };
    parse_ok(
        "{\"train_batch_size\":\"auto\",\"train_micro_batch_size_per_gpu\":\"auto\",\"gradient_accumulation_steps\":"
        "\"auto\","
        "\"gradient_clipping\":\"auto\",\"fp16\":{\"enabled\":\"auto\",\"loss_scale\":0},\"bf16\":{\"enabled\":"
        "\"auto\"},"
        "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":\"auto\",\"betas\":\"auto\",\"eps\":\"auto\",\"weight_"
        "decay\":\"auto\"}},"
        "\"scheduler\":{\"type\":\"WarmupDecayLR\",\"params\":{\"total_num_steps\":\"auto\",\"warmup_min_lr\":\"auto\","
        "\"warmup_max_lr\":\"auto\",\"warmup_num_steps\":\"auto\"}},\"zero_optimization\":{\"stage\":3,\"reduce_bucket_"
        "size\":"
        "\"auto\",\"stage3_prefetch_bucket_size\":\"auto\",\"stage3_param_persistence_threshold\":\"auto\"}}");
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(config.auto_mask,
                     DSC_CONFIG_AUTO_PRECISION | DSC_CONFIG_AUTO_CLIPPING | DSC_CONFIG_AUTO_BATCH | DSC_CONFIG_AUTO_LR);
    assert_int_equal(dsc_config_resolve(&config, &facts, &err), DSC_OK);
    assert_int_equal(config.train_micro_batch_size_per_gpu, 8);
    assert_int_equal(config.train_batch_size, 16);
    assert_int_equal(config.precision, DSC_PRECISION_BF16);
    assert_true(config.gradient_clipping == 1.0);
    assert_true(config.optimizer.lr == 5e-5 && config.schedule.warmup_max_lr == 5e-5 &&
                config.schedule.warmup_min_lr == 0);
    assert_true(config.optimizer.beta1 == 0.9 && config.optimizer.eps == 1e-8);
    assert_int_equal(config.schedule.total_num_steps, 500);
    assert_int_equal(config.zero.reduce_bucket_size, 768 * 768);
    assert_int_equal(config.zero.stage3_prefetch_bucket_size, 530841); /* 0.9 * 768 * 768, rounded down */
    assert_true(noted("train_micro_batch_size_per_gpu \"auto\": 8") && noted("lr \"auto\": 5e-05") &&
                noted("total_num_steps \"auto\": 500"));
    assert_true(noted("reduce_bucket_size \"auto\": 589824") && noted("precision \"auto\": bf16"));
    assert_true(noted("train_batch_size \"auto\": 16") && noted("gradient_accumulation_steps \"auto\": 1"));
    /* Each "auto" is said, also where nothing follows from it. */
    parse_ok(around("\"zero_optimization\":{\"stage\":1,\"contiguous_gradients\":\"auto\"},"
                    "\"sparse_gradients\":\"auto\",\"prescale_gradients\":\"auto\","
                    "\"gradient_accumulation_steps\":\"auto\","
                    "\"wall_clock_breakdown\":\"auto\""));
    assert_true(noted("zero_optimization.contiguous_gradients \"auto\": the default, true"));
    assert_true(noted("sparse_gradients \"auto\": the default, false"));
    assert_true(warned("prescale_gradients (line 2): \"auto\" has no meaning for this key; using the default false"));
    assert_true(noted("gradient_accumulation_steps \"auto\": 1, from the other two and the world size"));
    assert_true(warned("wall_clock_breakdown (line 2): \"auto\" has no meaning for this key; using the default false"));
    /* Only what is left open is "auto": T decides the others. */
    parse_ok("{\"train_batch_size\":12,\"train_micro_batch_size_per_gpu\":\"auto\"}");
    assert_int_equal(config.auto_mask, 0);
    assert_int_equal(config.train_micro_batch_size_per_gpu, 12);
    parse_ok(around("\"fp16\":{\"enabled\":\"auto\"},\"bf16\":{\"enabled\":false}"));
    assert_int_equal(config.precision, DSC_PRECISION_FP16);
    parse_ok(around("\"fp16\":{\"enabled\":\"auto\"},\"bf16\":{\"enabled\":true}"));
    assert_int_equal(config.auto_mask, 0);
}

static void precision(void **state)
{
    (void)state;
    static const struct { const char *members; dsc_precision precision; dsc_dtype wire; } cases[] = {
        { "\"bf16\":{\"enabled\":true},\"communication_data_type\":\"fp32\"", DSC_PRECISION_BF16, DSC_F32 },
        { "\"bf16\":{\"enabled\":true},\"communication_data_type\":\"fp16\"", DSC_PRECISION_BF16, DSC_F16 },
        { "\"communication_data_type\":\"bf16\"", DSC_PRECISION_FP32, DSC_BF16 },
        { "\"bf16\":{\"enabled\":true},\"fp32_allreduce\":true", DSC_PRECISION_BF16, DSC_F32 },
        { "\"fp16\":{\"enabled\":true},\"fp32_allreduce\":false", DSC_PRECISION_FP16, DSC_F16 },
        { "\"bf16\":{\"enabled\":true},\"fp32_allreduce\":true,\"communication_data_type\":\"fp32\"",
          DSC_PRECISION_BF16, DSC_F32 },
        { "\"bf16\":{\"enabled\":\"true\"}", DSC_PRECISION_BF16, DSC_BF16 },
        { "\"fp16\":{\"enabled\":true}", DSC_PRECISION_FP16, DSC_F16 },
        { "\"fp16\":{\"enabled\":\"true\",\"loss_scale\":\"128\"}", DSC_PRECISION_FP16, DSC_F16 },
        { "\"gradient_clipping\":0", DSC_PRECISION_FP32, DSC_F32 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        parse_ok(around(cases[i].members));
        assert_int_equal(config.precision, cases[i].precision);
        assert_int_equal(config.communication_dtype, cases[i].wire);
    }
    parse_ok(around("\"fp16\":{\"enabled\":true,\"loss_scale\":0,\"initial_scale_power\":12,\"loss_scale_window\":500,"
                    "\"hysteresis\":4,\"consecutive_hysteresis\":true,\"min_loss_scale\":0.5}"));
    assert_int_equal(config.warning_count, 0);
    assert_true(config.fp16.loss_scale == 0 && config.fp16.initial_scale_power == 12 &&
                config.fp16.loss_scale_window == 500 && config.fp16.hysteresis == 4 &&
                config.fp16.consecutive_hysteresis && config.fp16.min_loss_scale == 0.5);
    parse_ok(around("\"fp16\":{\"enabled\":true}"));
    assert_true(config.fp16.initial_scale_power == 16 && config.fp16.loss_scale_window == 1000 &&
                config.fp16.hysteresis == 2 && !config.fp16.consecutive_hysteresis && config.fp16.min_loss_scale == 1);
}

static void leaf_factors(void **state)
{
    (void)state;
    parse_ok(around("\"gradient_predivide_factor\":8"));
    assert_true(dsc_config_grad_part_factor(&config, 3) == 0.125f);
    parse_ok(around("\"prescale_gradients\":true"));
    assert_true(dsc_config_grad_part_factor(&config, 3) == 1.0f / 3);
    assert_int_equal(config.warning_count, 0);
    parse_ok(around("\"prescale_gradients\":true,\"gradient_predivide_factor\":8"));
    assert_true(dsc_config_grad_part_factor(&config, 4) == 0.25f);
    assert_true(warned("gradient_predivide_factor (line 2): no effect beside prescale_gradients"));
    parse_ok(around("\"fp32_allreduce\":true"));
    assert_true(warned("fp32_allreduce (line 2): an old form, taken as communication_data_type \"fp32\""));
}

static void offload_to_files(void **state)
{
    (void)state;
    parse_ok(around("\"aio\":{\"block_size\":65536,\"queue_depth\":32,\"thread_count\":3,\"single_submit\":true},"
                    "\"zero_optimization\":{\"stage\":3,\"sub_group_size\":5000,"
                    "\"offload_optimizer\":{\"device\":\"nvme\","
                    "\"nvme_path\":[\"/a\",\"/b\"],\"buffer_count\":8,\"pipeline_write\":false,\"ratio\":0.25,"
                    "\"fast_init\":true,\"pin_memory\":true},"
                    "\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"/c\","
                    "\"max_in_cpu\":77,\"buffer_size\":1,\"buffer_count\":2},"
                    "\"stage3_param_persistence_threshold\":12}"));
    const dsc_zero_config *zero = &config.zero;
    assert_int_equal(zero->offload_optimizer, DSC_OFFLOAD_NVME);
    assert_int_equal(zero->nvme_optimizer.path_count, 2);
    assert_string_equal(zero->nvme_optimizer.path[1], "/b");
    assert_int_equal(zero->nvme_param.path_count, 1);
    assert_string_equal(zero->nvme_param.path[0], "/c");
    assert_int_equal(zero->offload_buffer_count, 8);
    assert_true(zero->param_buffers_given);
    assert_int_equal(zero->param_buffer_count, 2);
    assert_int_equal(zero->param_buffer_size, 1);
    assert_true(zero->pipeline_read && !zero->pipeline_write);
    assert_float_equal(zero->offload_ratio, 0.25, 0);
    assert_int_equal(config.aio.block_size, 65536);
    assert_int_equal(config.aio.queue_depth, 32);
    assert_int_equal(config.aio.thread_count, 3);
    assert_true(config.aio.single_submit && config.aio.overlap_events);
    dsc_config_facts facts = { .world_size = 1, .hidden_size = 64, .device = "cpu" };
    assert_int_equal(dsc_config_resolve(&config, &facts, &err), DSC_OK);
    assert_int_equal(zero->max_in_cpu, 77);
    assert_false(zero->params_with_states);
    assert_int_equal(zero->stage3_param_persistence_threshold, 12);
    assert_int_equal(config.warning_count, 0);

    /* Host memory is not another tier than the device of a CPU rank. */
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":\"auto\","
                    "\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"/c\"}}"));
    assert_int_equal(dsc_config_resolve(&config, &facts, &err), DSC_OK);
    assert_int_equal(zero->max_in_cpu, 0);
    assert_true(zero->params_with_states);
    assert_false(zero->param_buffers_given);
    assert_int_equal(zero->stage3_param_persistence_threshold, 640);
    assert_string_equal(config.own.aio, "auto");
}

static void offload_on_devices(void **state)
{
    (void)state;
    const dsc_config_facts cpu = { 1, 0, 0, "cpu" }, cuda = { 1, 0, 0, "cuda" };
    parse_ok(
        around("\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"cpu\",\"pin_memory\":true}}"));
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("offload_optimizer.device (line 2): \"cpu\" moves nothing"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"cpu\"}}"));
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("offload_param.device (line 2): \"cpu\" moves nothing"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(config.zero.max_in_cpu, 1000000000);
    assert_false(config.zero.params_with_states);
    parse_ok(around("\"activation_checkpointing\":{\"cpu_checkpointing\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    parse_ok(around("\"activation_checkpointing\":{\"cpu_checkpointing\":true},\"dsc\":{\"recompute\":\"auto\"}"));
    assert_int_equal(config.own.recompute, DSC_RECOMPUTE_AUTO);
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    parse_ok(around("\"dsc\":{\"recompute\":\"selective\"}"));
    assert_int_equal(config.own.recompute, DSC_RECOMPUTE_SELECTIVE);
    assert_true(config.own.recompute_given);
    parse_ok(around("\"dsc\":{\"recompute\":\"kept\"}"));
    assert_int_equal(config.own.recompute, DSC_RECOMPUTE_KEPT);
    parse_ok(around("\"dsc\":{\"seed\":1}"));
    assert_int_equal(config.own.recompute, DSC_RECOMPUTE_NONE);
    assert_false(config.own.recompute_given);
    parse_ok(around("\"activation_checkpointing\":{\"cpu_checkpointing\":true},\"dsc\":{\"recompute\":\"full\"}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("cpu_checkpointing (line 2): moves nothing"));
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"nvme\","
                    "\"nvme_path\":\"/x\"}},\"dsc\":{\"early_update\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("dsc.early_update (line 2): no effect")); /* parameters are not there */
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"nvme\","
                    "\"nvme_path\":\"/x\"},\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"/x\"}},"
                    "\"dsc\":{\"early_update\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_true(warned("dsc.early_update (line 2): no effect"));
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}},"
                    "\"dsc\":{\"early_update\":true,\"early_update_share\":0.25}"));
    assert_true(config.own.early_update_share == 0.25);
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("dsc.early_update (line 2): no effect")); /* host memory is the device there */
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}},"
                    "\"gradient_clipping\":1,\"dsc\":{\"early_update\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_true(warned("steps on GPUs that are not clipped"));
    parse_ok(around("\"gradient_clipping\":1,\"dsc\":{\"late_update\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("dsc.late_update (line 2): no effect: it is about GPUs"));
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}},"
                    "\"dsc\":{\"late_update\":true}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_true(warned("some are offloaded"));
    parse_ok(around("\"dsc\":{\"late_update\":true,\"ema\":{\"decay\":0.9}}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_true(warned("runs without dsc.ema"));
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}},"
                    "\"gradient_accumulation_steps\":2,\"dsc\":{\"gradients_on_gpu\":1}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("dsc.gradients_on_gpu (line 2): no effect"));
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"cpu\"}},"
                    "\"dsc\":{\"gradients_in_memory\":0.5}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_true(warned("dsc.gradients_in_memory (line 2): no effect"));
    parse_ok(around("\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"nvme\","
                    "\"nvme_path\":\"/x\"}},\"dsc\":{\"gradients_in_memory\":0.5,\"reproducible\":\"world_size\"}"));
    assert_int_equal(dsc_config_resolve(&config, &cpu, &err), DSC_OK);
    assert_true(warned("dsc.gradients_in_memory (line 2): no effect"));
    parse_ok(around("\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"nvme\","
                    "\"nvme_path\":\"/x\"}},\"dsc\":{\"gradients_in_memory\":0.5}"));
    assert_int_equal(dsc_config_resolve(&config, &cuda, &err), DSC_OK);
    assert_int_equal(config.warning_count, 0);
}

/* Fewer than are asked for, unless that is all of them. */
static void how_many_run_together(void **state)
{
    static const struct {
        int asked, all, together;
        bool noted;
    } cases[] = { { 1, 4, 1, false }, { 2, 4, 2, false }, { 3, 4, 2, true },
                  { 5, 7, 1, true },  { 4, 4, 4, false }, { 9, 4, 4, false } };
    const dsc_config_facts facts = { .world_size = 1, .device = "cpu" };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char text[200], note[100];
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\":1,\"gradient_accumulation_steps\":%d,"
                 "\"dsc\":{\"micro_batches_together\":%d}}",
                 cases[i].all, cases[i].asked);
        snprintf(note, sizeof note, "micro_batches_together %d: %d, the largest divisor", cases[i].asked,
                 cases[i].together);
        parse_ok(text);
        assert_int_equal(dsc_config_resolve(&config, &facts, &err), DSC_OK);
        assert_int_equal(dsc_config_micro_batch_group(&config), cases[i].together);
        assert_int_equal(noted(note), cases[i].noted);
    }
}

/* bitsandbytes' name and those of transformers; dsc.moments says the same. */
static void names_of_8_bit_moments(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"train_batch_size\":4,\"optimizer\":{\"type\":\"AdamW8bit\",\"params\":{\"lr\":0.01}}}",
        "{\"train_batch_size\":4,\"optimizer\":{\"type\":\"adamw_8bit\"},\"dsc\":{\"moments\":\"8bit\"}}",
        "{\"train_batch_size\":4,\"optimizer\":{\"type\":\"adamw_bnb_8bit\"}}",
        "{\"train_batch_size\":4,\"optimizer\":{\"type\":\"AdamW\"},\"dsc\":{\"moments\":\"8bit\"}}",
        "{\"train_batch_size\":4,\"dsc\":{\"moments\":\"8bit\"}}",
    };
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        assert_int_equal(parse_with(texts[i], NULL, 0, false, 4), DSC_OK);
        assert_int_equal(config.own.moments, DSC_U8);
        assert_int_equal(config.optimizer.recipe, DSC_RECIPE_ADAMW);
    }
}

/* ---- flags ---- */

static void overrides(void **state)
{
    (void)state;
    const char *text =
        "{\"train_batch_size\":64,\"train_micro_batch_size_per_gpu\":8,\"optimizer\":{\"type\":\"Adam\",\"params\":"
        "{\"lr\":0.1}},\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":0.1}},"
        "\"dsc\":{\"data\":\"a\",\"steps\":3}}";
    const dsc_config_override all[] = {
        { "train_micro_batch_size_per_gpu", "16", "--batch-size" },
        { "gradient_accumulation_steps", "2", "--gradient-accumulation-steps" },
        { "optimizer.params.lr", "0.5", "--learning-rate" },
        { "zero_optimization.stage", "2", "--strategy" },
        { "dsc.data", "[\"x\",\"y\"]", "--data" },
        { "dsc.load", "\"auto\"", "--load" },
    };
    assert_int_equal(parse_with(text, all, (int)DSC_COUNT(all), false, 4), DSC_OK);
    assert_int_equal(config.train_micro_batch_size_per_gpu, 16);
    assert_int_equal(config.gradient_accumulation_steps, 2);
    assert_int_equal(config.train_batch_size, 16 * 2 * 4); /* follows */
    assert_true(config.optimizer.lr == 0.5);
    assert_true(config.schedule.warmup_max_lr == 0.5); /* the file said: warm up to lr */
    assert_int_equal(config.zero.stage, 2);
    assert_int_equal(config.own.data.count, 2);
    assert_string_equal(config.own.load, "auto");
    assert_true(noted("--batch-size 16 overrides train_micro_batch_size_per_gpu 8"));
    assert_true(noted("--learning-rate 0.5 overrides optimizer.params.lr 0.1"));
    assert_true(noted("train_batch_size 64 of the file gives way"));
    assert_false(noted("--load")); /* nothing to override */
    const dsc_config_override with_t[] = { { "train_micro_batch_size_per_gpu", "4", "--batch-size" },
                                           { "train_batch_size", "8", "--train-batch-size" } };
    assert_int_equal(parse_with(text, with_t, 2, false, 1), DSC_OK);
    assert_int_equal(config.gradient_accumulation_steps, 2);
    const dsc_config_override bad[] = { { "train_micro_batch_size_per_gpu", "0", "--batch-size" } };
    assert_int_equal(parse_with(text, bad, 1, false, 1), DSC_ERR_CONFIG);
    assert_string_equal(err.where, "--batch-size");
    const dsc_config_override worse[] = { { "dsc.steps", "]", "--steps" } };
    assert_int_equal(dsc_status_exit_code(parse_with(text, worse, 1, false, 1)), 2);
    const dsc_config_override nowhere[] = { { "no.such.key", "1", "--odd" } }, section[] = { { "dsc", "{}", "--odd" } };
    assert_int_equal(parse_with(text, nowhere, 1, false, 1), DSC_ERR_CONFIG);
    assert_int_equal(parse_with(text, section, 1, false, 1), DSC_ERR_CONFIG);
    const dsc_config_override epochs[] = { { "dsc.epochs", "2", "--epochs" }, { "seed", "5", "--seed" } };
    assert_int_equal(parse_with(text, epochs, 2, true, 8), DSC_OK);
    assert_int_equal(config.own.steps, 0); /* the file's steps give way */
    assert_true(noted("--epochs beats dsc.steps 3"));
    assert_int_equal(config.seed, 5);
    assert_int_equal(parse_with("{\"train_batch_size\":1,\"seed\":4,\"dsc\":{\"seed\":3}}", epochs, 2, true, 1),
                     DSC_OK);
    assert_int_equal(config.seed, 5);
    assert_true(noted("--seed 5 overrides seed 3"));
    const dsc_config_override stage[] = { { "zero_optimization.stage", "3", "--strategy" } };
    assert_int_equal(parse_with("{\"train_batch_size\":1,\"zero_optimization\":true}", stage, 1, false, 1), DSC_OK);
    assert_int_equal(config.zero.stage, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_as_deepspeed),
        cmocka_unit_test(batch_error_says_what_works),
        cmocka_unit_test(zeros_of_older_releases),
        cmocka_unit_test(resolve_starts_over),
        cmocka_unit_test(warnings),
        cmocka_unit_test(schedules_that_are_longer_than_the_run),
        cmocka_unit_test(silent),
        cmocka_unit_test(values_of_a_config),
        cmocka_unit_test(defaults),
        cmocka_unit_test(automatic),
        cmocka_unit_test(precision),
        cmocka_unit_test(leaf_factors),
        cmocka_unit_test(offload_to_files),
        cmocka_unit_test(offload_on_devices),
        cmocka_unit_test(how_many_run_together),
        cmocka_unit_test(names_of_8_bit_moments),
        cmocka_unit_test(overrides),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

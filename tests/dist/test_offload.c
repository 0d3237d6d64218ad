/* test_offload.c - equal bits for every placement of states, at every stage, precision, accumulation and world size,
 * with every file engine. Checkpoints move across placements, and no file is left in the folders.
 *
 * The toy model's groups are some tiles long, with a tail that is half a block in bf16.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

#define STEPS 3

static char folder[512], second[520];

typedef struct placement {
    const char *name;
    int32_t least_stage;
    const char *zero; /* members of zero_optimization, each preceded by a comma; %s is a folder */
} placement;

#define OPTIMIZER_NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
static const placement placements[] = {
    { "optimizer cpu", 1, ", \"offload_optimizer\": {\"device\": \"cpu\"}" },
    { "optimizer nvme", 1, OPTIMIZER_NVME },
    { "params cpu", 3, ", \"offload_param\": {\"device\": \"cpu\"}" },
    { "params nvme", 3, PARAM_NVME },
    { "both nvme", 3, OPTIMIZER_NVME PARAM_NVME },
    { "ratio 0.5", 3,
      ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": 0.5}" PARAM_NVME },
    { "ratio 0.5, all params in files", 3,
      ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": 0.5},"
      " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}" },
    { "ratio 0.5, params in memory", 3,
      ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": 0.5}" },
    { "many buffers", 3,
      ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"buffer_count\": 48}" PARAM_NVME },
    { "one buffer, some params in memory", 3,
      ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"pipeline_read\": false,"
      " \"pipeline_write\": false}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
      " \"max_in_cpu\": 9000}" },
};

#define BF16_MOMENTS ", \"moments\": \"bf16\"" /* of "dsc" */
#define U8_MOMENTS ", \"moments\": \"8bit\""
#define BF16_SUMS ", \"gradients\": \"bf16\""

typedef struct variant {
    int32_t world, stage, accumulation;
    bool bf16, any_world;
    const char *zero; /* as in placement */
    const char *own;  /* members of "dsc", each preceded by a comma */
    const char *extra;
    int64_t tile; /* 0: small ones */
} variant;

static void run_variant(const variant *v, const dsc_model *model, run_result *out)
{
    char config[4096], zero[2048];
    snprintf(zero, sizeof zero, v->zero, folder, folder);
    snprintf(config, sizeof config,
             "{%s\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": %s},"
             " \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": %lld,"
             " \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1%s%s}}",
             v->extra != NULL ? v->extra : "", (int)v->accumulation, v->bf16 ? "true" : "false", (int)v->stage,
             v->tile > 0 ? (long long)v->tile : 2048, zero,
             v->any_world ? ", \"reproducible\": \"world_size\"" : "", v->own != NULL ? v->own : "");
    const run_options options = { .world = v->world, .steps = STEPS, .model = model, .config = config,
                                  .data = toy_data((dsc_model *)(uintptr_t)model, 1 << 20), .fault_rank = -1 };
    run_world(&options, out);
}

static void expect_same(const run_result *a, const run_result *b, const char *what, const variant *v)
{
    const bool same = b->status == DSC_OK && memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
                      memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
    if (!same)
        print_error("%s: stage %d, %d ranks, accumulation %d, %s: %s: %s\n", what, (int)v->stage, (int)v->world,
                    (int)v->accumulation, v->bf16 ? "bf16" : "fp32", b->error.where, b->error.message);
    assert_true(same);
}

static void expect_empty(const char *path)
{
    DIR *dir = opendir(path);
    int entries = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        entries++;
    closedir(dir);
    assert_int_equal(entries, 2); /* . and .. */
}

/* The variant again at every stage and in every place. */
static void expect_same_everywhere(const run_result *first, variant v, const dsc_model *model)
{
    run_result other;
    for (v.stage = 1; v.stage <= 3; v.stage++)
        for (size_t p = 0; p < DSC_COUNT(placements); p++) {
            v.zero = placements[p].zero;
            if (v.stage < placements[p].least_stage)
                continue;
            run_variant(&v, model, &other);
            expect_same(first, &other, placements[p].name, &v);
            run_expect_planned(&other);
        }
}

static void every_placement_gives_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 3; world++)
            for (int32_t accumulation = 1; accumulation <= 4; accumulation += 3) {
                run_result first;
                variant v = { world, 0, accumulation, bf16 != 0, false, "", NULL, NULL, 0 };
                run_variant(&v, model, &first);
                assert_int_equal(first.status, DSC_OK);
                assert_true(first.loss[STEPS - 1] != first.loss[0]);
                run_expect_planned(&first);
                expect_same_everywhere(&first, v, model);
            }
    expect_empty(folder);
    toy_model_close(model);
}

/* One group's parameters are in a file, in one piece: looked at before the first step and after the last one, they are
 * those that the steps have left. */
static void parameters_in_a_file_are_read_again_after_updates(void **state)
{
    dsc_model *model = toy_model_open(400, 61, 2, false);
    run_result first, other;
    variant v = { 1, 3, 1, false, false, "", NULL, NULL, 1 << 20 };
    run_variant(&v, model, &first);
    assert_int_equal(first.status, DSC_OK);
    v.zero = OPTIMIZER_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 20000}";
    run_variant(&v, model, &other);
    expect_same(&first, &other, "one piece", &v);
    toy_model_close(model);
}

/* stage3_ keys bound what is gathered ahead, kept and gathered in all: less memory or fewer bytes, the same bits. */
static void stage3_keys_have_their_effect(void **state)
{
    enum { PLAIN, REUSE, AHEAD, LIVE, LEAST, KEYS };
    static const char *const keys[KEYS] = { "", ", \"stage3_max_reuse_distance\": 0",
                                            ", \"stage3_prefetch_bucket_size\": 0",
                                            ", \"stage3_max_live_parameters\": 9000",
                                            ", \"stage3_max_live_parameters\": 1" };
    const int64_t block_bytes = 4096 * 2;
    dsc_model *model = toy_model_open(20, 61, 8, false); /* 8 groups of 4096, and 2048 at both ends */
    for (int32_t world = 1; world <= 2; world++) {
        run_result r[KEYS];
        for (int k = 0; k < KEYS; k++) {
            char zero[1024];
            snprintf(zero, sizeof zero, "%s, \"overlap_comm\": true%s", world == 1 ? PARAM_NVME : "", keys[k]);
            const variant v = { world, 3, 2, true, false, zero, NULL, NULL, 0 };
            run_variant(&v, model, &r[k]);
            expect_same(&r[0], &r[k], keys[k], &v);
            run_expect_planned(&r[k]);
        }
        assert_true(r[AHEAD].planned <= r[PLAIN].planned - block_bytes);
        assert_true(r[LIVE].planned <= r[PLAIN].planned - block_bytes / 2);
        assert_true(r[LEAST].planned <= r[LIVE].planned - block_bytes / 2);
        assert_true(world == 1 || r[REUSE].wire_planned > r[PLAIN].wire_planned);
        assert_true(world == 1 || r[LEAST].wire_planned > r[LIVE].wire_planned);
    }
    toy_model_close(model);
}

/* offload_param's buffers are what windows take: fewer of them are less memory, more are fewer bytes of files. */
static void windows_take_the_buffers_of_parameters(void **state)
{
    enum { PLAIN, LESS, MORE, ALL, KEYS };
    static const char *const keys[KEYS] = { "", ", \"buffer_count\": 1, \"buffer_size\": 4096",
                                            ", \"buffer_count\": 6, \"buffer_size\": 4096", ", \"buffer_count\": 5" };
    const int64_t block_bytes = 4096 * 2;
    dsc_model *model = toy_model_open(20, 61, 8, false); /* 8 groups of 4096, and 2048 at both ends */
    run_result r[KEYS];
    for (int k = 0; k < KEYS; k++) {
        char zero[1024];
        snprintf(zero, sizeof zero, ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%%s\"%s}", keys[k]);
        const variant v = { 1, 3, 2, true, false, zero, NULL, NULL, 0 };
        run_variant(&v, model, &r[k]);
        expect_same(&r[0], &r[k], keys[k], &v);
        run_expect_planned(&r[k]);
    }
    assert_true(r[LESS].planned <= r[PLAIN].planned - block_bytes);
    assert_true(r[MORE].planned > r[PLAIN].planned && r[MORE].planned <= r[PLAIN].planned + 6 * block_bytes);
    assert_true(r[LESS].pass_reads_planned >= r[PLAIN].pass_reads_planned);
    assert_true(r[PLAIN].pass_reads_planned > r[MORE].pass_reads_planned);
    assert_true(r[MORE].pass_reads_planned > r[ALL].pass_reads_planned);
    toy_model_close(model);
}

#define NVME_AND ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "

/* buffer_count counts an element's weight, gradient and moments: four are one tile of each. */
static void buffers_are_those_that_the_config_asks_for(void **state)
{
    static const struct { const char *zero; int64_t tile, tiles; } asked[] = {
        { NVME_AND "\"buffer_count\": 4}", 2048, 3 }, /* reading ahead and writing behind takes so many */
        { NVME_AND "\"buffer_count\": 20}", 2048, 5 },
        { NVME_AND "\"pipeline_read\": false}", 2048, 2 },
        { NVME_AND "\"pipeline_write\": false}", 2048, 2 },
        { NVME_AND "\"pipeline_read\": false, \"pipeline_write\": false}", 2048, 1 },
        { NVME_AND "\"buffer_count\": 4}", 4096, 3 },
    };
    dsc_model *model = toy_model_open(5, 61, 3, false);
    int64_t rest = 0;
    for (size_t i = 0; i < DSC_COUNT(asked); i++) {
        run_result r;
        const variant v = { 1, 1, 1, true, false, asked[i].zero, NULL, NULL, asked[i].tile };
        run_variant(&v, model, &r);
        assert_int_equal(r.status, DSC_OK);
        run_expect_planned(&r);
        const int64_t others = r.planned - asked[i].tiles * asked[i].tile * 16;
        if (i == 0)
            rest = others;
        if (llabs(others - rest) > 4096) /* the config's text is in it, and what operations take */
            print_error("%zu: %lld bytes beside the buffers, not %lld\n", i, (long long)others, (long long)rest);
        assert_true(llabs(others - rest) <= 4096);
    }
    toy_model_close(model);
}

/* Tensors larger than the caches are updated in parts, here two and a bit, with equal bits. */
static void large_tiles_are_made_in_parts(void **state)
{
    static const int64_t tiles[] = { 2048, 1 << 17, 1 << 18, 1 << 20 };
    static const struct {
        const char *zero, *own;
        bool bf16;
    } asked[] = {
        { OPTIMIZER_NVME PARAM_NVME, "", true },
        { OPTIMIZER_NVME PARAM_NVME, "", false },
        { OPTIMIZER_NVME, BF16_MOMENTS, true },
        { OPTIMIZER_NVME PARAM_NVME, BF16_SUMS, true },
        { OPTIMIZER_NVME PARAM_NVME, ", \"early_update\": true", true },
    };
    dsc_model *model = toy_model_open(5, 520, 1, false); /* a group of 270400 elements */
    for (size_t i = 0; i < DSC_COUNT(asked); i++)
        for (int32_t world = 1; world <= 2; world++) {
            run_result first, other;
            for (size_t t = 0; t < DSC_COUNT(tiles); t++) {
                const variant v = { world, 3, 1, asked[i].bf16, false, asked[i].zero, asked[i].own, NULL, tiles[t] };
                run_variant(&v, model, t == 0 ? &first : &other);
                expect_same(&first, t == 0 ? &first : &other, asked[i].own, &v);
                run_expect_planned(t == 0 ? &first : &other);
            }
        }
    toy_model_close(model);
}

/* With sums that do not depend on the world size, gradients stay in memory and the rest goes to files. */
static void any_world_size_agrees(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, false);
    for (int low = 0; low < 2; low++) {
        run_result first, other;
        variant v = { 1, 1, 6, true, true, "", low ? BF16_MOMENTS BF16_SUMS : NULL, NULL, 0 };
        run_variant(&v, model, &first);
        assert_int_equal(first.status, DSC_OK);
        for (v.world = 1; v.world <= 3; v.world++) {
            v.stage = 3;
            v.accumulation = 6 / v.world;
            v.zero = OPTIMIZER_NVME PARAM_NVME;
            run_variant(&v, model, &other);
            expect_same(&first, &other, "reproducible", &v);
        }
    }
    toy_model_close(model);
}

static void every_engine_gives_the_same_bits(void **state)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads", "io_uring" }; /* which then polls */
    dsc_model *model = toy_model_open(5, 61, 3, true);
    run_result first, other;
    variant v = { 2, 3, 2, true, false, "", NULL, NULL, 0 };
    run_variant(&v, model, &first);
    assert_int_equal(first.status, DSC_OK);
    v.zero = OPTIMIZER_NVME PARAM_NVME;
    for (size_t e = 0; e < DSC_COUNT(engines); e++) {
        char own[64];
        snprintf(own, sizeof own, ", \"aio\": \"%s\", \"aio_poll\": %s", engines[e], e < 3 ? "false" : "true");
        v.own = own;
        v.extra = "\"aio\": {\"block_size\": 4096, \"queue_depth\": 3, \"single_submit\": true,"
                  " \"overlap_events\": false, \"thread_count\": 2}, ";
        run_variant(&v, model, &other);
        if (other.status == DSC_ERR_UNSUPPORTED) {
            print_message("# %s is not here: %s\n", engines[e], other.error.message);
            continue;
        }
        expect_same(&first, &other, engines[e], &v);
    }
    toy_model_close(model);
}

/* Nanoseconds that a thread runs before another's turn: this one, and those of streams. 0: the system does not tell. */
typedef struct turns {
    uint64_t own, gather, reduce;
} turns;

static dsc_status see_turn(void *args, dsc_error *err)
{
    /* sched_setattr(2)'s struct sched_attr: its header does not go with pthread.h's. */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, times[2];
    } attr;
    **(uint64_t **)args = syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) == 0 ? attr.runtime : 0;
    return DSC_OK;
}

static dsc_status see_turns(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    turns *t = user;
    uint64_t *own = &t->own, *gather = &t->gather, *reduce = &t->reduce;
    dsc_stream *gather_stream = dsc_probe_gather_stream(dsc_probe_zero(engine));
    dsc_stream *reduce_stream = dsc_probe_reduce_stream(dsc_probe_zero(engine));
    DSC_TRY(see_turn(&own, err));
    DSC_TRY(dsc_host_call(gather_stream, see_turn, &gather, sizeof gather, err));
    DSC_TRY(dsc_host_call(reduce_stream, see_turn, &reduce, sizeof reduce, err));
    DSC_TRY(dsc_stream_sync(gather_stream, err));
    return dsc_stream_sync(reduce_stream, err);
}

/* A device rests until a thread that waited for it goes on; in memory nothing does. */
static void threads_that_wait_for_files_have_short_turns(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int files = 0; files < 2; files++) {
        char config[4096], zero[2048];
        turns t = { 0 };
        run_result r;
        snprintf(zero, sizeof zero, OPTIMIZER_NVME PARAM_NVME, folder, folder);
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"},"
                 " \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true%s}}",
                 files ? zero : "");
        const run_options options = { .world = 1,
                                      .steps = 1,
                                      .model = model,
                                      .config = config,
                                      .data = toy_data(model, 1 << 20),
                                      .before = see_turns,
                                      .user = &t,
                                      .fault_rank = -1 };
        run_well(&options, &r);
        if (t.own == 0) {
            print_message("before Linux 6.12 a thread has no turns of its own\n");
            toy_model_close(model);
            skip();
        }
        assert_true(t.gather == (files && t.own > 500000 ? 500000 : t.own) && t.reduce == t.gather);
    }
    toy_model_close(model);
}

static void several_folders(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    run_result first, other;
    char zero[1400];
    variant v = { 2, 3, 1, true, false, "", NULL, NULL, 0 };
    run_variant(&v, model, &first);
    assert_int_equal(first.status, DSC_OK);
    snprintf(zero, sizeof zero, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": [\"%s\", \"%s\"]}",
             folder, second);
    v.zero = zero;
    run_variant(&v, model, &other);
    expect_same(&first, &other, "two folders", &v);
    expect_empty(folder);
    expect_empty(second);
    toy_model_close(model);
}

/* ---- moments in bf16 ---- */

static void moments_in_bf16_give_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int32_t world = 1; world <= 3; world++) {
        run_result full, first;
        variant v = { world, 0, 1 + world % 2, world != 2, false, "", NULL, NULL, 0 };
        run_variant(&v, model, &full);
        v.own = BF16_MOMENTS;
        run_variant(&v, model, &first);
        assert_int_equal(first.status, DSC_OK);
        assert_string_not_equal(full.hash, first.hash);
        assert_int_equal(first.state_bytes[3] * 2, full.state_bytes[3]);
        run_expect_planned(&first);
        expect_same_everywhere(&first, v, model);
    }
    toy_model_close(model);
}

/* ---- moments in 8 bits ---- */

/* A quarter of the bytes, and an absmax of 4 bytes for 256 elements; tensors begin at multiples of 256 elements. */
static void moments_in_8_bits_give_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int32_t world = 1; world <= 3; world++) {
        run_result full, first;
        variant v = { world, 0, 1 + world % 2, world != 2, false, "", NULL, NULL, 0 };
        run_variant(&v, model, &full);
        v.own = U8_MOMENTS;
        run_variant(&v, model, &first);
        assert_int_equal(first.status, DSC_OK);
        assert_string_not_equal(full.hash, first.hash);
        assert_true(fabs(first.loss[STEPS - 1] - full.loss[STEPS - 1]) < 0.02 * fabs(full.loss[STEPS - 1]));
        if (v.bf16)
            assert_int_equal(first.state_bytes[3], 2 * (first.state_bytes[2] / 4 + first.state_bytes[2] / 256));
        assert_true(first.state_bytes[3] < full.state_bytes[3] * 2 / 7);
        run_expect_planned(&first);
        expect_same_everywhere(&first, v, model);
    }
    toy_model_close(model);
}

/* ---- sums in bf16 ---- */

static void sums_in_bf16_give_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int32_t world = 1; world <= 3; world++) {
        run_result full, first;
        variant v = { world, 0, 4 - world, world != 2, false, "", NULL, NULL, 0 };
        run_variant(&v, model, &full);
        v.own = BF16_SUMS;
        run_variant(&v, model, &first);
        assert_int_equal(first.status, DSC_OK);
        assert_string_not_equal(full.hash, first.hash);
        assert_true(fabs(first.loss[STEPS - 1] - full.loss[STEPS - 1]) < 0.02 * fabs(full.loss[STEPS - 1]));
        expect_same_everywhere(&first, v, model);
    }
    toy_model_close(model);
}

#define UPDATES_BEFORE 6
static int64_t tensor_position[16]; /* a tensor's first element among all, with the layout's padding */
static int64_t tensor_count[16];

static dsc_status go_on(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    int64_t position = 0;
    dsc_probe_set_update_count(engine, UPDATES_BEFORE);
    if (rank != 0)
        return DSC_OK;
    const dsc_layout *layout = dsc_probe_layout(engine);
    for (int32_t g = 0, t = 0; g < layout->group_count; g++) {
        int64_t end = 0;
        for (; t < layout->tensor_count && layout->tensor[t].group == g; t++) {
            const dsc_layout_tensor *tensor = &layout->tensor[t];
            tensor_position[t] = position + tensor->offset;
            tensor_count[t] = layout->group[g].trainable ? tensor->count : 0;
            end = dsc_align_up(tensor->offset + tensor->count, DSC_LAYOUT_TENSOR_ALIGN);
        }
        position += end;
    }
    return DSC_OK;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* The random bits come from the seed, the number of the update and the element's position among all elements. The
 * expected values are a first update with fp32 moments, rounded by hand. */
static void moments_are_rounded_as_said(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    run_result full, low;
    char config[1024];
    run_options options = { .world = 3, .steps = 1, .model = model, .config = config, .data = toy_data(model, 1 << 20),
                            .take_states = true, .before = go_on, .fault_rank = -1 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 2},"
                 " \"dsc\": {\"threads\": 1, \"seed\": 77%s}}", bf16 ? BF16_MOMENTS : "");
        run_world(&options, bf16 ? &low : &full);
        assert_int_equal((bf16 ? &low : &full)->status, DSC_OK);
    }
    int64_t at = 0, ups = 0;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_MOMENT, UPDATES_BEFORE + 1);
    for (size_t t = 0; t < DSC_COUNT(tensor_count); at += 3 * tensor_count[t], t++)
        for (int64_t i = 0; i < tensor_count[t]; i++) {
            const uint32_t word = dsc_rng_u32(77, stream, (uint64_t)(tensor_position[t] + i));
            const float *before = &full.state[at + i], *after = &low.state[at + i];
            const uint32_t m = bits_of(before[tensor_count[t]]), v = bits_of(before[2 * tensor_count[t]]);
            assert_int_equal(bits_of(after[0]), bits_of(before[0])); /* the weights of this step do not change */
            assert_int_equal(bits_of(after[tensor_count[t]]), (m + (word & 0xffff)) & 0xffff0000u);
            assert_int_equal(bits_of(after[2 * tensor_count[t]]), (v + (word >> 16)) & 0xffff0000u);
            ups += ((m + (word & 0xffff)) >> 16) - (m >> 16);
        }
    assert_int_equal(at, full.state_count);
    assert_true(ups > at / 12 && ups < at / 4); /* about half of the first moments */
    free(full.state);
    free(low.state);
    toy_model_close(model);
}

/* With beta1 = 0, one part and no clipping, the first moment is the sum, rounded to nearest. The two parts of the tied
 * tensor 0 are rounded one after the other. */
static void sums_are_rounded_as_said(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    run_result full, low;
    char config[1024];
    run_options options = { .world = 1, .steps = 1, .model = model, .config = config, .data = toy_data(model, 1 << 20),
                            .take_states = true, .before = go_on, .fault_rank = -1 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 2},"
                 " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0, 0.999]}},"
                 " \"dsc\": {\"threads\": 1%s}}", bf16 ? BF16_SUMS : "");
        run_world(&options, bf16 ? &low : &full);
        assert_int_equal((bf16 ? &low : &full)->status, DSC_OK);
    }
    int64_t at = 0, changed = 0;
    for (size_t t = 0; t < DSC_COUNT(tensor_count); at += 3 * tensor_count[t], t++)
        for (int64_t i = tensor_count[t]; t > 0 && i < 2 * tensor_count[t]; i++) {
            const float nearest = dsc_f32_from_bf16(dsc_bf16_from_f32(full.state[at + i]));
            assert_int_equal(bits_of(low.state[at + i]), bits_of(nearest));
            changed += low.state[at + i] != full.state[at + i];
        }
    assert_int_equal(at, full.state_count);
    assert_true(changed > at / 12);
    free(full.state);
    free(low.state);
    toy_model_close(model);
}

/* Told in one line that names the folder, before anything is trained. */
static void a_folder_that_is_none(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 1, false);
    run_result r;
    const variant v = { 2, 1, 1, true, false,
                        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/none\"}", NULL, NULL, 0 };
    run_variant(&v, model, &r);
    assert_int_equal(r.status, DSC_ERR_INPUT);
    assert_non_null(strstr(r.error.where, "/none"));
    toy_model_close(model);
}

static int make_folders(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/dsc-offload-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(second, sizeof second, "%.500s-XXXXXX", folder);
    return mkdtemp(second) != NULL ? 0 : -1;
}

static int remove_folders(void **state) { return rmdir(folder) + rmdir(second); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_placement_gives_the_same_bits),
        cmocka_unit_test(parameters_in_a_file_are_read_again_after_updates),
        cmocka_unit_test(stage3_keys_have_their_effect),
        cmocka_unit_test(windows_take_the_buffers_of_parameters),
        cmocka_unit_test(large_tiles_are_made_in_parts),
        cmocka_unit_test(buffers_are_those_that_the_config_asks_for),
        cmocka_unit_test(any_world_size_agrees),
        cmocka_unit_test(every_engine_gives_the_same_bits),
        cmocka_unit_test(threads_that_wait_for_files_have_short_turns),
        cmocka_unit_test(several_folders),
        cmocka_unit_test(moments_in_bf16_give_the_same_bits),
        cmocka_unit_test(moments_in_8_bits_give_the_same_bits),
        cmocka_unit_test(moments_are_rounded_as_said),
        cmocka_unit_test(sums_in_bf16_give_the_same_bits),
        cmocka_unit_test(sums_are_rounded_as_said),
        cmocka_unit_test(a_folder_that_is_none),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}

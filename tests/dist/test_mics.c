/* test_mics.c - MiCS: stage 3 within groups of ranks, each with a copy of the states, whose sums are added up once a
 * step. Held against stage 3 over all ranks, against the tree of sums that depends on no number of ranks, and against
 * what the paper (arXiv:2205.00119) says stays within a group. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/toy_model.h"

#define STEPS 3
#define BF16 "\"bf16\": {\"enabled\": true}, "

static char folder[512];

typedef struct variant {
    int32_t world, shard, accumulation;
    const char *precision;  /* a member, followed by a comma, or nothing: fp32 */
    const char *zero, *own; /* members, each preceded by a comma; %s is a folder */
    const char *optimizer;  /* NULL: AdamW */
} variant;

/* States of ranks, and bytes they have received. */
typedef struct sights {
    char hash[RUN_RANKS_MAX][65]; /* over master weights, moments and parameters of the slices */
    int64_t gathered, reduced;    /* by rank 0, within its copy of the states */
    int64_t added, added_planned; /* by rank 0, from other copies, in all steps */
    int64_t from_all;             /* by rank 0, over all ranks: control words */
} sights;

static void add_plane(dsc_engine *engine, int32_t group, dsc_plane plane, int64_t count, dsc_sha256 *sha)
{
    dsc_error err = DSC_ERROR_INIT;
    for (int64_t first = 0, now; first < count; first += now) {
        void *ptr;
        now = count - first;
        CW_OK(dsc_zero_view(dsc_probe_zero(engine), group, plane, first, &now, false, &ptr, &err), &err);
        dsc_sha256_update(sha, ptr, (size_t)now * dsc_dtype_bytes(dsc_zero_dtype(dsc_probe_zero(engine), plane)));
    }
}

static void hash_slices(dsc_engine *engine, char hex[65])
{
    dsc_sha256 sha;
    uint8_t digest[32];
    dsc_sha256_init(&sha);
    const dsc_layout *layout = dsc_probe_layout(engine);
    for (int32_t g = 0; g < layout->group_count; g++) {
        dsc_zero_slice slice;
        dsc_zero_slice_get(dsc_probe_zero(engine), g, &slice);
        const dsc_recipe recipe = dsc_layout_recipe(layout, g, dsc_probe_config(engine)->optimizer.recipe);
        const int states = dsc_recipes[recipe].state_count;
        const int end = slice.trainable ? DSC_PLANE_MOMENT1 + states : DSC_PLANE_PARAM + 1;
        for (int plane = DSC_PLANE_PARAM; plane < end; plane++)
            add_plane(engine, g, (dsc_plane)plane, slice.count, &sha);
    }
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
}

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    sights *out = user;
    dsc_comm_stats stats;
    DSC_TRY(dsc_probe_settle(engine, err));
    hash_slices(engine, out->hash[rank]);
    if (rank != 0 || dsc_probe_host_comm(engine, DSC_PROBE_COMM_SHARDS) == NULL)
        return DSC_OK;
    dsc_comm_stats_get(dsc_probe_host_comm(engine, DSC_PROBE_COMM_SHARDS), &stats);
    out->gathered = stats.bytes[DSC_COMM_ALL_GATHER];
    out->reduced = stats.bytes[DSC_COMM_REDUCE_SCATTER];
    dsc_comm_stats_get(dsc_probe_host_comm(engine, DSC_PROBE_COMM_REPLICAS), &stats);
    out->added = stats.bytes[DSC_COMM_ALL_REDUCE];
    out->added_planned = STEPS * dsc_probe_plan(engine)->traffic.replica_bytes;
    dsc_comm_stats_get(dsc_probe_host_comm(engine, DSC_PROBE_COMM_ALL), &stats);
    for (int op = 0; op < DSC_COMM_OP_COUNT; op++)
        out->from_all += stats.bytes[op];
    return DSC_OK;
}

static void run_variant(const variant *v, const dsc_model *model, dsc_data_source data, sights *seen, run_result *out)
{
    char config[4096], zero[2048], mics[64] = "";
    snprintf(zero, sizeof zero, v->zero, folder, folder);
    if (v->shard > 0)
        snprintf(mics, sizeof mics, ", \"mics_shard_size\": %d", (int)v->shard);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": 0.5, %s\"zero_optimization\": {\"stage\": 3,"
             " \"sub_group_size\": 2048, \"stage3_param_persistence_threshold\": 0%s%s},"
             " \"dsc\": {\"threads\": 1%s}}",
             (int)v->accumulation, v->optimizer != NULL ? v->optimizer : "AdamW", v->precision, mics, zero, v->own);
    memset(seen, 0, sizeof *seen);
    const run_options options = { .world = v->world, .steps = STEPS, .model = model, .config = config, .data = data,
                                  .fault_rank = -1, .after = look, .user = seen };
    run_well(&options, out);
    assert_true(out->tracked_peak <= out->planned + out->planned / 100);
    if (v->optimizer == NULL) /* others' norms pass beside what is planned */
        assert_true(out->wire_bytes >= out->wire_planned && out->wire_bytes <= out->wire_planned + 4096);
    for (int32_t r = 0; v->shard > 0 && r < v->world; r++) /* every copy is the same */
        assert_string_equal(seen->hash[r], seen->hash[r % v->shard]);
}

static void run_toy(const variant *v, const dsc_model *model, sights *seen, run_result *out)
{
    run_variant(v, model, toy_data((dsc_model *)(uintptr_t)model, 1 << 20), seen, out);
}

static void run_llama(const variant *v, const dsc_model *model, run_result *out)
{
    sights had;
    run_variant(v, model, tiny_gpt_data(model, 1 << 20), &had, out);
}

/* A sum of n numbers in another order: each order's error is at most n roundings of a partial sum. */
static void expect_near(const run_result *a, const run_result *b)
{
    assert_memory_equal(&a->loss[0], &b->loss[0], sizeof(double)); /* before any sum */
    assert_true(fabs(a->norm[0] / b->norm[0] - 1) < 16 * 6e-8);
    for (int s = 1; s < STEPS; s++) /* Adam's first steps are of the rate's size whatever the gradient's */
        assert_true(fabs(a->loss[s] / b->loss[s] - 1) < 2e-3);
}

static void trains_as_stage_3_does(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    static const struct { int32_t world, shard; } shapes[] = { { 4, 2 }, { 6, 3 }, { 6, 2 }, { 3, 1 } };
    for (size_t i = 0; i < DSC_COUNT(shapes); i++)
        for (int32_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            variant v = { shapes[i].world, 0, accumulation, i % 2 == 0 ? "" : BF16, "", "", NULL };
            run_result all, mics;
            sights had;
            run_toy(&v, model, &had, &all);
            v.shard = shapes[i].shard;
            run_toy(&v, model, &had, &mics);
            expect_near(&all, &mics);
        }
    toy_model_close(model);
}

/* Recipes that look at whole tensors find them in a group. */
static void other_optimizers_do_too(void **state)
{
    static const char *const types[] = { "Lamb", "Muon", "Lion" };
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (size_t i = 0; i < DSC_COUNT(types); i++) {
        variant v = { 4, 0, 2, BF16, "", "", types[i] };
        run_result all, mics;
        sights had;
        run_toy(&v, model, &had, &all);
        v.shard = 2;
        run_toy(&v, model, &had, &mics);
        expect_near(&all, &mics);
    }
    toy_model_close(model);
}

/* One part of each rank: (l0 + l1) + (l2 + l3) is the sum over two copies of two ranks. It is also the tree that does
 * not depend on the number of ranks. */
static void four_leaves_are_summed_in_pairs(void **state)
{
    dsc_model *model = tiny_model_open(tiny_models[1].config, NULL); /* untied: a parameter has one use */
    run_result tree, mics, pairs;
    run_llama(&(variant){ 4, 0, 1, "", "", ", \"reproducible\": \"world_size\"", NULL }, model, &tree);
    run_llama(&(variant){ 4, 2, 1, "", "", "", NULL }, model, &mics);
    run_expect_same(&tree, &mics);
    /* And ranks that each have all states add up as two do who share them. */
    run_llama(&(variant){ 2, 0, 1, BF16, "", "", NULL }, model, &tree);
    run_llama(&(variant){ 2, 1, 1, BF16, "", "", NULL }, model, &pairs);
    run_expect_same(&tree, &pairs);
    dsc_model_close(&model);
}

static void the_bits_do_not_depend_on_places(void **state)
{
    static const struct { const char *zero, *own; } ways[] = {
        { "", "" },
        { ", \"overlap_comm\": true", ", \"recompute\": \"selective\"" },
        { ", \"stage3_max_reuse_distance\": 0, \"overlap_comm\": true", ", \"recompute\": \"full\"" },
        { ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
          " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", "" },
        { ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": 0.5},"
          " \"overlap_comm\": true", "" },
    };
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (int halves = 0; halves < 2; halves++) {
        run_result first, other;
        sights had;
        for (size_t i = 0; i < DSC_COUNT(ways); i++) {
            char own[128];
            snprintf(own, sizeof own, "%s%s", ways[i].own, halves != 0 ? ", \"gradients\": \"bf16\"" : "");
            const variant v = { 6, 3, 2, BF16, ways[i].zero, own, NULL };
            run_toy(&v, model, &had, i == 0 ? &first : &other);
            if (i > 0)
                run_expect_same(&first, &other);
        }
    }
    toy_model_close(model);
}

/* The paper's claim: gathers and each micro-step's reductions are a group's own; one sum a step crosses groups. */
static void only_one_sum_a_step_leaves_a_group(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, false);
    run_result out;
    sights few, more, alone;
    variant v = { 4, 2, 2, BF16, "", "", NULL };
    run_toy(&v, model, &few, &out);
    assert_int_equal(few.added, few.added_planned);
    assert_true(few.added > 0);
    v.accumulation = 6;
    run_toy(&v, model, &more, &out);
    assert_int_equal(more.added, few.added);
    assert_true(more.gathered > 2 * few.gathered);
    assert_int_equal(more.reduced, 3 * few.reduced);
    assert_true(more.from_all < 64 * 1024); /* losses, norms, verdicts */
    v = (variant){ 2, 0, 6, BF16, "", "", NULL };
    run_toy(&v, model, &alone, &out); /* a group's ranks alone move the same, but for the other's words */
    const int64_t planned = out.wire_planned;
    v = (variant){ 4, 2, 6, BF16, "", "", NULL };
    run_toy(&v, model, &more, &out);
    assert_int_equal(out.wire_planned, planned + more.added_planned / STEPS);
    toy_model_close(model);
}

static atomic_int told;
static void keep_words(void *user, dsc_log_level level, const char *text)
{
    told += strstr(text, "zero_optimization.mics_shard_size was 2 in the saved run and is 4") != NULL;
}

static void checkpoints_are_one_copy(void **state)
{
    static const char mics[] = ", \"mics_shard_size\": 2";
    dsc_model *model = toy_model_open(5, 61, 2, true);
    char *dir = cw_tmp_open();
    for (int async = 0; async < 2; async++) {
        char name[32];
        snprintf(name, sizeof name, "saved-%d", async);
        cw_trip whole = { .save = cw_path(dir, name), .save_step = 2, .end_step = 4 }, again = whole, other = whole;
        cw_options options = { .world = 4, .stage = 3, .bf16 = true, .model = model, .own_samples = true, .zero = mics,
                               .async = async != 0 };
        cw_run_well(&options, cw_make_trip, &whole);
        cw_expect_checkpoint(cw_path(whole.save, "step-2"), whole.saved_hash);
        again.load = cw_path(whole.save, "step-2");
        again.save = NULL;
        cw_run_well(&options, cw_make_trip, &again);
        assert_string_equal(again.saved_hash, whole.saved_hash);
        assert_string_equal(again.end_hash, whole.end_hash);
        /* Among as many ranks, but not in groups: other bits follow, and the run says so. */
        told = 0;
        options.zero = NULL;
        options.log = (dsc_log){ keep_words, NULL };
        cw_run_well(&options, cw_make_trip, &again);
        assert_string_equal(again.saved_hash, whole.saved_hash);
        assert_int_equal(told, 1);
        /* Elsewhere, and from there. */
        other.load = again.load;
        other.save = cw_path(dir, async != 0 ? "plain-1" : "plain-0");
        options = (cw_options){ .world = 3, .stage = 1, .bf16 = true, .model = model, .own_samples = true };
        cw_run_well(&options, cw_make_trip, &other);
        assert_string_equal(other.saved_hash, whole.saved_hash);
        again.load = cw_path(other.save, "step-2");
        options = (cw_options){ .world = 6, .stage = 3, .bf16 = true, .model = model, .own_samples = true,
                                .zero = mics };
        cw_run_well(&options, cw_make_trip, &again);
        assert_string_equal(again.saved_hash, whole.saved_hash);
    }
    cw_tmp_close(dir);
    toy_model_close(model);
}

static dsc_status save_where_nothing_can_be(cw_rank *rank, dsc_error *err)
{
    dsc_error refusal = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 1, err));
    CW_CHECK(cw_save(rank, "/proc/none", &refusal) != DSC_OK);
    CW_CHECK(refusal.message[0] != 0);
    CW_CHECK(dsc_engine_load(rank->engine, "/proc/none", &refusal) != DSC_OK);
    return cw_train(rank, 2, err); /* nothing was lost */
}

static void all_ranks_hear_of_a_failed_save(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, true);
    for (int async = 0; async < 2; async++) {
        const cw_options options = { .world = 4, .stage = 3, .model = model, .own_samples = true,
                                     .zero = ", \"mics_shard_size\": 2", .async = async != 0 };
        cw_run_well(&options, save_where_nothing_can_be, NULL);
    }
    toy_model_close(model);
}

static void groups_are_whole(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, false);
    run_result out;
    const run_options options = { .world = 4, .steps = 1, .model = model, .data = toy_data(model, 1 << 20),
                                  .config = "{\"train_micro_batch_size_per_gpu\": 2,"
                                            " \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 3}}",
                                  .fault_rank = -1 };
    run_world(&options, &out);
    assert_int_equal(out.status, DSC_ERR_CONFIG);
    assert_string_equal(out.error.where, "zero_optimization.mics_shard_size");
    assert_non_null(strstr(out.error.message, "3 does not divide 4 ranks"));
    toy_model_close(model);
}

static void a_rank_that_fails_ends_all_groups(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, true);
    static const char config[] = "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 3,"
                                 " \"mics_shard_size\": 2}, \"dsc\": {\"threads\": 1, \"comm_timeout_s\": 60}}";
    for (int64_t n = 8; n <= 11; n++) { /* the ranks' own groups are there */
        run_result out;
        const run_options options = { .world = 4, .steps = 3, .model = model, .config = config,
                                      .data = toy_data(model, 1 << 20), .fault_rank = 3, .fail_comm_at = n };
        run_world(&options, &out);
        assert_int_not_equal(out.status, DSC_OK);
        for (int32_t r = 0; r < 4; r++)
            assert_int_not_equal(out.ranks[r].status, DSC_OK);
    }
    toy_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_as_stage_3_does),
        cmocka_unit_test(other_optimizers_do_too),
        cmocka_unit_test(four_leaves_are_summed_in_pairs),
        cmocka_unit_test(the_bits_do_not_depend_on_places),
        cmocka_unit_test(only_one_sum_a_step_leaves_a_group),
        cmocka_unit_test(checkpoints_are_one_copy),
        cmocka_unit_test(all_ranks_hear_of_a_failed_save),
        cmocka_unit_test(groups_are_whole),
        cmocka_unit_test(a_rank_that_fails_ends_all_groups),
    };
    char *dir = cw_tmp_open();
    snprintf(folder, sizeof folder, "%s", dir);
    const int failed = cmocka_run_group_tests_name("MiCS", tests, NULL, NULL);
    cw_tmp_close(dir);
    return failed;
}

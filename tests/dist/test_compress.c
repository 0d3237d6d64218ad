/* test_compress.c - ZeRO++: what packed weights and packed gradients may change, and what not. The bits are the same
 * wherever states live, with and without overlap, and with "world_size" for any number of ranks; packed gradients give
 * them at every stage. Bytes counted on the wire are those of the paper's formats.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/probe.h"
#include "tests/support/run_world.h"
#include "tests/support/toy_model.h"

#define STEPS 3
#define WEIGHTS ", \"zero_quantized_weights\": true"
#define FROZEN ", \"zero_quantized_nontrainable_weights\": true"
#define GRADIENTS ", \"zero_quantized_gradients\": true"
#define NEIGHBOURS ", \"zero_hpz_partition_size\": 2"
#define PIECES ", \"allgather_bucket_size\": 8192, \"reduce_bucket_size\": 4096" /* of 2 ranks; slices are 9216 */
#define ANY_WORLD ", \"reproducible\": \"world_size\""

static char folder[512];

typedef struct variant {
    int32_t world, stage, accumulation;
    const char *precision;   /* a member, followed by a comma, or nothing: fp32 */
    const char *zero, *own;  /* members, each preceded by a comma; %s is a folder */
} variant;

/* Expected bytes of a rank's calls with the paper's packing: a byte and half a byte an element, and two bytes for each
 * 128 elements. */
typedef struct wire {
    int64_t gathered, plain_gathered, reduced, plain_reduced;
    int64_t once;                           /* parameters that others own, gathered once */
    int64_t from_all, among; /* gathers that they did count, of all steps and the first one */
    int64_t among_planned;   /* a step's among neighbours */
} wire;

static dsc_status add_up(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const dsc_layout *layout = dsc_probe_layout(engine);
    const dsc_layout_group *group = layout->group;
    const int64_t others = layout->world_size - 1;
    const int64_t micro_steps = dsc_probe_config(engine)->gradient_accumulation_steps;
    wire *out = user;
    dsc_comm_stats stats = { 0 };
    DSC_TRY(dsc_probe_settle(engine, err));
    if (rank != 0)
        return DSC_OK;
    *out = (wire){ .among_planned = dsc_probe_plan(engine)->traffic.neighbour_bytes };
    dsc_comm *neighbours = dsc_probe_host_comm(engine, DSC_PROBE_COMM_NEIGHBOURS);
    if (neighbours != NULL)
        dsc_comm_stats_get(neighbours, &stats);
    out->among = stats.bytes[DSC_COMM_ALL_GATHER];
    dsc_comm_stats_get(dsc_probe_host_comm(engine, DSC_PROBE_COMM_ALL), &stats);
    out->from_all = stats.bytes[DSC_COMM_ALL_GATHER];
    for (int32_t g = 0; g < layout->group_count; g++)
        out->once += others * group[g].slice * 2;
    for (int32_t i = 0; i < dsc_probe_gather_count(zero); i++) {
        const int64_t elements = others * micro_steps * group[dsc_probe_gather_group(zero, i)].slice;
        out->gathered += elements + elements / 128 * 2;
        out->plain_gathered += 2 * elements;
    }
    for (int32_t i = 0; i < dsc_probe_grad_part_count(zero); i++) {
        const int64_t elements = others * micro_steps * group[dsc_probe_grad_part_get(zero, i).group].slice;
        out->reduced += elements / 2 + elements / 128 * 2;
        out->plain_reduced += 2 * elements;
    }
    return DSC_OK;
}

/* Bytes are counted of the steps that follow: frozen parameters come from all ranks only in a run's first one. */
static dsc_status take_first_step(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_train_batch(engine, NULL, err);
}

static void run_variant(const variant *v, const dsc_model *model, wire *counted, run_result *out)
{
    char config[4096], zero[2048];
    snprintf(zero, sizeof zero, v->zero, folder, folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": 0.5, %s\"zero_optimization\": {\"stage\": %d,"
             " \"sub_group_size\": 2048, \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1%s}}",
             (int)v->accumulation, v->precision, (int)v->stage, zero, v->own);
    const run_options options = { .world = v->world, .steps = STEPS, .model = model, .config = config,
                                  .data = toy_data((dsc_model *)(uintptr_t)model, 1 << 20), .fault_rank = -1,
                                  .before = take_first_step, .after = counted != NULL ? add_up : NULL,
                                  .user = counted };
    run_world(&options, out);
    if (out->status != DSC_OK)
        print_error("%s: %s\n", out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
    if (out->wire_bytes < out->wire_planned || out->wire_bytes > out->wire_planned + 4096)
        print_error("stage %d, %d ranks, %s: %lld bytes on the wire, %lld planned\n", (int)v->stage, (int)v->world,
                    v->precision, (long long)out->wire_bytes, (long long)out->wire_planned);
    assert_true(out->tracked_peak <= out->planned + out->planned / 100);
    assert_true(out->wire_bytes >= out->wire_planned && out->wire_bytes <= out->wire_planned + 4096);
}

static bool same(const run_result *a, const run_result *b)
{
    return memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
           memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
}

static void expect_same(const run_result *first, const variant *v, const dsc_model *model, const char *what)
{
    run_result other;
    run_variant(v, model, NULL, &other);
    if (!same(first, &other))
        print_error("%s: stage %d, %d ranks, %s\n", what, (int)v->stage, (int)v->world, v->precision);
    assert_true(same(first, &other));
}

#define OPTIMIZER_NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
#define BF16 "\"bf16\": {\"enabled\": true}, "
static const char *const precisions[] = { BF16, "", "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}, " };

static void packed_weights_have_the_same_bits_everywhere(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first, plain;
        variant v = { 2, 3, 2, precisions[p], WEIGHTS, "" };
        run_variant(&v, model, NULL, &first);
        v.zero = "";
        run_variant(&v, model, NULL, &plain);
        assert_false(same(&first, &plain));
        assert_true(fabs(first.loss[STEPS - 1] - plain.loss[STEPS - 1]) < 0.02 * plain.loss[STEPS - 1]);
        v.zero = WEIGHTS ", \"overlap_comm\": true";
        expect_same(&first, &v, model, "overlap");
        v.zero = WEIGHTS ", \"overlap_comm\": true, \"stage3_prefetch_bucket_size\": 0,"
                         " \"stage3_max_reuse_distance\": 0";
        expect_same(&first, &v, model, "no prefetch, no reuse");
        v.zero = WEIGHTS OPTIMIZER_NVME PARAM_NVME;
        expect_same(&first, &v, model, "both nvme");
    }
    toy_model_close(model);
}

/* Neighbours keep the gathered values, for any packing on the wire. */
static void neighbours_change_no_bits(void **state)
{
    static const char *const more[] = { "", ", \"overlap_comm\": true", ", \"stage3_max_reuse_distance\": 0", WEIGHTS,
                                        WEIGHTS ", \"overlap_comm\": true" PARAM_NVME };
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first;
        variant v = { 4, 3, 2, precisions[p], "", "" };
        for (size_t m = 0; m < DSC_COUNT(more); m++) {
            char zero[512];
            snprintf(zero, sizeof zero, "%s" NEIGHBOURS, more[m]);
            if (m == 0 || strcmp(more[m], WEIGHTS) == 0) {
                v.zero = more[m];
                run_variant(&v, model, NULL, &first);
            }
            v.zero = zero;
            expect_same(&first, &v, model, zero);
        }
    }
    toy_model_close(model);
}

static void packed_gradients_have_the_same_bits_at_every_stage(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first;
        variant v = { 3, 0, 2, precisions[p], GRADIENTS, "" };
        run_variant(&v, model, NULL, &first);
        assert_true(isfinite(first.loss[STEPS - 1]) && first.loss[STEPS - 1] != first.loss[0]);
        for (v.stage = 1; v.stage <= 3; v.stage++)
            expect_same(&first, &v, model, "stage");
        v.stage = 3;
        v.zero = GRADIENTS ", \"overlap_comm\": true" OPTIMIZER_NVME PARAM_NVME;
        expect_same(&first, &v, model, "both nvme, overlap");
    }
    toy_model_close(model);
}

/* One rank packs as well, so "world_size" is about it too. */
static void any_number_of_ranks_gives_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, true);
    run_result first;
    variant v = { 1, 3, 6, BF16, WEIGHTS GRADIENTS, ANY_WORLD };
    run_variant(&v, model, NULL, &first);
    for (v.world = 1; v.world <= 3; v.world++) {
        v.accumulation = 6 / v.world;
        v.zero = v.world == 2 ? WEIGHTS GRADIENTS : WEIGHTS GRADIENTS PARAM_NVME;
        expect_same(&first, &v, model, "world size");
    }
    toy_model_close(model);
}

static void bytes_on_the_wire_are_the_papers(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, false);
    run_result both, gradients;
    wire expected;
    variant v = { 3, 3, 2, BF16, WEIGHTS GRADIENTS, "" };
    run_variant(&v, model, &expected, &both);
    assert_int_equal(both.wire_planned, expected.gathered + expected.reduced);
    /* Half of bf16's bytes, and a quarter; the scales take 1.6 % of an int8. */
    assert_true(expected.gathered <= expected.plain_gathered * 0.51);
    assert_true(expected.reduced <= expected.plain_reduced * 0.26);
    v.zero = GRADIENTS;
    v.stage = 2; /* whole parameters, gathered as they are once a step */
    run_variant(&v, model, &expected, &gradients);
    assert_true(gradients.wire_planned > expected.reduced);
    toy_model_close(model);
}

/* The paper's second claim: what is gathered twice a micro-step comes from all ranks once a step. */
static void neighbours_gather_among_themselves(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, false);
    run_result near, plain;
    wire all, few;
    variant v = { 6, 3, 2, BF16, ", \"stage3_max_reuse_distance\": 0", "" };
    run_variant(&v, model, &all, &plain);
    v.zero = ", \"stage3_max_reuse_distance\": 0, \"zero_hpz_partition_size\": 3";
    run_variant(&v, model, &few, &near);
    assert_int_equal(all.among, 0);
    assert_true(all.from_all > 2 * (STEPS + 1) * all.once);
    assert_int_equal(few.among, (STEPS + 1) * few.among_planned);
    /* Besides, the parameters that are kept whole are gathered before the first step, and control words. */
    assert_true(few.from_all >= (STEPS + 1) * few.once && few.from_all <= (STEPS + 2) * few.once);
    assert_true(few.among < all.from_all - few.from_all);
    v.zero = ", \"zero_hpz_partition_size\": 6"; /* all ranks are neighbours: there is nothing to win */
    run_variant(&v, model, &few, &near);
    assert_int_equal(few.among, 0);
    toy_model_close(model);
}

static void neighbours_are_whole_groups(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, false);
    run_result out;
    const run_options options = { .world = 4, .steps = 1, .model = model, .data = toy_data(model, 1 << 20),
                                  .config = "{\"train_micro_batch_size_per_gpu\": 2,"
                                            " \"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 3}}",
                                  .fault_rank = -1 };
    run_world(&options, &out);
    assert_int_equal(out.status, DSC_ERR_CONFIG);
    assert_string_equal(out.error.where, "zero_optimization.zero_hpz_partition_size");
    assert_non_null(strstr(out.error.message, "3 does not divide 4 ranks"));
    toy_model_close(model);
}

static const char *const compressions[] = { "int8", "int4", "bf16", "fp16" };

static const char *compression_of(size_t c)
{
    static char text[64];
    snprintf(text, sizeof text, ", \"gradient_compression\": \"%s\"", compressions[c]);
    return text;
}

/* With error feedback: as packed gradients, but for the number of ranks. Nothing is lost for long: a sum of leaves over
 * many steps is what it would be. */
static void compressed_gradients_have_the_same_bits_at_every_stage(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    for (size_t c = 0; c < DSC_COUNT(compressions); c++) {
        run_result first, plain;
        variant v = { 3, 2, 2, c % 2 == 0 ? BF16 : "", "", compression_of(c) };
        run_variant(&v, model, NULL, &first);
        v.own = "";
        run_variant(&v, model, NULL, &plain);
        assert_false(same(&first, &plain));
        v.own = compression_of(c);
        v.stage = 3;
        v.zero = ", \"overlap_comm\": true" OPTIMIZER_NVME PARAM_NVME;
        expect_same(&first, &v, model, compressions[c]);
        v.stage = 0;
        v.zero = "";
        expect_same(&first, &v, model, compressions[c]);
    }
    toy_model_close(model);
}

static char saves[600];

static dsc_status train_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    for (int s = 0; s < 2; s++)
        DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    return dsc_engine_save(engine, saves, err);
}

static dsc_status load_saved(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_load(engine, saves, err);
}

/* A run forgets at a save what packing took, as the one that goes on from there has never known it. */
static void a_resumed_run_has_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 2, false);
    char command[700];
    run_result went_on, resumed;
    snprintf(saves, sizeof saves, "%s/packed-%d", folder, (int)getpid());
    run_options options = { .world = 2, .steps = STEPS, .model = model, .data = toy_data(model, 1 << 20),
                            .config = "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 2},"
                                      " \"dsc\": {\"threads\": 1, \"gradient_compression\": \"int4\"}}",
                            .fault_rank = -1, .before = train_and_save };
    run_world(&options, &went_on);
    options.before = load_saved;
    run_world(&options, &resumed);
    assert_int_equal(went_on.status, DSC_OK);
    assert_int_equal(resumed.status, DSC_OK);
    assert_true(same(&went_on, &resumed));
    snprintf(command, sizeof command, "rm -rf '%s'", saves);
    assert_int_equal(system(command), 0);
    toy_model_close(model);
}

/* Frozen weights alone travel packed; those that learn are as they were. */
static void frozen_weights_can_be_packed_alone(void **state)
{
    dsc_model *model = toy_model_open(5, 61, 3, true);
    run_result plain, frozen, all;
    variant v = { 2, 3, 1, BF16, "", "" };
    run_variant(&v, model, NULL, &plain);
    v.zero = FROZEN;
    run_variant(&v, model, NULL, &frozen);
    v.zero = WEIGHTS;
    run_variant(&v, model, NULL, &all);
    assert_true(frozen.wire_planned > all.wire_planned);
    assert_false(same(&frozen, &all));
    v.zero = WEIGHTS FROZEN;
    expect_same(&all, &v, model, "both");
    toy_model_close(model);
}

/* Slices longer than the buckets pass in pieces through smaller buffers, each piece beside what was taken from it. */
static void pieces_give_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 133, 3, true);
    for (size_t c = 0; c <= DSC_COUNT(compressions); c++) {
        const bool feedback = c > 0;
        run_result whole, pieces;
        variant v = { 2, 3, 2, BF16, feedback ? WEIGHTS : WEIGHTS GRADIENTS, feedback ? compression_of(c - 1) : "" };
        run_variant(&v, model, NULL, &whole);
        v.zero = feedback ? WEIGHTS PIECES : WEIGHTS GRADIENTS PIECES;
        run_variant(&v, model, NULL, &pieces);
        assert_true(same(&whole, &pieces));
        assert_true(pieces.planned < whole.planned);
        assert_true(pieces.wire_planned == whole.wire_planned);
    }
    toy_model_close(model);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s", tmp != NULL ? tmp : "/tmp");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_weights_have_the_same_bits_everywhere),
        cmocka_unit_test(packed_gradients_have_the_same_bits_at_every_stage),
        cmocka_unit_test(neighbours_change_no_bits),
        cmocka_unit_test(neighbours_gather_among_themselves),
        cmocka_unit_test(neighbours_are_whole_groups),
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(bytes_on_the_wire_are_the_papers),
        cmocka_unit_test(compressed_gradients_have_the_same_bits_at_every_stage),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(frozen_weights_can_be_packed_alone),
        cmocka_unit_test(pieces_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

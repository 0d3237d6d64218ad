/* test_offload.c - states away from simulated GPUs, in host memory and in files: optimizer states, which the host
 * updates, and parameters, which come to windows. The bits are those of GPUs that keep all of it, under every schedule.
 * DSC_TEST_NIGHT=1 runs the whole matrix, otherwise a part. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"

#define MOST_STEPS 3
#define SEQUENCE 16
#define VOCAB 61

#define STATES_CPU ", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}"
#define STATES_NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s\"}"
#define STATES_HALF ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"
/* Small groups stay on the GPU; of the others the first has room in host memory and the rest is in files. */
#define PARAMS_CPU ", \"stage3_param_persistence_threshold\": 1000, \"offload_param\": {\"device\": \"cpu\"}"
#define PARAMS_NVME ", \"stage3_param_persistence_threshold\": 1000, \"offload_param\": {\"device\": \"nvme\"," \
    " \"max_in_cpu\": 20000, \"nvme_path\": \"%1$s\"}"

typedef struct placement {
    const char *zero; /* members of zero_optimization, each preceded by a comma; %1$s is a folder */
    int32_t least_stage;
} placement;

static const placement states_away[] = { { STATES_CPU, 1 }, { STATES_NVME, 1 }, { STATES_HALF, 3 } };
static const placement params_away[] = {
    { PARAMS_CPU, 3 },
    { PARAMS_NVME, 3 },
    { STATES_CPU PARAMS_CPU, 3 },
    { STATES_CPU PARAMS_NVME, 3 },
    { STATES_NVME PARAMS_CPU, 3 },
    { STATES_NVME PARAMS_NVME, 3 },
    { STATES_HALF PARAMS_CPU, 3 },
};

typedef struct variant {
    int32_t world, stage, accumulation;
    bool bf16, in_turn; /* in_turn: overlap_comm false, everything on the compute stream */
    const char *zero;
    const char *own; /* members of "dsc", each preceded by a comma; NULL: none */
    const char *extra; /* members of the config, likewise */
    dsc_model *model; /* NULL: the small one */
    const char *optimizer; /* NULL: AdamW */
} variant;

static dsc_model *model, *deep; /* deep: six blocks */

static bool is_night(void)
{
    const char *night = getenv("DSC_TEST_NIGHT");
    return night != NULL && strcmp(night, "1") == 0;
}

/* The second step reads what the first one has written, and the hash has what the second one has written. */
static int64_t steps(void) { return is_night() ? MOST_STEPS : 2; }
static char folder[64] = "/tmp/dsc-sim-offload-XXXXXX";

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * SEQUENCE; i++) {
        uint64_t x = ((uint64_t)(first_sample * SEQUENCE + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((int32_t *)data[0])[i] = (int32_t)((x >> 20) % VOCAB);
        ((int32_t *)data[1])[i] = (int32_t)((x >> 40) % 7);
    }
    return DSC_OK;
}

/* Each run has a schedule of its own, and the engines for files take turns. */
static void run_with(const variant *v, const char *engine, run_result *out)
{
    static uint64_t seed;
    char config[2048], zero[1024];
    snprintf(zero, sizeof zero, v->zero, folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 9000,"
             " \"reduce_bucket_size\": 20000, \"overlap_comm\": %s%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60, \"aio\": \"%s\"%s}%s}",
             (int)v->accumulation, v->optimizer != NULL ? v->optimizer : "AdamW", v->bf16 ? "true" : "false",
             (int)v->stage, v->in_turn ? "false" : "true", zero, engine, v->own != NULL ? v->own : "",
             v->extra != NULL ? v->extra : "");
    const run_options options = { .world = run_most_ranks(v->world),
                                  .steps = steps(),
                                  .config = config,
                                  .model = v->model != NULL ? v->model : model,
                                  .data = { fill, NULL, 1 << 20 },
                                  .fault_rank = -1 };
    if (cusim_present())
        cusim_set_schedule(seed, (cusim_policy)(seed % (CUSIM_COMPUTE_FIRST + 1)));
    seed++;
    run_world(&options, out);
    if (out->status != DSC_OK)
        print_error("%d ranks, stage %d%s, %s: %s: %s\n", (int)v->world, (int)v->stage, zero, engine,
                    out->error.where, out->error.message);
}

static void run(const variant *v, run_result *out)
{
    static const char *const engines[] = { "auto", "threads", "libaio" };
    static size_t turn;
    const char *engine = engines[turn++ % DSC_COUNT(engines)];
    run_with(v, engine, out);
    if (out->status == DSC_ERR_UNSUPPORTED && strcmp(engine, "libaio") == 0)
        run_with(v, "auto", out);
    assert_int_equal(out->status, DSC_OK);
}

static void expect_same_bits(const run_result *on_gpus, const variant *v, run_result *away)
{
    run(v, away);
    assert_memory_equal(on_gpus->loss, away->loss, (size_t)steps() * sizeof(double));
    assert_memory_equal(on_gpus->norm, away->norm, (size_t)steps() * sizeof(double));
    assert_string_equal(on_gpus->hash, away->hash);
    assert_true(away->tracked_peak <= away->planned + away->planned / 100);
    assert_true(away->device_peak <= away->device_planned);
    assert_true(away->device_peak >= away->device_planned - away->device_planned / 100);
}

static void every_placement_of_states_gives_the_same_bits(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 4; world += 3) {
            run_result on_gpus, away;
            if (world == 1 && bf16 == 0) /* simulated seconds are long ones */
                continue;
            variant v = { .world = world, .stage = 1, .accumulation = 1 + world / 4, .bf16 = bf16 != 0, .zero = "" };
            run(&v, &on_gpus);
            for (size_t z = 0; z < DSC_COUNT(states_away); z++)
                for (v.stage = states_away[z].least_stage; v.stage <= 3; v.stage += 2) {
                    v.zero = states_away[z].zero;
                    expect_same_bits(&on_gpus, &v, &away);
                    assert_true(away.device_planned < on_gpus.device_planned);
                }
        }
}

static void overlap_on_and_off_give_the_same_bits(void **state)
{
    run_result on_gpus, other;
    variant v = {
        .world = 2, .stage = 3, .accumulation = 2, .bf16 = true, .zero = "", .own = ", \"recompute\": \"none\""
    };
    run(&v, &on_gpus);
    v.zero = STATES_CPU PARAMS_NVME;
    v.own = ", \"recompute\": \"kept\"";
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        v.in_turn = in_turn != 0;
        expect_same_bits(&on_gpus, &v, &other);
    }
}

/* Values that are kept of modules, in host memory, are copied back before they are read. */
static void values_of_modules(void **state)
{
    static const char *const levels[] = { "full", "none", "kept", "selective" };
    for (size_t i = 0; i < DSC_COUNT(levels); i++) {
        char own[64];
        run_result on_gpus, away;
        snprintf(own, sizeof own, ", \"recompute\": \"%s\"", levels[i]);
        variant v = { .world = 1, .stage = 0, .accumulation = 2, .bf16 = true, .zero = "", .model = deep, .own = own };
        run(&v, &on_gpus);
        v.extra = ", \"activation_checkpointing\": {\"cpu_checkpointing\": true}";
        for (int in_turn = 0; in_turn < (i == 0 ? 2 : 1); in_turn++) {
            v.in_turn = in_turn != 0;
            expect_same_bits(&on_gpus, &v, &away);
            assert_true(away.device_planned < on_gpus.device_planned);
        }
    }
}

/* GPUs and the host round bf16 moments alike. Sums in bf16 move in that dtype between the GPU and files, or host memory
 * that keeps some of them. */
static void moments_and_sums_in_bf16(void **state)
{
    run_result on_gpus, away;
    variant v = { .world = 2, .stage = 2, .accumulation = 2, .bf16 = true, .zero = "",
                  .own = ", \"moments\": \"bf16\", \"gradients\": \"bf16\"" };
    run(&v, &on_gpus);
    for (size_t z = 0; z < 2; z++) {
        v.stage = 2 + (int32_t)z;
        v.zero = states_away[z].zero;
        expect_same_bits(&on_gpus, &v, &away);
    }
    v.own = ", \"moments\": \"bf16\", \"gradients\": \"bf16\", \"gradients_in_memory\": 0.5";
    expect_same_bits(&on_gpus, &v, &away);
}

/* GPUs and the host choose the same codes and absmax. */
static void moments_in_8_bits(void **state)
{
    run_result on_gpus, away;
    variant v = {
        .world = 2, .stage = 2, .accumulation = 1, .bf16 = true, .zero = "", .own = ", \"moments\": \"8bit\""
    };
    run(&v, &on_gpus);
    for (size_t z = 0; z < 2; z++) {
        v.stage = 2 + (int32_t)z;
        v.zero = states_away[z].zero;
        expect_same_bits(&on_gpus, &v, &away);
    }
}

/* Norms of tensors, and directions of whole ones, are made by whoever updates, GPUs and the host, of states that pass
 * in tiles. */
static void whole_tensors_from_everywhere(void **state)
{
    static const char *const optimizers[] = { "Lamb", "Muon" };
    for (size_t o = 0; o < DSC_COUNT(optimizers); o++) {
        run_result on_gpus, away;
        variant v = { .world = 2, .stage = 2, .accumulation = 1, .zero = "", .optimizer = optimizers[o] };
        run(&v, &on_gpus);
        v.zero = STATES_CPU;
        expect_same_bits(&on_gpus, &v, &away);
        v.stage = 3;
        v.zero = STATES_HALF PARAMS_CPU;
        expect_same_bits(&on_gpus, &v, &away);
        v.bf16 = true;
        v.own = ", \"gradients\": \"bf16\"";
        v.zero = "";
        run(&v, &on_gpus);
        v.zero = STATES_NVME PARAMS_NVME;
        expect_same_bits(&on_gpus, &v, &away);
    }
}

/* Every placement is in one of three trainings. */
static void every_placement_of_parameters_gives_the_same_bits(void **state)
{
    static const variant trainings[] = {
        { .world = 1, .stage = 3, .accumulation = 4, .bf16 = true, .zero = "" },
        { .world = 2, .stage = 3, .accumulation = 1, .bf16 = false, .zero = "" },
        { .world = 3, .stage = 3, .accumulation = 2, .bf16 = true, .zero = "" },
    };
    for (size_t t = 0; t < DSC_COUNT(trainings); t++) {
        run_result on_gpus, away;
        variant v = trainings[t];
        run(&v, &on_gpus);
        for (size_t z = t; z < DSC_COUNT(params_away); z += DSC_COUNT(trainings)) {
            v.zero = params_away[z].zero;
            expect_same_bits(&on_gpus, &v, &away);
        }
    }
}

/* Micro-batches that pass a module before the next one, in two passes: sums are near the GPU between them. */
static void several_micro_batches_together(void **state)
{
    static const struct {
        int32_t world, stage;
        bool in_turn;
        const char *zero, *own, *extra;
        dsc_model **model;
    } kinds[] = {
        { 1, 1, false, STATES_CPU, "", "", &model },
        { 1, 2, false, STATES_NVME, ", \"gradients\": \"bf16\"", "", &model },
        { 1, 3, true, STATES_NVME PARAMS_CPU, "", "", &model },
        { 2, 3, false, STATES_CPU PARAMS_NVME, ", \"gradients\": \"bf16\"", "", &model },
        { 1, 0, false, "", ", \"recompute\": \"full\"",
          ", \"activation_checkpointing\": {\"cpu_checkpointing\": true}", &deep },
    };
    const int together_most = is_night() ? 5 : 3;
    for (size_t k = 0; k < DSC_COUNT(kinds); k++) {
        char own[128];
        run_result apart, together;
        variant v = { .world = kinds[k].world,
                      .stage = kinds[k].stage,
                      .accumulation = 2 * together_most,
                      .bf16 = true,
                      .zero = "",
                      .own = kinds[k].own,
                      .model = *kinds[k].model };
        run(&v, &apart);
        snprintf(own, sizeof own, ", \"micro_batches_together\": %d%s", together_most, kinds[k].own);
        v.own = own;
        v.zero = kinds[k].zero;
        v.extra = kinds[k].extra;
        v.in_turn = kinds[k].in_turn;
        expect_same_bits(&apart, &v, &together);
    }
}

/* All that a night has time for; two trainings of the kinds that the tests above leave out otherwise. */
static void the_matrix(void **state)
{
    const bool all = is_night();
    for (int32_t world = 1; world <= 4; world++)
        for (int kind = 0; kind < 8; kind++) {
            run_result on_gpus, away;
            variant v = { .world = world, .stage = 3, .accumulation = (kind & 1) != 0 ? 4 : 1,
                          .bf16 = (kind & 2) != 0, .zero = "",
                          .own = (kind & 4) != 0 ? ", \"reproducible\": \"world_size\"" : NULL };
            const bool on_four = world == 4 && kind == 2;
            if (!all && !(world == 2 && kind == 7) && !on_four)
                continue;
            run(&v, &on_gpus);
            for (v.stage = all ? 1 : 3; v.stage <= 3; v.stage++)
                for (size_t z = 0; z < (all ? DSC_COUNT(states_away) : on_four ? 0 : 1); z++)
                    if (v.stage >= states_away[z].least_stage) {
                        v.zero = states_away[z].zero;
                        expect_same_bits(&on_gpus, &v, &away);
                    }
            v.stage = 3;
            for (size_t z = 0; z < DSC_COUNT(params_away); z++) {
                v.zero = params_away[z].zero;
                if (all || (on_four && z == DSC_COUNT(params_away) - 2)) /* both in files */
                    expect_same_bits(&on_gpus, &v, &away);
            }
        }
}

static dsc_status open_gpt(int layers, dsc_model **out)
{
    char path[] = "/tmp/dsc-gpt-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    if (fd < 0 ||
        dprintf(fd, "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 64, \"n_head\": 1, \"n_layer\": %d,"
                    " \"n_positions\": %d, \"layer_norm_epsilon\": 1e-5}", VOCAB, layers, SEQUENCE) < 1)
        return DSC_ERR_IO;
    close(fd);
    const dsc_status status = dsc_model_open(out, path, &options, NULL);
    unlink(path);
    return status;
}

static int open_model(void **state)
{
    return mkdtemp(folder) != NULL && open_gpt(2, &model) == DSC_OK && open_gpt(6, &deep) == DSC_OK ? 0 : -1;
}

static int close_model(void **state)
{
    dsc_model_close(&model);
    dsc_model_close(&deep);
    return rmdir(folder); /* and nothing is left in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_placement_of_states_gives_the_same_bits),
        cmocka_unit_test(overlap_on_and_off_give_the_same_bits),
        cmocka_unit_test(values_of_modules),
        cmocka_unit_test(moments_and_sums_in_bf16),
        cmocka_unit_test(moments_in_8_bits),
        cmocka_unit_test(whole_tensors_from_everywhere),
        cmocka_unit_test(every_placement_of_parameters_gives_the_same_bits),
        cmocka_unit_test(several_micro_batches_together),
        cmocka_unit_test(the_matrix),
    };
    return cmocka_run_group_tests_name("states and parameters away from simulated GPUs", tests, open_model,
                                       close_model);
}

/* test_reshard.c - checkpoints of simulated GPUs: N ranks save, M load and save, N load again and continue as if
 * nothing had happened. Cases: any stage; states and parameters on the GPU, in host memory or in files; models trained
 * whole, by adapters or in part. A seed (DSC_TEST_SEED) chooses some; DSC_TEST_NIGHT=1: a sixth of all.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"

#define BATCH 4
#define SAMPLE 3

static const int32_t worlds[] = { 1, 2, 4 };

/* %1$s is a folder. */
static const struct { int stage; const char *zero; } places[] = {
    { 0, "" },
    { 1, ", \"offload_optimizer\": {\"device\": \"cpu\"}" },
    { 2, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s\"}" },
    { 3, "" },
    { 3, ", \"stage3_param_persistence_threshold\": 1000, \"offload_param\": {\"device\": \"cpu\"}" },
    { 3, ", \"stage3_param_persistence_threshold\": 1000, \"offload_optimizer\": {\"device\": \"cpu\"},"
         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s\"}" },
};

static const struct { const char *name, *own; const dsc_lora_options *lora; } kinds[] = {
    { "trained whole", "", NULL },
    { "adapters", "", &tiny_lora },
    { "frozen in part", ", \"freeze\": [\"*\", \"!*.1.*_proj.*\", \"!*norm*\"]", NULL },
};

#define WORLDS DSC_COUNT(worlds)
#define PLACES DSC_COUNT(places)
#define KINDS DSC_COUNT(kinds)
#define CASES (KINDS * WORLDS * WORLDS * PLACES * PLACES)

typedef struct leg {
    size_t kind, world, place;
    bool bf16;
    const char *load, *save; /* folders; NULL: none */
    int64_t steps;           /* -1: none */
    int32_t hosts;           /* so many have folders of their own, to save to or to load from; 0: one folder */
} leg;

static char *dir;
static dsc_model *model[KINDS];
static run_result whole[KINDS][2]; /* [bf16] of a run that nobody disturbed */

/* Rank r is on host r modulo their number; where they are loaded, a host further. */
static const char *folder_of(const leg *l, const char *folder, int32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "host-%d", (int)(rank % l->hosts));
    return cw_path(folder, name);
}

static dsc_status load(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const leg *l = user;
    if (l->load != NULL && l->save == NULL && l->hosts > 0)
        return dsc_engine_load(engine, folder_of(l, l->load, rank + 1), err);
    return l->load != NULL ? dsc_engine_load(engine, l->load, err) : DSC_OK;
}

static dsc_status save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const leg *l = user;
    if (l->save != NULL && l->hosts > 0)
        return dsc_engine_save(engine, folder_of(l, l->save, rank), err);
    return l->save != NULL ? dsc_engine_save(engine, l->save, err) : DSC_OK;
}

/* Each run has a schedule of its own; one that loads has other first weights, of which none may be left. */
static void run(leg *l, run_result *out)
{
    static uint64_t seed;
    char config[2048], zero[1024];
    snprintf(zero, sizeof zero, places[l->place].zero, dir);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 20000%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60, \"gemm_plans\": \"first\","
             " \"reproducible\": \"world_size\", \"seed\": %d%s},"
             " \"checkpoint\": {\"use_node_local_storage\": %s}}",
             BATCH / (int)worlds[l->world], l->bf16 ? "true" : "false", places[l->place].stage, zero,
             l->load != NULL ? 77 : 5, kinds[l->kind].own, l->hosts > 0 ? "true" : "false");
    if (cusim_present())
        cusim_set_schedule(seed, (cusim_policy)(seed % (CUSIM_COMPUTE_FIRST + 1)));
    seed++;
    run_well(&(run_options){ .world = worlds[l->world], .steps = l->steps, .model = model[l->kind], .config = config,
                             .data = tiny_gpt_data(model[l->kind], 1 << 20), .before = load, .after = save, .user = l,
                             .fault_rank = -1 }, out);
}

static void there_and_back(size_t index)
{
    const size_t k = index % KINDS, n = index / KINDS % WORLDS, m = index / (KINDS * WORLDS) % WORLDS;
    const size_t both = index / (KINDS * WORLDS * WORLDS), from = both % PLACES, to = both / PLACES;
    const bool bf16 = (index + n) % 2 != 0;
    run_result out, over, back;
    /* On the way back the ranks find it in parts, each on some host and none where its rank is. */
    const int32_t hosts = worlds[m] > 1 && worlds[m] <= worlds[n] ? worlds[m] : 0;
    leg first = { k, n, from, bf16, NULL, cw_path(dir, "out"), 1, 0 };
    leg other = { k, m, to, bf16, first.save, cw_path(dir, "over"), -1, hosts };
    leg again = { k, n, from, bf16, other.save, NULL, 1, hosts };
    printf("# case %zu: %s, %s, %d ranks at place %zu, then %d at place %zu\n", index, kinds[k].name,
           bf16 ? "bf16" : "fp32", (int)worlds[n], from, (int)worlds[m], to);
    run(&first, &out);
    run(&other, &over);
    run(&again, &back);
    const run_result *w = &whole[k][bf16];
    assert_string_equal(out.hash, over.hash);
    assert_memory_equal(&out.loss[0], &w->loss[0], sizeof(double));
    assert_memory_equal(&back.loss[0], &w->loss[1], sizeof(double));
    assert_string_equal(back.hash, w->hash);
    char saved[65];
    cw_hash_of(cw_path(first.save, "step-1"), saved);
    if (hosts == 0)
        cw_expect_checkpoint(cw_path(other.save, "step-1"), saved);
    cw_remove(first.save);
    cw_remove(other.save);
}

static void any_number_of_gpus_takes_it_and_gives_it_back(void **state)
{
    const char *given = getenv("DSC_TEST_SEED"), *night = getenv("DSC_TEST_NIGHT");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    const size_t count = night != NULL && strcmp(night, "1") == 0 ? CASES / PLACES : SAMPLE;
    if (run_most_ranks(4) < 4)
        skip();
    printf("# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
    /* A step that has no divisor in common with the number of cases: each comes once. */
    for (size_t i = 0; i < count; i++)
        there_and_back((size_t)((seed + i * 431) % CASES));
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    for (size_t k = 0; k < KINDS; k++) {
        model[k] = tiny_model_open(tiny_models[0].config, kinds[k].lora);
        for (int bf16 = 0; bf16 < 2; bf16++)
            run(&(leg){ k, 0, 0, bf16 != 0, NULL, NULL, 2, 0 }, &whole[k][bf16]);
    }
    return 0;
}

static int teardown(void **state)
{
    for (size_t k = 0; k < KINDS; k++)
        dsc_model_close(&model[k]);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_number_of_gpus_takes_it_and_gives_it_back, setup, teardown),
    };
    return cmocka_run_group_tests_name("reshards of simulated GPUs", tests, NULL, NULL);
}

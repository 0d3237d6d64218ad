/* test_cudnn.c - attention by cuDNN: where it is taken, what a run without it does, and what a checkpoint keeps.
 *
 * The simulator has a plugin of its own (cudnn.cc), which tests make absent, old or wrong. On a real GPU
 * (tests/gpu/real.c) nobody can say which cuDNN is installed, and all is skipped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"

#define TEXT_BYTES 65536
#define ENGINES_19 "cudnn 91900 engine eng"

static dsc_model *wide, *narrow; /* heads of 64 and of 16 */

typedef struct look {
    const dsc_model *model;
    const char *load, *save; /* NULL: none */
    const char *own;         /* members of "dsc", each preceded by a comma */
    char log[8192];          /* rank 0's lines about cuDNN and about a resume */
    char plans[8][TEXT_BYTES];
} look;

static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const look *l = user;
    return l->load != NULL ? dsc_engine_load(engine, l->load, err) : DSC_OK;
}

static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    look *l = user;
    int64_t bytes;
    DSC_TRY(dsc_gemm_plans_get(dsc_probe_device(engine), l->plans[rank], TEXT_BYTES, &bytes, err));
    DSC_ASSERT(bytes < TEXT_BYTES);
    return l->save != NULL ? dsc_engine_save(engine, l->save, err) : DSC_OK;
}

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    look *l = user;
    const size_t used = strlen(l->log);
    if (strncmp(text, "cuDNN", 5) == 0 || strstr(text, "resume: for ") != NULL)
        snprintf(l->log + used, sizeof l->log - used, "%s%s\n", level == DSC_LOG_WARNING ? "warning: " : "", text);
}

static void run(look *l, int32_t world, int32_t stage, int64_t steps, run_result *out)
{
    char config[1024];
    const dsc_model *model = l->model != NULL ? l->model : wide;
    l->log[0] = 0;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 20000},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60%s}}",
             (int)stage, l->own != NULL ? l->own : "");
    const run_options options = { .world = world, .steps = steps, .model = model, .config = config,
                                  .data = tiny_gpt_data(model, 1 << 20), .before = before, .after = after, .user = l,
                                  .log = { keep_line, l }, .fault_rank = -1 };
    run_well(&options, out);
    for (int32_t r = 1; r < world; r++)
        assert_string_equal(l->plans[0], l->plans[r]);
}

/* How many passes take the kernel. */
static int taken(const look *l, const char *kind)
{
    char end[64];
    int count = 0;
    snprintf(end, sizeof end, " by %s", kind);
    for (const char *at = l->plans[0]; (at = strstr(at, end)) != NULL; at++)
        count++;
    return count;
}

/* `log` NULL: no line. */
static void expect(const look *l, int by_cudnn, const char *log)
{
    if (taken(l, "cudnn ") != by_cudnn)
        fail_msg("%d passes take cuDNN, not %d: %s%s", taken(l, "cudnn "), by_cudnn, l->plans[0], l->log);
    if (log == NULL)
        assert_string_equal(l->log, "");
    else if (strstr(l->log, log) == NULL)
        fail_msg("no \"%s\" in %s", log, l->log);
}

static void expect_near(const run_result *a, const run_result *b, int64_t steps)
{
    for (int64_t i = 0; i < steps; i++)
        assert_true(a->loss[i] - b->loss[i] < 0.01 * b->loss[i] && b->loss[i] - a->loss[i] < 0.01 * b->loss[i]);
}

/* ---- where it is taken ---- */

static void heads_of_64_take_it_on_sm_90(void **state)
{
    static look own, cudnn, again;
    run_result first, second, third;
    if (!cusim_present())
        skip();
    own.own = ", \"attention\": \"own\"";
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    run(&own, 2, 1, 2, &first);
    expect(&own, 0, NULL);
    assert_int_equal(cusim_cudnn_calls(), 0);
    run(&cudnn, 2, 1, 2, &second);
    expect(&cudnn, 2, "cuDNN 9.19.0: 2 of 2 passes of attention take it, 0 are faster without");
    assert_non_null(strstr(cudnn.plans[0], " causal window 0 by " ENGINES_19 "1_k0=1\n"));
    assert_non_null(strstr(cudnn.plans[0], "attention backward 2x16 "));
    assert_true(cusim_cudnn_calls() >= 2 * 2 * 2); /* ranks, steps, passes */
    expect_near(&first, &second, 2);
    assert_string_not_equal(first.hash, second.hash); /* the kernels round otherwise, so the test can fail */
    run_expect_planned(&second);
    run(&again, 2, 3, 2, &third);
    run_expect_same(&second, &third);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

static void other_cards_and_narrow_heads_take_it_only_by_name(void **state)
{
    static look l;
    run_result result;
    if (!cusim_present())
        skip();
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    l.model = narrow;
    run(&l, 1, 0, 1, &result);
    expect(&l, 0, NULL);
    l.own = ", \"attention\": \"cudnn\"";
    run(&l, 1, 0, 1, &result);
    expect(&l, 2, "2 of 2 passes");
    cusim_set_arch(0, 80);
    l = (look){ 0 };
    run(&l, 1, 0, 1, &result);
    expect(&l, 0, NULL);
    l.own = ", \"attention\": \"cudnn\"";
    run(&l, 1, 0, 1, &result);
    expect(&l, 2, "2 of 2 passes");
    cusim_set_arch(0, 90);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

static void times_choose_with_fastest(void **state)
{
    static look l;
    run_result result;
    if (!cusim_present())
        skip();
    l.own = ", \"gemm_plans\": \"fastest\"";
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    cusim_set_kernel_ticks("cudnn_", 100);
    run(&l, 1, 0, 1, &result);
    expect(&l, 0, "0 of 2 passes of attention take it, 2 are faster without");
    assert_int_equal(taken(&l, "warpgroups"), 2);
    cusim_set_kernel_ticks("sm90_kernel<", 100);
    run(&l, 1, 0, 1, &result);
    expect(&l, 2, "2 of 2 passes");
    cusim_set_kernel_ticks("cudnn_", 100);
    l.own = ", \"gemm_plans\": \"fastest\", \"attention\": \"cudnn\"";
    run(&l, 1, 0, 1, &result);
    expect(&l, 2, "2 of 2 passes");
    l.own = "";
    run(&l, 1, 0, 1, &result); /* same_bits: whatever is fast */
    expect(&l, 2, "2 of 2 passes");
    cusim_set_kernel_ticks(NULL, 0);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

static void first_tries_nothing_and_takes_what_is_named(void **state)
{
    static look l;
    run_result result;
    if (!cusim_present())
        skip();
    cusim_set_cudnn(CUSIM_CUDNN_WRONG);
    l.own = ", \"gemm_plans\": \"first\"";
    run(&l, 1, 0, 1, &result);
    expect(&l, 0, NULL);
    l.own = ", \"gemm_plans\": \"first\", \"attention\": \"cudnn\"";
    run(&l, 1, 0, 1, &result);
    expect(&l, 2, "2 of 2 passes");
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

static void graphs_have_the_same_bits(void **state)
{
    static look plain, graphs;
    run_result first, second;
    if (!cusim_present())
        skip();
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    run(&plain, 1, 0, 3, &first);
    graphs.own = ", \"cuda_graphs\": true";
    cusim_graphs_launched();
    run(&graphs, 1, 0, 3, &second);
    assert_true(cusim_graphs_launched() > 0);
    expect(&graphs, 2, "2 of 2 passes");
    run_expect_same(&first, &second);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

/* ---- runs without it ---- */

static void a_run_without_it_has_the_bits_of_its_own_kernels(void **state)
{
    static const struct { cusim_cudnn is; const char *line; } cases[] = {
        { CUSIM_CUDNN_NONE, "cuDNN: this run has attention by dsc's own kernels: libcudnn.so.9 does not load" },
        { CUSIM_CUDNN_OLD, "cuDNN: this run has attention by dsc's own kernels: cuDNN 9.1.0 is installed" },
        { CUSIM_CUDNN_REFUSES, "cuDNN: this run has attention by dsc's own kernels: cuDNN: the graph: no engine" },
        { CUSIM_CUDNN_LARGE, "its work space would be 1048576 MiB for 2 x 16 tokens" },
        { CUSIM_CUDNN_WRONG, "warning: cuDNN 9.19.0 gives wrong numbers or other bits each time on this GPU for 2" },
        { CUSIM_CUDNN_UNSTEADY, "warning: cuDNN 9.19.0 gives wrong numbers or other bits each time on this GPU for 2" },
    };
    static look own, l;
    run_result first, second;
    if (!cusim_present())
        skip();
    own.own = ", \"attention\": \"own\"";
    run(&own, 2, 1, 2, &first);
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        cusim_set_cudnn(cases[i].is);
        l.own = "";
        run(&l, 2, 1, 2, &second);
        expect(&l, 0, cases[i].line);
        run_expect_same(&first, &second);
        if (cases[i].is == CUSIM_CUDNN_LARGE)
            continue;
        l.own = ", \"attention\": \"cudnn\""; /* asked for by name: a warning */
        run(&l, 1, 0, 1, &second);
        expect(&l, 0, "warning: cuDNN");
    }
    cusim_set_cudnn(CUSIM_CUDNN_LARGE); /* the card has not so much */
    run(&l, 1, 1, 1, &second);
    expect(&l, 0, "warning: cuDNN: this run has attention by dsc's own kernels: the GPU has no memory");
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

/* ---- checkpoints ---- */

static void a_resumed_run_takes_the_same_or_says_that_it_cannot(void **state)
{
    static const struct {
        cusim_cudnn is;
        int by_cudnn;
        const char *line;
    } cases[] = {
        { CUSIM_CUDNN_WORKS, 2, "" },
        { CUSIM_CUDNN_WRONG, 2, "" }, /* a recorded choice is not tried again */
        { CUSIM_CUDNN_NONE, 0, "warning: resume: for 2 kinds of matrix products, attentions or convolutions" },
        { CUSIM_CUDNN_LATER, 2, "warning: resume: for 2 kinds of matrix products, attentions or convolutions" },
    };
    static look recorded, l;
    run_result result;
    if (!cusim_present())
        skip();
    for (int arch = 80; arch <= 90; arch += 10) { /* one kernel beside it, and two */
        char *dir = cw_tmp_open(), own[300];
        cusim_set_arch(0, arch);
        cusim_set_cudnn(CUSIM_CUDNN_WORKS);
        recorded.save = dir;
        recorded.own = ", \"attention\": \"cudnn\"";
        run(&recorded, 1, 1, 1, &result);
        expect(&recorded, 2, "2 of 2 passes");
        for (size_t i = arch == 80 ? 2 : 0; i < (arch == 80 ? 3 : DSC_COUNT(cases)); i++) {
            snprintf(own, sizeof own, ", \"attention\": \"cudnn\", \"load\": \"%s\"", dir);
            cusim_set_cudnn(cases[i].is);
            l.load = dir;
            l.own = own;
            run(&l, 1, 2, 1, &result);
            expect(&l, cases[i].by_cudnn, cases[i].line);
            assert_int_equal(strcmp(recorded.plans[0], l.plans[0]) == 0, cases[i].line[0] == 0);
        }
        cw_tmp_close(dir);
    }
    cusim_set_arch(0, 90);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_64_take_it_on_sm_90),
        cmocka_unit_test(other_cards_and_narrow_heads_take_it_only_by_name),
        cmocka_unit_test(times_choose_with_fastest),
        cmocka_unit_test(first_tries_nothing_and_takes_what_is_named),
        cmocka_unit_test(graphs_have_the_same_bits),
        cmocka_unit_test(a_run_without_it_has_the_bits_of_its_own_kernels),
        cmocka_unit_test(a_resumed_run_takes_the_same_or_says_that_it_cannot),
    };
    wide = tiny_gpt_open(&(tiny_gpt){ .vocab = 61, .sequence = 16, .heads = 1, .layers = 1 });
    narrow = tiny_gpt_open(&(tiny_gpt){ .vocab = 61, .sequence = 16, .heads = 4, .layers = 1 });
    const int failed = cmocka_run_group_tests_name("attention by cuDNN", tests, NULL, NULL);
    dsc_model_close(&wide);
    dsc_model_close(&narrow);
    return failed;
}

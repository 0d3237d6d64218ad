/* test_faults.c - faults planted into real training on simulated GPUs: each is caught, or shown to do no harm.
 *
 * A rank's n-th stream wait, host wait or collective is left out. The simulator's tracking (tests/sim/track.h) must
 * report a missing stream wait under any schedule. Wrong numbers without a report are a gap of the tracking. Equal
 * numbers without a report mean that another wait gives the same order. Each run is its own process.
 * DSC_TEST_FAULTS=all leaves out each one (2 minutes of one core), otherwise some of them.
 *
 * A refusal by the GPU or the driver (memory, pinned memory, a stream, an event, a graph) is one error of one rank. Its
 * peers receive it, and no object is left. DSC_TEST_NIGHT=1 runs each of them. On real GPUs all of it is skipped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_world.h"
#include "tests/support/tiny_gpt.h"

#define VIOLATION 98
#define TEXT_MAX 1024

static dsc_model *model, *deep; /* deep: values of two modules can wait in host memory */

typedef struct training {
    int32_t stage, accumulation;
    const char *more; /* members of "zero_optimization", each preceded by a comma */
    int32_t world, device; /* world size; device of the planted fault */
    const char *own;  /* more of "dsc" */
    dsc_model **model; /* NULL: model */
} training;

typedef enum ending { SAME, REPORTED, FAILED, DIFFERENT, STUCK } ending;

/* Results of the child, in shared memory. */
typedef struct outcome {
    run_result run;
    int64_t count; /* how many there were to leave out */
    int64_t left;  /* that the engines made and did not give back */
} outcome;

static void train_in_child(const training *t, cusim_fault fault, int64_t number, cusim_policy policy, outcome *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"bf16\": {\"enabled\": true},"
             " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": true, \"reduce_bucket_size\": 20000%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 10, %s}}",
             (int)t->accumulation, (int)t->stage, t->more, t->own);
    const dsc_model *of = t->model != NULL ? *t->model : model;
    const run_options options = { .world = t->world,
                                  .steps = 2,
                                  .model = of,
                                  .config = config,
                                  .data = tiny_gpt_data(of, 1 << 20),
                                  .fault_rank = -1 };
    cusim_set_schedule(1, policy);
    cusim_plant(fault, t->device, number);
    run_world(&options, &out->run);
    out->count = cusim_plant(fault, t->device, -1);
    out->left = cusim_left();
    _exit(out->run.status == DSC_OK ? 0 : 3);
}

/* `text` gets what the child said, of what it said first. */
static ending run_child(const training *t, cusim_fault fault, int64_t number, cusim_policy policy, outcome *out,
                        const outcome *right, char *text)
{
    int ends[2], status = 0;
    size_t used = 0;
    char rest[256];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        train_in_child(t, fault, number, policy, out);
    }
    close(ends[1]);
    for (ssize_t n = 1; n > 0;) {
        const bool room = used < TEXT_MAX - 1;
        n = read(ends[0], room ? text + used : rest, room ? TEXT_MAX - 1 - used : sizeof rest);
        used += room && n > 0 ? (size_t)n : 0;
    }
    text[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        return STUCK;
    if (WEXITSTATUS(status) == VIOLATION)
        return REPORTED;
    if (WEXITSTATUS(status) != 0) {
        snprintf(text, TEXT_MAX, "%s: %.500s", out->run.error.where, out->run.error.message);
        return FAILED;
    }
    const bool same = right == NULL || (memcmp(right->run.loss, out->run.loss, sizeof right->run.loss) == 0 &&
                                        memcmp(right->run.norm, out->run.norm, sizeof right->run.norm) == 0 &&
                                        strcmp(right->run.hash, out->run.hash) == 0);
    return same ? SAME : DIFFERENT;
}

#define FIRST_PLANS "\"gemm_plans\": \"first\""
#define LATE_UPDATE ", \"late_update\": true"
#define ON_THE_HOST                                                                                     \
    ", \"sub_group_size\": 9000, \"stage3_param_persistence_threshold\": 0,"                             \
    " \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}"

/* Beside "zero_optimization". */
#define VALUES_ON_THE_HOST "}, \"activation_checkpointing\": {\"cpu_checkpointing\": true"

static const training trainings[] = {
    { 3, 2, "", 2, 0, FIRST_PLANS, NULL },
    { 2, 2, "", 2, 0, FIRST_PLANS, NULL },
    { 1, 1, "", 2, 0, FIRST_PLANS, NULL },
    { 3, 2, ON_THE_HOST, 2, 0, FIRST_PLANS, NULL },
    { 0, 1, "", 2, 0, FIRST_PLANS LATE_UPDATE, NULL },
    { 3, 1, "", 2, 0, FIRST_PLANS LATE_UPDATE, NULL },
    { 1, 2, VALUES_ON_THE_HOST, 2, 0, FIRST_PLANS ", \"recompute\": \"none\"", &deep },
};

/* Every `stride`-th fault of one kind, or about a dozen. `harmless`: how many at most may end as if nothing were
 * missing, in percent. */
static void leave_out_each(cusim_fault fault, const char *what, int64_t stride, bool tracking_says_it,
                           int64_t harmless)
{
    const char *all = getenv("DSC_TEST_FAULTS");
    const bool each = all != NULL && strcmp(all, "all") == 0;
    outcome *out = mmap(NULL, 2 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outcome *right = out + 1;
    char text[TEXT_MAX];
    assert_true(out != MAP_FAILED);
    for (size_t i = 0; i < DSC_COUNT(trainings); i++) {
        const training *t = &trainings[i];
        int64_t ended[STUCK + 1] = { 0 }, tried = 0;
        const ending plain = run_child(t, fault, -1, CUSIM_RANDOM, right, NULL, text);
        if (plain != SAME)
            print_error("stage %d, nothing planted: %s\n", (int)t->stage, text);
        assert_int_equal(plain, SAME);
        const int64_t step = each ? 1 : dsc_max_i64(stride, right->count / 12);
        for (int64_t n = (int64_t)i; n < right->count; n += step, tried++) {
            const ending e = run_child(t, fault, n, CUSIM_RANDOM, out, right, text);
            ended[e]++;
            if (getenv("CUSIM_FAULTS_SHOW") != NULL)
                print_message("stage %d, %s %d of %d: %s %s\n", (int)t->stage, what, (int)n, (int)right->count,
                              (const char *const[]){ "same", "reported", "failed", "different", "stuck" }[e], text);
            const bool hole = e == STUCK || (tracking_says_it && (e == FAILED || e == DIFFERENT));
            if (hole)
                print_error("stage %d, %s %d of %d is left out: %s: %s\n", (int)t->stage, what, (int)n,
                            (int)right->count, e == STUCK ? "stuck" : e == FAILED ? "an error" : "other numbers", text);
            assert_false(hole);
        }
        print_message("# stage %d: %d of %d %ss left out one by one: %d reported, %d end in an error, %d give other "
                      "numbers, %d do no harm\n", (int)t->stage, (int)tried, (int)right->count, what,
                      (int)ended[REPORTED], (int)ended[FAILED], (int)ended[DIFFERENT], (int)ended[SAME]);
        assert_true(tried > 0);
        assert_true(ended[SAME] * 100 <= harmless * tried);
    }
    munmap(out, 2 * sizeof *out);
}

static void every_wait_of_a_stream(void **state)
{
    if (!cusim_present() || !cusim_tracks_kernels())
        skip();
    leave_out_each(CUSIM_DROP_WAIT, "stream's wait", 6, true, 70);
}

static void every_wait_of_the_host(void **state)
{
    if (!cusim_present())
        skip();
    leave_out_each(CUSIM_DROP_HOST_WAIT, "host's wait", 15, false, 100);
}

static void every_collective(void **state)
{
    if (!cusim_present())
        skip();
    leave_out_each(CUSIM_SKIP_COLLECTIVE, "collective", 18, false, 0);
}

/* ---- what is not given ---- */

static const training refused[] = {
    { 1, 1, "", 1, 0, "\"cuda_graphs\": true", NULL },
    { 3, 1, ON_THE_HOST, 2, 1, FIRST_PLANS ", \"cuda_graphs\": true", NULL },
};

static void expect_refusal(const training *t, const outcome *out, ending ended, int64_t n, const char *text)
{
    const bool peers_know = t->world == 1 || out->run.ranks[1 - t->device].status == DSC_ERR_PEER;
    if (ended != FAILED || out->run.status != DSC_ERR_NOMEM || out->left != 0 || !peers_know)
        print_error("stage %d, %d not given: ended %d, status %d, %d left, peer's status %d: %s\n", (int)t->stage,
                    (int)n, (int)ended, (int)out->run.status, (int)out->left,
                    (int)out->run.ranks[1 - t->device].status, text);
    assert_int_equal(ended, FAILED);
    assert_int_equal(out->run.status, DSC_ERR_NOMEM);
    assert_non_null(strstr(out->run.error.message, "out of memory"));
    assert_int_equal(out->run.error.rank, t->device);
    assert_true(peers_know);
    assert_int_equal(out->left, 0);
}

static void refuse_each(cusim_fault fault, const char *what, int64_t about)
{
    const char *night = getenv("DSC_TEST_NIGHT");
    const bool each = night != NULL && strcmp(night, "1") == 0;
    outcome *out = mmap(NULL, 2 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outcome *right = out + 1;
    char text[TEXT_MAX];
    assert_true(out != MAP_FAILED);
    for (size_t i = 0; i < DSC_COUNT(refused); i++) {
        const training *t = &refused[i];
        int64_t tried = 0;
        assert_int_equal(run_child(t, fault, -1, CUSIM_RANDOM, right, NULL, text), SAME);
        assert_int_equal(right->left, 0);
        const int64_t step = each ? 1 : dsc_max_i64(1, right->count / about);
        for (int64_t n = 0; n < right->count; n += step, tried++) {
            memset(out, 0, sizeof *out);
            const ending e = run_child(t, fault, n, CUSIM_RANDOM, out, right, text);
            expect_refusal(t, out, e, n, text);
        }
        print_message("# %d rank%s: %d of %d %s not given one by one\n", (int)t->world, t->world == 1 ? "" : "s",
                      (int)tried, (int)right->count, what);
        assert_true(tried > 0);
    }
    munmap(out, 2 * sizeof *out);
}

static void memory_that_is_not_given(void **state)
{
    if (!cusim_present())
        skip();
    refuse_each(CUSIM_FAIL_MALLOC, "allocations", 6);
}

static void streams_and_events_that_are_not_given(void **state)
{
    if (!cusim_present())
        skip();
    refuse_each(CUSIM_FAIL_CREATE, "streams, events and graphs", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wait_of_a_stream),
        cmocka_unit_test(every_wait_of_the_host),
        cmocka_unit_test(every_collective),
        cmocka_unit_test(memory_that_is_not_given),
        cmocka_unit_test(streams_and_events_that_are_not_given),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = 31, .sequence = 8, .heads = 1, .layers = 2 });
    deep = tiny_gpt_open(&(tiny_gpt) { .vocab = 31, .sequence = 8, .heads = 1, .layers = 4 });
    const int failed = cmocka_run_group_tests_name("faults planted into training on simulated GPUs", tests, NULL, NULL);
    dsc_model_close(&model);
    dsc_model_close(&deep);
    return failed;
}

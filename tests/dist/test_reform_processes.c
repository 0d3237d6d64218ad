/* test_reform_processes.c - ranks as processes: one is killed, and the others go on without it, without a checkpoint.
 *
 * The parent has no engine. It gives ranks their numbers, kills one of them, and after its death gives the others new
 * numbers and a new port. Losses have the bits of one rank. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <netinet/in.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

#define RANKS 4
#define STEPS 40
#define KILL_AT 15
#define LIMIT_S 120

/* Memory that parent and ranks share. */
typedef struct board {
    _Atomic int64_t step[RANKS];      /* done, of each process */
    _Atomic int32_t waiting[RANKS];   /* the process carries states, and waits for a new number */
    _Atomic int32_t generation;       /* generation of the numbers below */
    int32_t rank[RANKS], world, port; /* -1: the process is gone */
    _Atomic int64_t next_ns;          /* first step that ended after the death */
    double loss[STEPS];
    char error[RANKS][300];
} board;

static board *shared;
static dsc_model *model;

static const char *config_of(const char *comm, int stage)
{
    static char text[1024];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 20, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d}, \"dsc\": {\"threads\": 1, \"comm\": \"%s\", \"quota\": \"even\","
             " \"reproducible\": \"world_size\", \"elastic\": {\"mirror_every\": 1}}}",
             stage, comm);
    return text;
}

static int free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, bytes) != 0 || getsockname(fd, (struct sockaddr *)&at, &bytes) != 0)
        abort();
    close(fd);
    return ntohs(at.sin_port);
}

/* ---- a rank ---- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_place(int process)
{
    set_number("RANK", shared->rank[process]);
    set_number("LOCAL_RANK", shared->rank[process]);
    set_number("WORLD_SIZE", shared->world);
    set_number("LOCAL_WORLD_SIZE", shared->world);
    set_number("MASTER_PORT", shared->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

static dsc_status train(dsc_engine *engine, int process, dsc_error *err)
{
    while (dsc_probe_step(engine) < STEPS) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (dsc_engine_rank(engine) == 0)
            shared->loss[result.step - 1] = result.loss;
        atomic_store(&shared->step[process], result.step);
        int64_t none = 0;
        if (atomic_load(&shared->generation) > 1)
            atomic_compare_exchange_strong(&shared->next_ns, &none, dsc_clock_ns());
    }
    return DSC_OK;
}

static dsc_status live(const char *config, int process, dsc_error *err)
{
    dsc_carried *carried = NULL;
    for (int32_t seen = 0;;) {
        dsc_engine *engine = NULL;
        dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
        while (atomic_load(&shared->generation) == seen)
            dsc_clock_sleep_ns(1000000);
        seen = atomic_load(&shared->generation);
        set_place(process);
        options.config_text = config;
        options.model = model;
        options.data = toy_data(model, 1 << 20);
        options.flags = seen > 1 ? DSC_ENGINE_CARRIED : 0;
        options.carried = &carried;
        dsc_status status = dsc_engine_open(&engine, &options, err);
        if (status == DSC_OK)
            status = train(engine, process, err);
        if (status == DSC_ERR_PEER && engine != NULL)
            status = dsc_engine_carry(&engine, NULL, &carried, err);
        const bool ended = engine != NULL;
        dsc_engine_close(&engine);
        if (status != DSC_OK || ended)
            return status;
        atomic_store(&shared->waiting[process], seen);
    }
}

static pid_t start(const char *config, int process)
{
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = live(config, process, &err);
    if (status != DSC_OK)
        snprintf(shared->error[process], sizeof shared->error[process], "%.100s: %.180s", err.where, err.message);
    _exit(status == DSC_OK ? 0 : 1);
}

/* ---- the parent ---- */

static void give_numbers(int32_t world, int gone)
{
    int32_t next = 0;
    for (int p = 0; p < RANKS; p++)
        shared->rank[p] = p == gone || next == world ? -1 : next++;
    shared->world = world;
    shared->port = free_port();
    atomic_fetch_add(&shared->generation, 1);
}

/* Ranks that are neither waiting nor gone. */
static int working(int gone)
{
    int count = 0;
    for (int p = 0; p < RANKS; p++)
        count += p != gone && atomic_load(&shared->waiting[p]) == 0;
    return count;
}

static void expect_end(pid_t pid, int process)
{
    int state = 0;
    assert_int_equal(waitpid(pid, &state, 0), pid);
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        print_error("process %d: %s\n", process, shared->error[process]);
    assert_true(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

static void run(const char *config, int32_t world, int victim)
{
    pid_t pid[RANKS];
    const int64_t until = dsc_clock_ns() + INT64_C(1000000000) * LIMIT_S;
    memset(shared, 0, sizeof *shared);
    give_numbers(world, -1);
    for (int p = 0; p < world; p++)
        pid[p] = start(config, p);
    if (victim >= 0) {
        while (atomic_load(&shared->step[victim]) < KILL_AT && dsc_clock_ns() < until)
            dsc_clock_sleep_ns(200000);
        kill(pid[victim], SIGKILL);
        const int64_t death = dsc_clock_ns();
        assert_int_equal(waitpid(pid[victim], NULL, 0), pid[victim]);
        while (working(victim) > 0 && dsc_clock_ns() < until)
            dsc_clock_sleep_ns(200000);
        give_numbers(world - 1, victim);
        for (int p = 0; p < world; p++)
            if (p != victim)
                expect_end(pid[p], p);
        const int64_t next = atomic_load(&shared->next_ns);
        print_message("# %.0f ms from the death of rank %d to the next step\n", (double)(next - death) * 1e-6, victim);
        assert_true(next > death);
        return;
    }
    for (int p = 0; p < world; p++)
        expect_end(pid[p], p);
}

static void a_killed_process_is_done_without(void **state)
{
    static const char *const comms[] = { "shm", "tcp" };
    double alone[STEPS];
    (void)state;
    run(config_of("self", 0), 1, -1);
    memcpy(alone, shared->loss, sizeof alone);
    assert_true(alone[0] != alone[STEPS - 1]);
    for (int victim = 0; victim < RANKS; victim++) {
        run(config_of(comms[victim % 2], victim), RANKS, victim);
        assert_memory_equal(alone, shared->loss, sizeof alone);
    }
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    setenv("DSC_JOB_TOKEN", "0123456789abcdef0123456789abcdef", 1);
    model = toy_model_open(5, 61, 3, true);
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_killed_process_is_done_without) };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    toy_model_close(model);
    munmap(shared, sizeof *shared);
    return failed;
}

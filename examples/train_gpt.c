/* train_gpt.c - embeds the engine: trains GPT-2 on a text file inside this program, ranks as threads.
 *
 *     train_gpt TEXT [RANKS [STEPS]]
 *
 * The same code is a rank of a bigger job when it is started by dsc-launch: leave `world` NULL and one engine per
 * process reads its place from the environment. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <dsc/dsc.h>

static const char config[] =
    "{ \"train_micro_batch_size_per_gpu\": 2,"
    "  \"gradient_accumulation_steps\": 2,"
    "  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 0.003, \"weight_decay\": 0.01 } },"
    "  \"gradient_clipping\": 1.0,"
    "  \"bf16\": { \"enabled\": true },"
    "  \"zero_optimization\": { \"stage\": 3 },"
    "  \"dsc\": { \"model\": \"gpt2-nano\", \"seq_length\": 64 } }";

typedef struct job {
    const char *data_json; /* the path as JSON text */
    dsc_world *world;
    int rank, steps, exit_code;
} job;

static void print_line(void *user, dsc_log_level level, const char *text)
{
    (void)user;
    if (level <= DSC_LOG_WARNING)
        fprintf(stderr, "%s\n", text);
}

/* The familiar life cycle: forward, backward, step per micro-batch; step acts at the accumulation boundary. */
static dsc_status train(dsc_engine *engine, int steps, dsc_error *err)
{
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    while (result.step < steps) {
        double loss;
        DSC_TRY(dsc_engine_forward(engine, NULL, &loss, err)); /* NULL: the next batch of the data source */
        DSC_TRY(dsc_engine_backward(engine, err));
        const bool boundary = dsc_engine_at_boundary(engine);
        dsc_step_result now = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_step(engine, &now, err));
        if (!boundary)
            continue;
        result = now;
        if (dsc_engine_rank(engine) == 0)
            printf("step %lld  loss %.4f  norm %.3f\n", (long long)result.step, result.loss, result.grad_norm);
    }
    return DSC_OK;
}

static dsc_status run_engine(job *j, dsc_engine **engine, dsc_error *err)
{
    const dsc_override data = { "dsc.data", j->data_json, "TEXT" };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = config;
    options.overrides = &data;
    options.override_count = 1;
    options.world = j->world;
    options.rank = j->rank;
    options.log = (dsc_log){ print_line, NULL };
    DSC_TRY(dsc_engine_open(engine, &options, err));
    if (j->rank == 0) {
        dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
        dsc_engine_stats_get(*engine, &stats);
        printf("%lld parameters, %.1f MiB planned per rank\n", (long long)stats.parameter_count,
               (double)stats.planned_bytes / 1e6);
    }
    return train(*engine, j->steps, err);
}

static void *run_rank(void *argument)
{
    job *j = argument;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = run_engine(j, &engine, &err);
    if (status != DSC_OK) {
        char text[1024];
        fprintf(stderr, "rank %d: %s\n", j->rank, dsc_error_format(&err, text, sizeof text));
        j->exit_code = dsc_status_exit_code(status);
    }
    dsc_engine_close(&engine);
    return NULL;
}

int main(int argc, char **argv)
{
    enum { RANKS_MAX = 16 };
    const int ranks = argc > 2 ? atoi(argv[2]) : 2, steps = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 2 || ranks < 1 || ranks > RANKS_MAX || steps < 1) {
        fprintf(stderr, "usage: %s TEXT [RANKS (1..%d) [STEPS]]\n", argv[0], RANKS_MAX);
        return 2;
    }
    char data_json[4200];
    snprintf(data_json, sizeof data_json, "[\"%s\"]", argv[1]); /* a plain path; quotes in it would need escapes */
    dsc_world *world = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_world_open(ranks, &world, &err) != DSC_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dsc_status_exit_code(err.status);
    }
    job jobs[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    int exit_code = 0, started = 0;
    for (; started < ranks; started++) {
        jobs[started] = (job){ data_json, world, started, steps, 0 };
        if (pthread_create(&threads[started], NULL, run_rank, &jobs[started]) != 0)
            abort(); /* the other ranks would wait for this one */
    }
    for (int r = 0; r < started; r++) {
        pthread_join(threads[r], NULL);
        exit_code = jobs[r].exit_code != 0 ? jobs[r].exit_code : exit_code;
    }
    dsc_world_close(&world);
    return exit_code;
}

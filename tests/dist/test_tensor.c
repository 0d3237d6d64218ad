/* test_tensor.c - ranks that compute each module together. Losses and norms are those of one rank within rounding, on
 * every grid. Parameters that all ranks have keep equal bits. Checkpoints load at other grids; bytes are the planned
 * ones, and what is not built is refused by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/support/probe.h"
#include "tests/support/tiny_gpt.h"

enum { STEPS = 20, RANKS_MAX = 8, PARTS = 4, PARAMS_MAX = 64 };

/* Heads of keys and values are fewer than four ranks, and so are copied. */
#define LLAMA(more)                                                                                                    \
    "{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 2,"                   \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 88,"                              \
    " \"max_position_embeddings\": 16" more "}"
#define QWEN3                                                                                                          \
    "{\"model_type\": \"qwen3\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 2,"                   \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 88, \"head_dim\": 24,"            \
    " \"max_position_embeddings\": 16}"
/* One head of keys and values, and twelve that 2, 3 and 4 ranks divide. */
#define TWELVE_HEADS                                                                                                   \
    "{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 96, \"num_hidden_layers\": 2,"                   \
    " \"num_attention_heads\": 12, \"num_key_value_heads\": 1, \"intermediate_size\": 96,"                             \
    " \"max_position_embeddings\": 16, \"tie_word_embeddings\": true}"
#define GPT2                                                                                                           \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 61, \"n_positions\": 16, \"n_embd\": 64, \"n_head\": 4,"               \
    " \"n_layer\": 2, \"layer_norm_epsilon\": 1e-5}"
static const char *const models[] = { GPT2, LLAMA(", \"tie_word_embeddings\": true"),
                                      LLAMA(", \"attention_bias\": true, \"mlp_bias\": true"), QWEN3 };

typedef struct grid {
    int32_t pipeline, data, tensor;
} grid;

typedef struct run {
    const char *model; /* config.json */
    grid g;
    int32_t stage;
    bool bf16, masked;
    const char *recompute; /* NULL: "none" */
    const char *more;      /* members of "dsc"; NULL: none */
    const char *zero;      /* of "zero_optimization", likewise */
    int64_t steps;
    const char *odd;         /* members of "dsc" of the last rank alone; NULL: none */
    int64_t lost;            /* above 0: this collective of the last rank fails */
    const char *load, *save; /* NULL: not at all */
    const dsc_model *whole;  /* for samples */
    dsc_world *world;
    /* Results */
    double loss[STEPS], norm[STEPS], evaluated;
    dsc_error error; /* the first rank's that failed by itself */
    dsc_error of_peer; /* error of a rank that lost another one */
    pthread_mutex_t lock;
    bool planned, balanced;             /* bytes to tensor ranks are the planned ones; memory too */
    float *kept[RANKS_MAX][PARAMS_MAX]; /* masters of tensors that all tensor ranks have, with one data rank */
    int64_t kept_count[RANKS_MAX][PARAMS_MAX];
} run;

typedef struct rank_job {
    run *r;
    int32_t rank;
} rank_job;

static int32_t last_of(const run *r) { return r->g.pipeline * r->g.data * r->g.tensor - 1; }

static void keep_masters(run *r, dsc_engine *engine, int32_t rank)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    for (int32_t t = 0; t < layout->tensor_count && r->g.data == 1; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        void *ptr;
        int64_t count = tensor->count;
        DSC_ASSERT(t < PARAMS_MAX);
        if (tensor->spec->part.count > 1 || !layout->group[tensor->group].trainable)
            continue;
        if (dsc_zero_view(dsc_probe_zero(engine), tensor->group, DSC_PLANE_MASTER, tensor->offset, &count, false, &ptr,
                          NULL) != DSC_OK)
            continue;
        DSC_ASSERT(count == tensor->count);
        r->kept[rank][t] = memcpy(malloc((size_t)count * 4), ptr, (size_t)count * 4);
        r->kept_count[rank][t] = count;
    }
}

static dsc_status train(run *r, dsc_engine *engine, int32_t rank, dsc_error *err)
{
    dsc_comm *const comm = dsc_probe_host_comm(engine, DSC_PROBE_COMM_TENSOR);
    dsc_comm_payload before = { 0 }, after = { 0 };
    int64_t planned = 0;
    for (int64_t s = 0; s < r->steps; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        if (comm != NULL)
            dsc_comm_payload_get(comm, 0, &before);
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (comm != NULL)
            dsc_comm_payload_get(comm, 0, &after);
        if (rank == last_of(r)) {
            r->loss[s] = result.loss;
            r->norm[s] = result.grad_norm;
        }
    }
    DSC_TRY(dsc_probe_tensor_sent_bytes(engine, &planned, err));
    pthread_mutex_lock(&r->lock);
    const int64_t norms = (r->g.tensor - 1) * (int64_t)sizeof(dsc_fixed_sum);
    r->planned = r->planned && (comm == NULL || after.sent - before.sent == planned + norms);
    pthread_mutex_unlock(&r->lock);
    return DSC_OK;
}

static void measure(run *r, dsc_engine *engine)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(engine, &stats);
    pthread_mutex_lock(&r->lock);
    r->balanced = r->balanced && stats.tracked_peak_bytes <= stats.planned_bytes &&
                  stats.planned_bytes - stats.tracked_peak_bytes <= stats.planned_bytes / 100 + 65536;
    pthread_mutex_unlock(&r->lock);
}

static dsc_status go_rank(run *r, dsc_engine *engine, int32_t rank, dsc_error *err)
{
    double loss = 0;
    if (r->load != NULL)
        DSC_TRY(dsc_engine_load(engine, r->load, err));
    DSC_TRY(train(r, engine, rank, err));
    const dsc_data_source source = r->masked ? tiny_gpt_masked_data(r->whole, 6) : tiny_gpt_data(r->whole, 6);
    DSC_TRY(dsc_engine_evaluate(engine, &source, 0, &loss, err));
    if (rank == 0)
        r->evaluated = loss;
    if (r->save != NULL)
        DSC_TRY(dsc_engine_save(engine, r->save, err));
    DSC_TRY(dsc_zero_sync(dsc_probe_zero(engine), err));
    measure(r, engine);
    keep_masters(r, engine, rank);
    return DSC_OK;
}

static void *run_rank(void *argument)
{
    const rank_job *job = argument;
    run *r = job->r;
    char config[1800];
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_model *model = tiny_model_open_part(r->model, r->g.tensor, job->rank % r->g.tensor, &err);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cpu\", \"comm_timeout_s\": 120, \"recompute\": \"%s\","
             " \"grid\": {\"pipeline\": %d, \"tensor\": %d}%s%s}}",
             (int)(PARTS / r->g.data), r->bf16 ? "true" : "false", (int)r->stage, r->stage % 2 == 1 ? "true" : "false",
             r->zero != NULL ? r->zero : "", r->recompute != NULL ? r->recompute : "none", (int)r->g.pipeline,
             (int)r->g.tensor,
             r->odd != NULL && job->rank == last_of(r) ? r->odd
             : r->more != NULL                         ? r->more
                                                       : "",
             r->load != NULL || r->save != NULL ? ", \"save\": \"/nowhere\"" : ""); /* for the plan */
    options.config_text = config;
    options.model = model;
    options.data = r->masked ? tiny_gpt_masked_data(r->whole, 1 << 20) : tiny_gpt_data(r->whole, 1 << 20);
    options.world = r->world;
    options.rank = job->rank;
    options.fail_comm_at = job->rank == last_of(r) ? r->lost : 0;
    dsc_status status = model != NULL ? dsc_engine_open(&engine, &options, &err) : err.status;
    if (status == DSC_OK)
        status = go_rank(r, engine, job->rank, &err);
    pthread_mutex_lock(&r->lock);
    if (status == DSC_ERR_PEER)
        r->of_peer = err;
    if (status != DSC_OK && (r->error.status == DSC_OK || r->error.status == DSC_ERR_PEER))
        r->error = err;
    pthread_mutex_unlock(&r->lock);
    dsc_engine_close(&engine);
    dsc_model_close(&model);
    return NULL;
}

static void go(run *r)
{
    const int32_t ranks = r->g.pipeline * r->g.data * r->g.tensor;
    pthread_t threads[RANKS_MAX];
    rank_job jobs[RANKS_MAX];
    dsc_model *whole = tiny_model_open(r->model, NULL);
    dsc_error err = DSC_ERROR_INIT;
    r->whole = whole;
    r->planned = r->balanced = true;
    DSC_ASSERT(ranks <= RANKS_MAX);
    assert_int_equal(dsc_world_open(ranks, &r->world, &err), DSC_OK);
    pthread_mutex_init(&r->lock, NULL);
    for (int32_t i = 0; i < ranks; i++) {
        jobs[i] = (rank_job) { r, i };
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (int32_t i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&r->lock);
    dsc_world_close(&r->world);
    dsc_model_close(&whole);
}

static void let_go(run *r)
{
    for (int32_t i = 0; i < RANKS_MAX; i++)
        for (int32_t t = 0; t < PARAMS_MAX; t++)
            free(r->kept[i][t]);
}

static void go_well(run *r)
{
    go(r);
    assert_true(r->error.status != DSC_OK || r->balanced);
    if (r->error.status != DSC_OK)
        fail_msg("%d x %d x %d at stage %d: %s: %s", (int)r->g.pipeline, (int)r->g.data, (int)r->g.tensor,
                 (int)r->stage, r->error.where, r->error.message);
}

/* In bf16 products are rounded to 2^-9, on each rank before their sum too. A step of Adam has the rate's size for any
 * gradient, so the difference grows over 20 steps. */
static double bound_of(const run *r) { return r->bf16 ? 2e-2 : 1e-5; }

static void expect_near(const run *one, const run *other)
{
    for (int64_t s = 0; s < other->steps; s++) {
        const double loss = fabs(one->loss[s] - other->loss[s]) / one->loss[s];
        const double norm = fabs(one->norm[s] - other->norm[s]) / one->norm[s];
        if (!(loss <= bound_of(other) && norm <= 10 * bound_of(other)))
            fail_msg("%d x %d x %d, stage %d, step %d: loss %.9g and %.9g, norm %.9g and %.9g", (int)other->g.pipeline,
                     (int)other->g.data, (int)other->g.tensor, (int)other->stage, (int)s, one->loss[s], other->loss[s],
                     one->norm[s], other->norm[s]);
    }
    assert_true(fabs(one->evaluated - other->evaluated) <= bound_of(other) * one->evaluated);
    assert_true(other->planned);
}

/* Gradients of norms and of biases behind sums are equal on all tensor ranks, so these stay equal. */
static void expect_equal_copies(const run *r)
{
    const int32_t ranks = r->g.pipeline * r->g.tensor;
    int compared = 0;
    for (int32_t i = 0; i < ranks; i++)
        for (int32_t t = 0; t < PARAMS_MAX; t++) {
            const float *first = r->kept[i / r->g.tensor * r->g.tensor][t];
            if (r->kept[i][t] == NULL || i % r->g.tensor == 0)
                continue;
            assert_memory_equal(first, r->kept[i][t], (size_t)r->kept_count[i][t] * 4);
            compared++;
        }
    assert_true(compared > 0);
}

static void expect_refusal(const char *model, grid g, const char *more, const char *text)
{
    run r = { .model = model, .g = g, .more = more, .steps = 1 };
    go(&r);
    let_go(&r);
    if (r.error.status == DSC_OK || strstr(r.error.message, text) == NULL)
        fail_msg("got \"%s\" at \"%s\", expected \"%s\"", r.error.message, r.error.where, text);
}

static void twenty_steps_near_one_rank(void **state)
{
    static const grid grids[] = { { 1, 1, 2 }, { 1, 2, 2 }, { 2, 2, 2 }, { 1, 1, 4 } };
    (void)state;
    for (size_t m = 0; m < DSC_COUNT(models); m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            run one = { .model = models[m], .g = { 1, 1, 1 }, .bf16 = bf16 == 1, .steps = STEPS };
            go_well(&one);
            assert_true(one.loss[STEPS - 1] < one.loss[0]);
            for (size_t i = 0; i < DSC_COUNT(grids); i++) {
                run other = one;
                memset(other.kept, 0, sizeof other.kept);
                other.g = grids[i], other.stage = (int32_t)((i + m) % 4);
                go_well(&other);
                expect_near(&one, &other);
                if (other.g.data == 1)
                    expect_equal_copies(&other);
                let_go(&other);
            }
            let_go(&one);
        }
}

/* Ranks have unequal parts of a table of tokens whose number they do not divide. Each has some of the tokens and
 * targets of a batch, but in the large table. */
static void odd_vocabularies_are_shared_out(void **state)
{
    static const char *const odd[] = {
        "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_positions\": 16, \"n_embd\": 24, \"n_head\": 3,"
        " \"n_layer\": 1, \"layer_norm_epsilon\": 1e-5}",
        "{\"model_type\": \"llama\", \"vocab_size\": 62, \"hidden_size\": 24, \"num_hidden_layers\": 1,"
        " \"num_attention_heads\": 3, \"intermediate_size\": 24, \"max_position_embeddings\": 16}"
    };
    (void)state;
    for (size_t m = 0; m < DSC_COUNT(odd); m++) {
        run one = { .model = odd[m], .g = { 1, 1, 1 }, .steps = 3 }, other = one;
        go_well(&one);
        other.g = (grid) { 1, 1, 3 }, other.stage = 1;
        go_well(&other);
        expect_near(&one, &other);
        expect_equal_copies(&other);
        let_go(&one);
        let_go(&other);
    }
    expect_refusal("{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"n_positions\": 16, \"n_embd\": 24, \"n_head\": 4,"
                   " \"n_layer\": 1}",
                   (grid) { 1, 1, 4 }, NULL, "4 tensor ranks cannot share out a table of 3 tokens");
}

/* 65 rows of the table and 64: rows of logits that are aligned to 64 numbers have two lengths. The limit holds 64 rows
 * of rank 0's logits, and all 128 of rank 1's. */
static void losses_are_cut_in_equal_chunks_on_all_ranks(void **state)
{
    static const char *const model =
        "{\"model_type\": \"gpt2\", \"vocab_size\": 129, \"n_positions\": 64, \"n_embd\": 24, \"n_head\": 2,"
        " \"n_layer\": 1, \"layer_norm_epsilon\": 1e-5}";
    (void)state;
    run one = { .model = model, .g = { 1, 1, 1 }, .more = ", \"head_chunk_bytes\": 32768", .steps = 3 }, other = one;
    go_well(&one);
    other.g = (grid) { 1, 1, 2 };
    go_well(&other);
    expect_near(&one, &other);
    expect_equal_copies(&other);
    let_go(&one);
    let_go(&other);
}

/* Stages of ZeRO, recomputation and data ranks change no bit beside the same tensor ranks. */
static void stages_and_recomputation_change_no_bit(void **state)
{
    static const char *const ways[] = { "none", "full", "selective", "kept" };
    (void)state;
    for (size_t m = 0; m < DSC_COUNT(models); m++) {
        run first = {
            .model = models[m], .g = { 1, 1, 2 }, .bf16 = true, .steps = 4, .more = ", \"reproducible\": \"world_size\""
        };
        go_well(&first);
        for (int32_t stage = 0; stage <= 3; stage++) {
            run other = first;
            memset(other.kept, 0, sizeof other.kept);
            other.stage = stage, other.recompute = ways[stage], other.g.data = 1 + stage % 2;
            go_well(&other);
            assert_memory_equal(first.loss, other.loss, 4 * sizeof(double));
            assert_memory_equal(first.norm, other.norm, 4 * sizeof(double));
            assert_true(other.planned);
            let_go(&other);
        }
        let_go(&first);
    }
}

static void masked_targets_are_counted_over_all_samples(void **state)
{
    (void)state;
    run one = { .model = GPT2, .g = { 1, 1, 1 }, .masked = true, .steps = 6 }, other = one;
    go_well(&one);
    other.g = (grid) { 1, 2, 2 }, other.stage = 2;
    memset(other.kept, 0, sizeof other.kept);
    go_well(&other);
    expect_near(&one, &other);
    let_go(&one);
    let_go(&other);
}

/* ---- checkpoints ---- */

static void shell(const char *format, const char *dir)
{
    char command[400];
    snprintf(command, sizeof command, format, dir, dir, dir, dir);
    if (system(command) != 0)
        fail_msg("failed: %s", command);
}

/* First values, saved before a step, are one rank's: files byte for byte. */
static void first_values_are_those_of_one_rank(void **state)
{
    static const grid grids[] = { { 1, 1, 2 }, { 1, 2, 2 }, { 2, 1, 2 }, { 1, 1, 4 } };
    (void)state;
    for (size_t m = 0; m < DSC_COUNT(models); m++) {
        char dir[] = "/tmp/dsc-tensor-XXXXXX", path[64];
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/one", dir);
        run one = { .model = models[m], .g = { 1, 1, 1 }, .bf16 = true, .save = path };
        go_well(&one);
        for (size_t i = 0; i < DSC_COUNT(grids); i++) {
            char other_path[64];
            run other = one;
            memset(other.kept, 0, sizeof other.kept);
            snprintf(other_path, sizeof other_path, "%s/other", dir);
            other.g = grids[i], other.stage = (int32_t)i, other.save = other_path;
            go_well(&other);
            shell("cmp %s/one/step-0/model.safetensors %s/other/step-0/model.safetensors &&"
                  " cmp %s/one/step-0/optimizer.safetensors %s/other/step-0/optimizer.safetensors",
                  dir);
            shell("rm -r %s/other", dir);
            let_go(&other);
        }
        let_go(&one);
        shell("rm -r %s", dir);
    }
}

/* Saved at one grid, loaded at another and saved again there: the same files. Training goes on near one rank's. */
static void checkpoints_load_at_any_grid(void **state)
{
    static const grid grids[] = { { 2, 2, 2 }, { 1, 1, 1 }, { 1, 4, 1 }, { 4, 1, 2 },
                                  { 1, 2, 2 }, { 1, 1, 3 }, { 1, 1, 4 } };
    (void)state;
    char dir[] = "/tmp/dsc-tensor-XXXXXX", from[64], to[64];
    assert_non_null(mkdtemp(dir));
    snprintf(from, sizeof from, "%s/from", dir);
    snprintf(to, sizeof to, "%s/to", dir);
    run first = { .model = TWELVE_HEADS, .g = grids[0], .stage = 2, .bf16 = true, .steps = 3, .save = from };
    go_well(&first);
    for (size_t i = 1; i < DSC_COUNT(grids); i++) {
        run other = {
            .model = TWELVE_HEADS, .g = grids[i], .stage = (int32_t)i % 4, .bf16 = true, .load = from, .save = to
        };
        go_well(&other);
        shell("cmp %s/from/step-3/model.safetensors %s/to/step-3/model.safetensors &&"
              " cmp %s/from/step-3/optimizer.safetensors %s/to/step-3/optimizer.safetensors",
              dir);
        shell("rm -r %s/to", dir);
        let_go(&other);
        run on = {
            .model = TWELVE_HEADS, .g = grids[i], .stage = (int32_t)i % 4, .bf16 = true, .load = from, .steps = 2
        };
        run back = on;
        back.g = grids[0];
        go_well(&on);
        go_well(&back);
        expect_near(&back, &on);
        let_go(&on);
        let_go(&back);
    }
    let_go(&first);
    shell("rm -r %s", dir);
}

/* ---- other features ---- */

/* States and parameters in files or host memory: the same bits, and files, and a load from them. */
static void offloaded_states_change_no_bit(void **state)
{
    static const struct {
        int32_t stage;
        const char *zero;
    } ways[] = {
        { 2, ", \"offload_optimizer\": {\"device\": \"cpu\"}" },
        { 1, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}" },
        { 3, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}" },
    };
    (void)state;
    char dir[] = "/tmp/dsc-tensor-XXXXXX", from[64], to[64];
    assert_non_null(mkdtemp(dir));
    snprintf(from, sizeof from, "%s/from", dir);
    snprintf(to, sizeof to, "%s/to", dir);
    run first = { .model = models[1], .g = { 1, 2, 2 }, .stage = 2, .bf16 = true, .steps = 3, .save = from };
    run after = { .model = models[1], .g = { 1, 2, 2 }, .stage = 2, .bf16 = true, .steps = 2, .load = from };
    go_well(&first);
    go_well(&after);
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        run other = { .model = models[1], .g = { 1, 2, 2 }, .bf16 = true, .steps = 3, .save = to };
        run back = { .model = models[1], .g = { 1, 2, 2 }, .bf16 = true, .steps = 2, .load = to };
        other.stage = back.stage = ways[i].stage, other.zero = back.zero = ways[i].zero;
        go_well(&other);
        go_well(&back);
        assert_memory_equal(first.loss, other.loss, 3 * sizeof(double));
        assert_memory_equal(first.norm, other.norm, 3 * sizeof(double));
        assert_memory_equal(after.loss, back.loss, 2 * sizeof(double));
        shell("cmp %s/from/step-3/model.safetensors %s/to/step-3/model.safetensors &&"
              " cmp %s/from/step-3/optimizer.safetensors %s/to/step-3/optimizer.safetensors",
              dir);
        shell("rm -r %s/to", dir);
        let_go(&other);
        let_go(&back);
    }
    let_go(&first);
    let_go(&after);
    shell("rm -r %s", dir);
}

/* Layers that are not trained have no gradients to add, and their norms are not in the sum of squares. */
static void frozen_layers_are_those_of_one_rank(void **state)
{
    static const char *const frozen[] = { ", \"freeze\": [\"*layers.0.*\"]", ", \"freeze\": [\"*embed_tokens*\"]" };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(frozen); i++) {
        run one = { .model = models[2], .g = { 1, 1, 1 }, .more = frozen[i], .steps = 6 }, other = one;
        go_well(&one);
        other.g = (grid) { 2, 2, 2 }, other.stage = 1 + (int32_t)i * 2;
        go_well(&other);
        expect_near(&one, &other);
        let_go(&one);
        let_go(&other);
    }
}

/* ---- refusals ---- */

static void tensor_ranks_refuse_sizes_and_features_by_name(void **state)
{
    (void)state;
    expect_refusal("{\"model_type\": \"gpt2\", \"vocab_size\": 61, \"n_positions\": 16, \"n_embd\": 48, \"n_head\": 12,"
                   " \"n_layer\": 1}",
                   (grid) { 1, 1, 5 }, NULL,
                   "5 tensor ranks cannot share out 12 heads with 12 of keys and values; sizes that work: 1, 2, 3, 4, "
                   "6, 12");
    expect_refusal("{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 1,"
                   " \"num_attention_heads\": 4, \"intermediate_size\": 87, \"max_position_embeddings\": 16}",
                   (grid) { 1, 1, 2 }, NULL, "2 tensor ranks do not divide the 87 inner columns");
    expect_refusal("{\"model_type\": \"opt\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 1,"
                   " \"num_attention_heads\": 4, \"ffn_dim\": 88, \"max_position_embeddings\": 16}",
                   (grid) { 1, 1, 2 }, NULL, "2 tensor ranks do not work with this family");
    expect_refusal(GPT2, (grid) { 1, 1, 2 }, ", \"ema\": {\"decay\": 0.9}", "2 tensor ranks do not work with dsc.ema");
    expect_refusal(GPT2, (grid) { 1, 1, 2 }, ", \"save_async\": true",
                   "2 tensor ranks do not work with dsc.save_async");
    expect_refusal(GPT2, (grid) { 1, 1, 2 }, ", \"elastic\": {\"mirror_every\": 1}",
                   "states do not move to another number of ranks");
}

static void other_exchanges_are_seen_at_open(void **state)
{
    static const char *const odd[] = { ", \"micro_batches_together\": 2", ", \"head_chunk_bytes\": 32768" };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(odd); i++) {
        run r = { .model = GPT2, .g = { 1, 1, 2 }, .more = "", .odd = odd[i], .steps = 1 };
        go(&r);
        let_go(&r);
        if (r.error.status != DSC_ERR_CONFIG ||
            strstr(r.error.message, "rank 1 has other exchanges than rank 0") == NULL)
            fail_msg("%s: got \"%s\"", odd[i], r.error.message);
    }
}

static void a_lost_rank_is_named_with_its_places(void **state)
{
    (void)state;
    run r = { .model = GPT2, .g = { 1, 2, 2 }, .steps = STEPS, .lost = 30 };
    go(&r);
    let_go(&r);
    assert_int_not_equal(r.error.status, DSC_OK);
    if (strstr(r.of_peer.message, "lost stage 0, data rank 1, tensor rank 1") == NULL)
        fail_msg("got \"%s\"", r.of_peer.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twenty_steps_near_one_rank),
        cmocka_unit_test(odd_vocabularies_are_shared_out),
        cmocka_unit_test(losses_are_cut_in_equal_chunks_on_all_ranks),
        cmocka_unit_test(stages_and_recomputation_change_no_bit),
        cmocka_unit_test(masked_targets_are_counted_over_all_samples),
        cmocka_unit_test(first_values_are_those_of_one_rank),
        cmocka_unit_test(checkpoints_load_at_any_grid),
        cmocka_unit_test(offloaded_states_change_no_bit),
        cmocka_unit_test(frozen_layers_are_those_of_one_rank),
        cmocka_unit_test(tensor_ranks_refuse_sizes_and_features_by_name),
        cmocka_unit_test(other_exchanges_are_seen_at_open),
        cmocka_unit_test(a_lost_rank_is_named_with_its_places),
    };
    return cmocka_run_group_tests_name("tensor ranks", tests, NULL, NULL);
}

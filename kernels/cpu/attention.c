/* attention.c - cuts attention into parts for the thread pool. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/attention_workers.h"
#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

/* One call: items are handed to workers as they become free. A worker, not a thread, owns a part of the scratch: a
 * thread's number says nothing when the caller is itself inside a parallel region. */
typedef struct attention_job {
    const void *args;
    const dsc_attention_ops *ops;
    int64_t items, next; /* next: taken atomically */
    int64_t worker_bytes;
    int64_t tiles;       /* query tiles of a head */
    int64_t parts;       /* forward: items of a head */
    bool split;          /* backward: see below */
} attention_job;

static int64_t job_take(attention_job *job) { return __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED); }

static float *job_scratch(const attention_job *job, void *scratch, int64_t worker)
{
    return (float *)(void *)((char *)scratch + worker * job->worker_bytes);
}

static void job_run(attention_job *job, int64_t workers, const dsc_cpu_threads *pool, dsc_thread_pool_fn fn)
{
    const int64_t count = dsc_min_i64(dsc_min_i64(pool->threads, workers), job->items);
    dsc_thread_pool_run(pool, count, fn, job);
}

static bool is_balanced(int64_t items, int64_t threads, int64_t percent)
{
    return 100 * threads * dsc_div_ceil(items, threads) <= percent * items;
}

/* ---- forward: an item is a head or, when heads do not spread evenly over the pool, one query tile of it ---- */

static void forward_worker(void *ctx, int64_t first, int64_t last)
{
    attention_job *job = ctx;
    const dsc_attention_fwd_args *a = job->args;
    for (int64_t worker = first; worker < last; worker++)
        for (int64_t item = job_take(job); item < job->items; item = job_take(job)) {
            const int64_t heads = (int64_t)a->batch * a->heads;
            const int64_t part = job->parts - 1 - item / heads; /* the last tiles have most keys: start them first */
            const int64_t pair = item % heads, each = job->tiles / job->parts;
            job->ops->forward(a, (int32_t)(pair / a->heads), (int32_t)(pair % a->heads), (int32_t)(part * each),
                              (int32_t)((part + 1) * each), job_scratch(job, a->scratch, worker));
        }
}

static void check_keys(const dsc_attention_keys *keys, int32_t batch, bool forward)
{
    DSC_ASSERT(keys->window >= 0 && keys->past >= 0);
    DSC_ASSERT(keys->past == 0 || (forward && batch == 1 && !keys->all && keys->positions == NULL));
    DSC_ASSERT(keys->tokens == NULL || (keys->all && !dsc_attention_has_limits(keys)));
}

static void check_logits(const dsc_attention_logits *logits) { DSC_ASSERT(logits->softcap >= 0 && logits->alibi >= 0); }

static dsc_status check_dtype(dsc_dtype dtype, dsc_error *err)
{
    if (!dsc_dtype_computes(dtype))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "ATTENTION", "no attention on dtype %d", (int)dtype);
    return DSC_OK;
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, const dsc_attention_ops *ops)
{
    const dsc_attention_fwd_args *a = args;
    DSC_ASSERT(a->kv_heads >= 1 && a->heads % a->kv_heads == 0);
    DSC_ASSERT(a->batch >= 1 && a->tokens >= 1 && a->heads >= 1 && a->head_size >= 1);
    DSC_ASSERT(a->scale > 0);
    DSC_ASSERT(a->scratch != NULL);
    check_keys(&a->keys, a->batch, true);
    check_logits(&a->logits);
    const dsc_status status = check_dtype(a->dtype, err);
    if (status != DSC_OK)
        return status;
    const int64_t heads = (int64_t)a->batch * a->heads, tiles = dsc_attention_tiles(a->tokens);
    attention_job job = {
        .args = a, .ops = ops, .tiles = tiles, .worker_bytes = dsc_attention_fwd_worker_bytes(a->tokens, a->head_size)
    };
    const int64_t workers = dsc_attention_workers(a->batch, a->tokens, a->heads);
    job.parts = is_balanced(heads, dsc_min_i64(pool->threads, workers), 110) ? 1 : tiles;
    job.items = heads * job.parts;
    job_run(&job, workers, pool, forward_worker);
    return DSC_OK;
}

/* ---- backward: an item is a whole group of heads that share a key head: five products a tile. When groups do not
 * spread evenly over the pool, items are single key tiles (dk, dv: four products) and single query tiles (dq: three).
 * Every element sums the same terms in the same order either way, so the number of threads may decide. ---- */

static void backward_group(const attention_job *job, int64_t item, float *scratch)
{
    const dsc_attention_bwd_args *a = job->args;
    const int32_t group = a->heads / a->kv_heads, head = (int32_t)(item % a->kv_heads) * group;
    const dsc_attention_bwd_part part = { .batch = (int32_t)(item / a->kv_heads), .head_first = head,
                                          .head_last = head + group, .key_last = (int32_t)job->tiles,
                                          .query_last = (int32_t)job->tiles, .want_dq = true, .want_dkv = true };
    job->ops->backward(a, &part, scratch);
}

static void backward_tile(const attention_job *job, int64_t item, float *scratch)
{
    const dsc_attention_bwd_args *a = job->args;
    const int64_t groups = (int64_t)a->batch * a->kv_heads, key_items = groups * job->tiles;
    dsc_attention_bwd_part part = { .want_dq = item >= key_items, .want_dkv = item < key_items };
    if (part.want_dkv) {
        const int32_t group = a->heads / a->kv_heads;
        part.key_first = (int32_t)(item / groups); /* the first tiles have most queries: start them first */
        part.key_last = part.key_first + 1;
        part.query_first = a->keys.all ? 0 : part.key_first;
        part.query_last = (int32_t)job->tiles;
        part.batch = (int32_t)(item % groups / a->kv_heads);
        part.head_first = (int32_t)(item % groups % a->kv_heads) * group;
        part.head_last = part.head_first + group;
    } else {
        const int64_t heads = (int64_t)a->batch * a->heads, rest = item - key_items;
        part.query_first = (int32_t)(job->tiles - 1 - rest / heads);
        part.query_last = part.query_first + 1;
        part.key_last = a->keys.all ? (int32_t)job->tiles : part.query_last;
        part.batch = (int32_t)(rest % heads / a->heads);
        part.head_first = (int32_t)(rest % heads % a->heads);
        part.head_last = part.head_first + 1;
    }
    job->ops->backward(a, &part, scratch);
}

static void backward_worker(void *ctx, int64_t first, int64_t last)
{
    attention_job *job = ctx;
    const dsc_attention_bwd_args *a = job->args;
    for (int64_t worker = first; worker < last; worker++) {
        float *scratch = job_scratch(job, a->scratch, worker);
        for (int64_t item = job_take(job); item < job->items; item = job_take(job))
            if (job->split)
                backward_tile(job, item, scratch);
            else
                backward_group(job, item, scratch);
    }
}

/* ---- gradients of sinks: a head is added up by one thread, over samples and tokens in order ---- */

static float sink_gradient(const dsc_attention_bwd_args *a, int64_t head)
{
    const float sink = dsc_get(a->sinks, head, a->dtype);
    double sum = 0;
    for (int64_t row = 0; row < (int64_t)a->batch * a->tokens; row++) {
        const int64_t batch = row / a->tokens, at = row * a->out_stride + head * a->head_size;
        float delta = 0;
        for (int64_t i = 0; i < a->head_size; i++)
            delta += dsc_get(a->d_out, at + i, a->dtype) * dsc_get(a->out, at + i, a->dtype);
        sum -= (double)(expf(sink - a->lse[(batch * a->heads + head) * a->tokens + row % a->tokens]) * delta);
    }
    return (float)sum;
}

static void sinks_worker(void *ctx, int64_t first, int64_t last)
{
    const dsc_attention_bwd_args *a = ctx;
    for (int64_t head = first; head < last; head++)
        a->d_sinks[head] = sink_gradient(a, head);
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, const dsc_attention_ops *ops)
{
    const dsc_attention_bwd_args *a = args;
    DSC_ASSERT(a->kv_heads >= 1 && a->heads % a->kv_heads == 0);
    DSC_ASSERT(a->batch >= 1 && a->tokens >= 1 && a->heads >= 1 && a->head_size >= 1);
    DSC_ASSERT(a->scale > 0);
    DSC_ASSERT(a->scratch != NULL);
    check_keys(&a->keys, a->batch, false);
    check_logits(&a->logits);
    const dsc_status status = check_dtype(a->dtype, err);
    if (status != DSC_OK)
        return status;
    const int64_t groups = (int64_t)a->batch * a->kv_heads, heads = (int64_t)a->batch * a->heads;
    attention_job job = { .args = a,
                          .ops = ops,
                          .tiles = dsc_attention_tiles(a->tokens),
                          .worker_bytes = dsc_attention_bwd_worker_bytes(a->tokens, a->head_size) };
    const int64_t workers = dsc_attention_workers(a->batch, a->tokens, a->heads);
    job.split = !is_balanced(groups, dsc_min_i64(pool->threads, workers), 150); /* 7 products for 5, and more packing */
    job.items = job.split ? (groups + heads) * job.tiles : groups;
    job_run(&job, workers, pool, backward_worker);
    if (a->sinks != NULL && a->d_sinks != NULL)
        dsc_thread_pool_run(pool, a->heads, sinks_worker, (void *)(uintptr_t)a);
    return DSC_OK;
}

#define ATTENTION_VARIANT(name, any_ops, bf16_ops)                                                                     \
    static dsc_status forward_##name(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                    \
    {                                                                                                                  \
        const bool bf16 = ((const dsc_attention_fwd_args *)args)->dtype == DSC_BF16;                                   \
        return forward(args, pool, err, bf16 ? &(bf16_ops) : &(any_ops));                                              \
    }                                                                                                                  \
    static dsc_status backward_##name(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                   \
    {                                                                                                                  \
        const bool bf16 = ((const dsc_attention_bwd_args *)args)->dtype == DSC_BF16;                                   \
        return backward(args, pool, err, bf16 ? &(bf16_ops) : &(any_ops));                                             \
    }                                                                                                                  \
    static void table_##name(dsc_kernel_table *table)                                                                  \
    {                                                                                                                  \
        table->fn[DSC_KERNEL_ATTENTION_FWD] = forward_##name;                                                          \
        table->fn[DSC_KERNEL_ATTENTION_BWD] = backward_##name;                                                         \
    }
ATTENTION_VARIANT(ref, dsc_attention_ref, dsc_attention_ref)
ATTENTION_VARIANT(avx2, dsc_attention_avx2, dsc_attention_avx2)
ATTENTION_VARIANT(avx512, dsc_attention_avx512, dsc_attention_avx512)
ATTENTION_VARIANT(avx512bf16, dsc_attention_avx512, dsc_attention_avx512bf16)

void dsc_attention_init(dsc_kernel_table *table, uint32_t caps)
{
    table_ref(table);
    if ((caps & DSC_CPU_AVX2) != 0)
        table_avx2(table);
    if ((caps & DSC_CPU_AVX512) != 0)
        table_avx512(table);
    if ((caps & DSC_CPU_AVX512_BF16) != 0)
        table_avx512bf16(table);
}

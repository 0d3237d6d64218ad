/* attention_plan.cu - see attention_plan.h.
 *
 * No GPU of ours has run the kernel of warpgroups, so nothing is taken for granted: both kernels get the same random
 * input, made so that a few keys decide each row, and each number of both results is compared. What differs by more
 * than the rounding of the probabilities and of the result to bf16 explains is a kernel that does not work here, and is
 * never taken. Both add up in the same order; where that gives the same bits, DSC_GEMM_SAME_BITS may take either. Then
 * both are timed in turns. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/plan_text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"

/* Plain bytes, compared as such: no padding. */
typedef struct attention_key {
    int64_t q_stride, kv_stride, out_stride, head_stride;
    int32_t batch, tokens, heads, kv_heads, size, window;
    uint8_t all, hides, documents, zero[5];
} attention_key;

typedef struct attention_plan {
    attention_key key;
    dsc_attention_fwd_args shape; /* without pointers */
    bool given;                   /* what it takes is that of a text: not to be measured */
    bool sm90;                    /* what it takes */
} attention_plan;

enum { PLANS_MAX = 32 }; /* a model's layers have one shape or two */

struct dsc_cuda_attention {
    dsc_alloc *alloc;
    void *encode; /* of dsc_cuda_attention_sm90_find; NULL: there is nothing to choose */
    pthread_mutex_t lock;
    attention_plan plans[PLANS_MAX];
    int32_t count;
};

namespace {

attention_key key_of(const dsc_attention_fwd_args *a)
{
    attention_key key;
    memset(&key, 0, sizeof key);
    key.q_stride = a->q_stride, key.kv_stride = a->kv_stride, key.out_stride = a->out_stride;
    key.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    key.batch = a->batch, key.tokens = a->tokens, key.heads = a->heads, key.kv_heads = a->kv_heads;
    key.size = a->head_size, key.window = a->keys.all ? 0 : a->keys.window;
    key.documents = !a->keys.all && a->keys.positions != NULL;
    key.all = a->keys.all, key.hides = a->keys.all && a->keys.tokens != NULL;
    return key;
}

attention_plan *find(dsc_cuda_attention *x, const attention_key *key)
{
    for (int32_t i = 0; i < x->count; i++)
        if (memcmp(&x->plans[i].key, key, sizeof *key) == 0)
            return &x->plans[i];
    return NULL;
}

/* ---- operands ---- */

enum { COMPARE_BLOCKS = 64, COMPARE_THREADS = 256 };
/* All shapes together; what has not been measured by then takes the kernel of warps. */
constexpr int64_t BUDGET_NS = INT64_C(2000000000);
/* Values lie in [-1, 1): so do results, and the rounding of probabilities moves one by at most 2^-8 in each of both
 * kernels. Storing a result costs 2^-8 of it, twice too. */
constexpr float OUT_NEAR = 1.0f / 128, OUT_NEAR_RELATIVE = 1.0f / 128;
/* Log-sum-exps are fp32; scores of up to some hundreds of terms of at most 8. */
constexpr float LSE_NEAR = 1.0f / 1024;
/* Queries in [-8, 8): with keys in [-1, 1) and a scale of 1 / sqrt(D), a row's few largest scores decide. */
constexpr float QUERY_RANGE = 8;

struct fill_op {
    uint16_t *to;
    uint64_t seed;
    float range;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = element<uint16_t>::from(range * random_of(seed + static_cast<uint64_t>(i + k)));
    }
};

/* A quarter of the keys is hidden, and never a sample's first. */
struct hide_op {
    int32_t *to;
    int32_t tokens, hidden;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = (i + k) % tokens != 0 && random_of(static_cast<uint64_t>(i + k)) > 0.5f ? hidden : hidden ^ 1;
    }
};

/* Documents of 96 tokens. */
struct place_op {
    int32_t *to;
    int32_t tokens;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = static_cast<int32_t>((i + k) % tokens) % 96;
    }
};

/* Numbers whose bits differ; those that are further apart than explained. */
typedef struct differences { unsigned other_bits, far; } differences;

typedef struct operands {
    uint16_t *q, *k, *v, *out[2]; /* [0]: of the kernel of warps */
    float *lse[2];
    int32_t *tokens, *positions; /* of dsc_attention_keys */
    differences *found;
    int64_t q_count, kv_count, out_count, lse_count, token_count, position_count;
} operands;

template <class T> T *cut(char **at, int64_t count)
{
    T *const x = reinterpret_cast<T *>(*at);
    *at += dsc_align_up(count * static_cast<int64_t>(sizeof(T)), 256);
    return count > 0 ? x : NULL;
}

/* False: there is no room. */
bool lay_out(const attention_plan *p, char *memory, int64_t memory_bytes, operands *o)
{
    const attention_key *k = &p->key;
    const int64_t rows = static_cast<int64_t>(k->batch) * k->tokens;
    char *at = memory;
    if (memory == NULL)
        return false;
    o->q_count = rows * k->q_stride, o->kv_count = rows * k->kv_stride, o->out_count = rows * k->out_stride;
    o->lse_count = rows * k->heads, o->token_count = k->hides ? rows : 0;
    o->position_count = k->documents ? rows : 0;
    o->q = cut<uint16_t>(&at, o->q_count);
    o->k = cut<uint16_t>(&at, o->kv_count);
    o->v = cut<uint16_t>(&at, o->kv_count);
    for (int i = 0; i < 2; i++) {
        o->out[i] = cut<uint16_t>(&at, o->out_count);
        o->lse[i] = cut<float>(&at, o->lse_count);
    }
    o->tokens = cut<int32_t>(&at, o->token_count);
    o->positions = cut<int32_t>(&at, o->position_count);
    o->found = cut<differences>(&at, 1);
    return at - memory <= memory_bytes;
}

void fill(const dsc_cuda_launch *at, const attention_plan *p, const operands *o)
{
    each<8>(at, fill_op{ o->q, UINT64_C(1) << 40, QUERY_RANGE }, o->q_count, true);
    each<8>(at, fill_op{ o->k, UINT64_C(2) << 40, 1 }, o->kv_count, true);
    each<8>(at, fill_op{ o->v, UINT64_C(3) << 40, 1 }, o->kv_count, true);
    each<4>(at, hide_op{ o->tokens, p->key.tokens, p->shape.keys.hidden }, o->token_count, true);
    each<4>(at, place_op{ o->positions, p->key.tokens }, o->position_count, true);
}

/* ---- one kernel ---- */

typedef struct bench {
    const dsc_cuda_launch *at;
    dsc_gemm_choice choice;
    int64_t start_ns;
    stopwatch watch;
} bench;

dsc_status cuda_try(cudaError_t error, const char *what, dsc_error *err)
{
    return measure_try("ATTENTION", error, what, err);
}

dsc_status run(const bench *b, const attention_plan *p, const operands *o, int which, dsc_error *err)
{
    dsc_attention_fwd_args a = p->shape;
    a.q = o->q, a.k = o->k, a.v = o->v, a.out = o->out[which], a.lse = o->lse[which];
    a.keys.tokens = o->tokens, a.keys.positions = o->positions;
    DSC_TRY(which == 0 ? dsc_cuda_attention_fwd_warps(b->at, &a, err)
                       : dsc_cuda_attention_fwd_sm90(b->at, &a, b->at->attention->encode, err));
    return cuda_try(cudaGetLastError(), "a launch", err);
}

__device__ __forceinline__ void compare(differences *mine, uint32_t a_bits, uint32_t b_bits, float a, float b,
                                        float near)
{
    mine->other_bits += a_bits != b_bits;
    mine->far += !(fabsf(a - b) <= near); /* NaN is far */
}

/* Integers: the order in which blocks add does not matter. */
__global__ void compare_kernel(const operands o, int64_t columns, int64_t out_stride)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * COMPARE_THREADS + threadIdx.x;
    const int64_t step = static_cast<int64_t>(gridDim.x) * COMPARE_THREADS;
    const int64_t rows = o.out_count / out_stride;
    differences mine = { 0, 0 };
    for (int64_t i = first; i < rows * columns; i += step) {
        const int64_t at = i / columns * out_stride + i % columns;
        const uint16_t x = o.out[0][at], y = o.out[1][at];
        const float a = to_f32(x), b = to_f32(y);
        compare(&mine, x, y, a, b, OUT_NEAR + OUT_NEAR_RELATIVE * fmaxf(fabsf(a), fabsf(b)));
    }
    for (int64_t i = first; i < o.lse_count; i += step) {
        const float a = o.lse[0][i], b = o.lse[1][i];
        compare(&mine, __float_as_uint(a), __float_as_uint(b), a, b, LSE_NEAR);
    }
    if (mine.other_bits > 0)
        atomicAdd(&o.found->other_bits, mine.other_bits);
    if (mine.far > 0)
        atomicAdd(&o.found->far, mine.far);
}

/* Runs both on the same input. What a kernel leaves unwritten is NaN. */
dsc_status try_out(const bench *b, const attention_plan *p, const operands *o, differences *found, dsc_error *err)
{
    const cudaStream_t stream = b->at->stream;
    for (int which = 0; which < 2; which++) {
        DSC_TRY(cuda_try(cudaMemsetAsync(o->out[which], 0xff, static_cast<size_t>(2 * o->out_count), stream), "filling",
                         err));
        DSC_TRY(cuda_try(cudaMemsetAsync(o->lse[which], 0xff, static_cast<size_t>(4 * o->lse_count), stream), "filling",
                         err));
        DSC_TRY(run(b, p, o, which, err));
    }
    DSC_TRY(cuda_try(cudaMemsetAsync(o->found, 0, sizeof *o->found, stream), "filling", err));
    DSC_CUDA_LAUNCH(compare_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, stream, *o,
                    static_cast<int64_t>(p->key.heads) * p->key.size, p->key.out_stride);
    DSC_TRY(cuda_try(cudaGetLastError(), "a launch", err));
    DSC_TRY(cuda_try(cudaMemcpyAsync(found, o->found, sizeof *found, cudaMemcpyDeviceToHost, stream), "a copy", err));
    return cuda_try(cudaStreamSynchronize(stream), "a kernel", err);
}

dsc_status race(const bench *b, const attention_plan *p, const operands *o, float (&best)[2], dsc_error *err)
{
    for (int round = 0; round < MEASURE_ROUNDS; round++)
        for (int which = 0; which < 2; which++) {
            float ms = 0;
            DSC_TRY(cuda_try(watch_start(&b->watch, b->at->stream), "an event", err));
            DSC_TRY(run(b, p, o, which, err));
            DSC_TRY(cuda_try(watch_stop(&b->watch, b->at->stream, &ms), "a kernel", err));
            best[which] = round == 0 || ms < best[which] ? ms : best[which];
        }
    return DSC_OK;
}

/* ---- one shape ---- */

dsc_status choose(const bench *b, attention_plan *p, const operands *o, dsc_attention_measured *out, dsc_error *err)
{
    differences found = { 0, 0 };
    float ms[2];
    fill(b->at, p, o);
    DSC_TRY(try_out(b, p, o, &found, err));
    out->measured++;
    out->wrong += found.far > 0;
    if (found.far > 0)
        return DSC_OK;
    DSC_TRY(race(b, p, o, ms, err));
    const bool is_faster = ms[1] < MEASURE_WORTH * ms[0];
    p->sm90 = is_faster && (found.other_bits == 0 || b->choice == DSC_GEMM_FASTEST);
    out->changed += p->sm90;
    out->left += is_faster && !p->sm90;
    return DSC_OK;
}

dsc_status measure_all(const bench *b, char *memory, int64_t memory_bytes, dsc_attention_measured *out, dsc_error *err)
{
    dsc_cuda_attention *x = b->at->attention;
    for (int32_t i = 0; i < x->count; i++) {
        operands o;
        if (x->plans[i].given)
            continue;
        out->shapes++;
        if (dsc_clock_ns() - b->start_ns > BUDGET_NS || !lay_out(&x->plans[i], memory, memory_bytes, &o))
            continue;
        DSC_TRY(choose(b, &x->plans[i], &o, out, err));
    }
    return DSC_OK;
}

/* ---- as text ---- */

enum { LINE_BYTES = 256 };

/* Everything of the key: two plans of one text would be one plan. */
void line_of(const attention_key *k, bool sm90, char line[LINE_BYTES])
{
    const char *const keys = k->all ? k->hides ? "all but hidden" : "all" : k->documents ? "documents" : "causal";
    snprintf(line, LINE_BYTES,
             "attention %dx%d heads %d/%d of %d ld %" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 " %s window %d by %s",
             static_cast<int>(k->batch), static_cast<int>(k->tokens), static_cast<int>(k->heads),
             static_cast<int>(k->kv_heads), static_cast<int>(k->size), k->q_stride, k->kv_stride, k->out_stride,
             k->head_stride, keys, static_cast<int>(k->window), sm90 ? "warpgroups" : "warps");
}

} // namespace

dsc_status dsc_cuda_attention_open(dsc_alloc *alloc, int32_t arch, dsc_cuda_attention **out, dsc_error *err)
{
    dsc_cuda_attention *x = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *x, &x, err));
    x->alloc = alloc;
    x->encode = arch == 90 ? dsc_cuda_attention_sm90_find() : NULL;
    pthread_mutex_init(&x->lock, NULL); /* cannot fail with default attributes on Linux */
    *out = x;
    return DSC_OK;
}

void dsc_cuda_attention_close(dsc_cuda_attention **attention)
{
    dsc_cuda_attention *x = *attention;
    if (x == NULL)
        return;
    pthread_mutex_destroy(&x->lock);
    dsc_alloc_free(x->alloc, x);
    *attention = NULL;
}

void dsc_cuda_attention_prepare(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape)
{
    dsc_attention_fwd_args a = *shape;
    const attention_key key = key_of(&a);
    a.out = NULL, a.lse = NULL, a.q = a.k = a.v = NULL, a.scratch = NULL, a.keys.tokens = a.keys.positions = NULL;
    if (x->encode == NULL || !dsc_cuda_attention_sm90_fits(&a))
        return;
    pthread_mutex_lock(&x->lock);
    if (find(x, &key) == NULL && x->count < PLANS_MAX) {
        x->plans[x->count] = {};
        x->plans[x->count].key = key;
        x->plans[x->count++].shape = a;
    }
    pthread_mutex_unlock(&x->lock);
}

void *dsc_cuda_attention_chosen(dsc_cuda_attention *x, const dsc_attention_fwd_args *a)
{
    if (x->encode == NULL || !dsc_cuda_attention_sm90_fits(a))
        return NULL;
    const attention_key key = key_of(a);
    pthread_mutex_lock(&x->lock);
    const attention_plan *p = find(x, &key);
    void *const encode = p != NULL && p->sm90 ? x->encode : NULL;
    pthread_mutex_unlock(&x->lock);
    return encode;
}

dsc_status dsc_cuda_attention_measure(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes,
                                      dsc_gemm_choice choice, dsc_attention_measured *out, dsc_error *err)
{
    bench b = { at, choice, dsc_clock_ns(), {} };
    DSC_ASSERT(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    dsc_status status = cuda_try(watch_open(&b.watch), "an event", err);
    if (status == DSC_OK) {
        pthread_mutex_lock(&at->attention->lock);
        status = measure_all(&b, static_cast<char *>(memory), memory_bytes, out, err);
        pthread_mutex_unlock(&at->attention->lock);
    }
    watch_close(&b.watch);
    return status;
}

void dsc_cuda_attention_plans_get(dsc_cuda_attention *x, char *text, int64_t room, int64_t *bytes)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        line_of(&x->plans[i].key, x->plans[i].sm90, line);
        put_line(line, text, room, bytes);
    }
    pthread_mutex_unlock(&x->lock);
}

void dsc_cuda_attention_plans_set(dsc_cuda_attention *x, const char *text, int64_t *others)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        bool found = false;
        for (int sm90 = 0; sm90 < 2 && !found && text != NULL; sm90++) {
            line_of(&x->plans[i].key, sm90 != 0, line);
            found = has_line(text, line);
            if (found)
                x->plans[i].sm90 = sm90 != 0;
        }
        x->plans[i].given = x->plans[i].given || found;
        *others += !found;
    }
    pthread_mutex_unlock(&x->lock);
}

/* gemm_measure.cu - chooses the algorithm of cuBLASLt for a product. Each algorithm is run on operands of the product's
 * own size and timed by events. The runs alternate, so a GPU that warms up or slows down affects all algorithms
 * equally.
 *
 * Two fresh runs may measure differently. So that their bits do not differ too, DSC_GEMM_SAME_BITS only accepts
 * algorithms whose whole result has the bits of the library's first choice. These algorithms add the K terms in the
 * same order: most tile shapes, but no other K split. A rounding to bf16 would hide nearly every other order, so
 * the operands are random but cancel. Each term of a sum comes a second time with the other sign, and the result
 * consists only of the rounding errors of that order. Beside such a sum an addend is large and hides it, so nothing is
 * added. Such a sum has few digits, which a rounding to 16 bits keeps. So products with an epilogue or an addend have a
 * second trial, with random operands and addends of like size. An algorithm that rounds the sum to 16 bits before it
 * adds or multiplies has other bits there.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/measure.h"

#include "base/clock.h"

namespace {

enum { SUM_BLOCKS = 64, SUM_THREADS = 256 };
/* All products together; what has not been measured by then keeps the library's first choice. */
constexpr int64_t BUDGET_NS = INT64_C(10000000000);
/* One that takes longer than this against the best in the first round is not run again. */
constexpr float HOPELESS = 1.5f;

/* ---- operands and their sums ---- */

/* Fill of a matrix: random numbers of [-1, 1), each term k of a sum as its mirror image K - 1 - k. In one of the two
 * operands the mirror image is negated, and the middle is 0. */
typedef struct pattern {
    uint64_t seed;
    int64_t ld, terms; /* terms = 0: no sum runs over it */
    bool term_is_row, cancels;
} pattern;

template <class T> struct fill_op {
    T *to;
    pattern p;
    __device__ __forceinline__ float at(int64_t i) const
    {
        float sign = 1.0f;
        if (p.terms > 0) {
            const int64_t row = i / p.ld, col = i - row * p.ld, term = p.term_is_row ? row : col;
            const int64_t mirror = p.terms - 1 - term;
            if (p.cancels && mirror <= term)
                sign = mirror == term ? 0.0f : -1.0f;
            if (mirror < term)
                i += (mirror - term) * (p.term_is_row ? p.ld : 1);
        }
        return sign * random_of(p.seed + static_cast<uint64_t>(i));
    }
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = element<T>::from(at(i + k));
    }
};

/* A sum of the words that a changed, moved or missing one changes. Integers: the order does not matter. One barrier: a
 * tree would have the simulator switch threads for each of its levels. */
__global__ void sum_kernel(const uint32_t *words, int64_t count, uint64_t *sums)
{
    __shared__ uint64_t part[SUM_THREADS];
    uint64_t sum = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * SUM_THREADS + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * SUM_THREADS)
        sum += mix(static_cast<uint64_t>(i) << 32 ^ words[i]);
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int t = 1; t < SUM_THREADS; t++)
        sum += part[t];
    sums[blockIdx.x] = sum;
}

/* Numbers of fp8. */
struct e4m3_bits {
    uint8_t bits;
};
struct e5m2_bits {
    uint8_t bits;
};
template <> struct element<e4m3_bits> {
    static __device__ __forceinline__ e4m3_bits from(float x)
    {
        return { static_cast<uint8_t>(pack_fp8<true>(x, 0.0f)) };
    }
};
template <> struct element<e5m2_bits> {
    static __device__ __forceinline__ e5m2_bits from(float x)
    {
        return { static_cast<uint8_t>(pack_fp8<false>(x, 0.0f)) };
    }
};

typedef struct matrix {
    void *ptr;
    int64_t bytes; /* a multiple of 256: what lies behind the elements is filled and summed with them */
    uint8_t dtype, fp8;
} matrix;

typedef struct operands {
    matrix a, b, c, bias, aux;
    matrix column;    /* the sums that the product gives beside C */
    uint64_t *checks; /* [SUM_BLOCKS] */
    dsc_fp8_scale *scale; /* 1, of both operands in fp8 */
    matrix a_steps, b_steps; /* 1, of blocks */
} operands;

typedef struct bench {
    const dsc_cuda_launch *at;
    dsc_gemm_choice choice;
    int64_t start_ns;
    stopwatch watch;
} bench;

dsc_status cuda_try(cudaError_t error, const char *what, dsc_error *err)
{
    return measure_try("GEMM", error, what, err);
}

/* The next matrix of `memory`; one of no rows takes nothing. */
matrix cut(char **at, int64_t rows, int64_t cols, int64_t ld, uint8_t dtype, uint8_t fp8 = DSC_FP8_NONE)
{
    const size_t each = fp8 != DSC_FP8_NONE ? 1 : dsc_dtype_bytes(static_cast<dsc_dtype>(dtype));
    const int64_t bytes = rows == 0 ? 0 : ((rows - 1) * ld + cols) * static_cast<int64_t>(each);
    const matrix m = { *at, dsc_align_up(bytes, 256), dtype, fp8 };
    *at += m.bytes;
    return m;
}

/* False: the memory is too small. */
bool lay_out(const plan *p, char *memory, int64_t memory_bytes, operands *o)
{
    const plan_key *k = &p->key;
    const dsc_epilogue epilogue = static_cast<dsc_epilogue>(k->epilogue);
    const bool has_aux = epilogue > DSC_EPILOGUE_BIAS;
    const int64_t sums = k->sums_of == DSC_GEMM_SUMS_OF_A ? k->m : k->n;
    char *at = memory;
    if (memory == NULL)
        return false;
    o->a = cut(&at, k->a_transposed ? k->k : k->m, k->a_transposed ? k->m : k->k, k->lda, k->ab_dtype, k->a_fp8);
    o->b = cut(&at, k->b_transposed ? k->n : k->k, k->b_transposed ? k->k : k->n, k->ldb, k->ab_dtype, k->b_fp8);
    o->c = cut(&at, k->m, k->n, k->ldc, k->c_dtype);
    o->bias = cut(&at, k->has_bias ? 1 : 0, k->n, k->n, k->ab_dtype);
    o->aux = cut(&at, has_aux ? k->m : 0, k->n, k->ldc, k->c_dtype);
    o->column = cut(&at, k->sums_of != DSC_GEMM_NO_SUMS ? 1 : 0, sums, sums, DSC_F32);
    o->checks = reinterpret_cast<uint64_t *>(at);
    at += dsc_align_up(SUM_BLOCKS * static_cast<int64_t>(sizeof *o->checks), 256);
    o->scale = reinterpret_cast<dsc_fp8_scale *>(at);
    at += k->a_fp8 != DSC_FP8_NONE ? dsc_align_up(static_cast<int64_t>(sizeof *o->scale), 256) : 0;
    const int64_t of_a = dsc_fp8_step_count(static_cast<dsc_fp8_blocks>(k->a_blocks), k->m, k->k);
    const int64_t of_b = dsc_fp8_step_count(static_cast<dsc_fp8_blocks>(k->b_blocks), k->n, k->k);
    o->a_steps = cut(&at, of_a > 0 ? 1 : 0, of_a, of_a, DSC_F32);
    o->b_steps = cut(&at, of_b > 0 ? 1 : 0, of_b, of_b, DSC_F32);
    return at - memory <= memory_bytes;
}

template <class T> void fill_as(const bench *b, const matrix *m, const pattern &p)
{
    each<16 / sizeof(T)>(b->at, fill_op<T> { static_cast<T *>(m->ptr), p }, m->bytes / static_cast<int64_t>(sizeof(T)),
                         true);
}

void fill(const bench *b, const matrix *m, const pattern &p)
{
    if (m->fp8 == DSC_FP8_E4M3)
        fill_as<e4m3_bits>(b, m, p);
    else if (m->fp8 == DSC_FP8_E5M2)
        fill_as<e5m2_bits>(b, m, p);
    else
        DSC_CUDA_FOR_DTYPE(m->dtype, T, fill_as<T>(b, m, p));
}

struct ones_op {
    float *to;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = 1.0f;
    }
};

void fill_ones(const bench *b, const matrix *m)
{
    if (m->bytes > 0)
        each<4>(b->at, ones_op { static_cast<float *>(m->ptr) }, m->bytes / static_cast<int64_t>(sizeof(float)), true);
}

/* Kinds of operands of a comparison; see the head of this file. */
typedef enum trial { TRIAL_CANCELS, TRIAL_RANDOM, TRIALS } trial;

bool has_second_trial(const plan_key *k) { return k->epilogue != DSC_EPILOGUE_NONE || k->accumulate; }

dsc_status clear(const bench *b, const matrix *m, dsc_error *err)
{
    return m->bytes == 0 ? DSC_OK : cuda_try(cudaMemsetAsync(m->ptr, 0, static_cast<size_t>(m->bytes), b->at->stream),
                                             "zeroing", err);
}

/* Plain random numbers, each matrix others. */
dsc_status fill_random(const bench *b, const matrix *m, uint64_t which, int64_t ld)
{
    if (m->bytes > 0)
        fill(b, m, { which << 40, ld, 0, false, false });
    return DSC_OK;
}

dsc_status fill_operands(const bench *b, const plan *p, const operands *o, trial t, dsc_error *err)
{
    static const float one = 1.0f;
    const plan_key *k = &p->key;
    const bool cancels = t == TRIAL_CANCELS;
    if (k->a_fp8 != DSC_FP8_NONE)
        DSC_TRY(cuda_try(cudaMemcpyAsync(&o->scale->step, &one, sizeof one, cudaMemcpyHostToDevice, b->at->stream),
                         "a copy", err));
    fill_ones(b, &o->a_steps);
    fill_ones(b, &o->b_steps);
    fill(b, &o->a, { UINT64_C(1) << 40, k->lda, cancels ? k->k : 0, k->a_transposed != 0, true });
    fill(b, &o->b, { UINT64_C(2) << 40, k->ldb, cancels ? k->k : 0, k->b_transposed == 0, false });
    if (!cancels || k->epilogue == DSC_EPILOGUE_DGELU)
        DSC_TRY(fill_random(b, &o->aux, 3, k->ldc));
    else
        DSC_TRY(clear(b, &o->aux, err));
    return cancels ? clear(b, &o->bias, err) : fill_random(b, &o->bias, 4, k->n);
}

/* C before a run, what lies between its rows included. */
dsc_status fill_result(const bench *b, const plan *p, const operands *o, trial t, dsc_error *err)
{
    return t == TRIAL_RANDOM && p->key.accumulate ? fill_random(b, &o->c, 5, p->key.ldc) : clear(b, &o->c, err);
}

dsc_gemm_args args_of(const plan *p, const operands *o)
{
    dsc_gemm_args a = p->shape;
    a.a = o->a.ptr;
    a.b = o->b.ptr;
    a.c = o->c.ptr;
    a.a_scale = a.b_scale = o->scale;
    a.a_steps = static_cast<const float *>(o->a_steps.ptr);
    a.b_steps = static_cast<const float *>(o->b_steps.ptr);
    a.bias = o->bias.bytes > 0 ? o->bias.ptr : NULL;
    a.aux = o->aux.bytes > 0 ? o->aux.ptr : NULL;
    a.sums = o->column.bytes > 0 ? static_cast<float *>(o->column.ptr) : NULL;
    return a;
}

/* ---- one algorithm ---- */

typedef struct candidate {
    bool in;               /* the race */
    uint64_t bits[TRIALS]; /* sums of its results */
    float ms;              /* its best time */
} candidate;

/* A check sum of a matrix of results. */
dsc_status check_sum(const bench *b, const operands *o, const matrix *m, uint64_t *out, dsc_error *err)
{
    uint64_t sums[SUM_BLOCKS] = {};
    const int64_t words = m->bytes / 4, blocks = dsc_min_i64(SUM_BLOCKS, dsc_div_ceil(words, SUM_THREADS));
    *out = 0;
    if (words == 0)
        return DSC_OK;
    DSC_CUDA_LAUNCH(sum_kernel, grid_size(blocks), SUM_THREADS, 0, b->at->stream,
                    static_cast<const uint32_t *>(m->ptr), words, o->checks);
    DSC_TRY(cuda_try(cudaGetLastError(), "a launch", err));
    DSC_TRY(cuda_try(cudaMemcpyAsync(sums, o->checks, static_cast<size_t>(blocks) * sizeof sums[0],
                                     cudaMemcpyDeviceToHost, b->at->stream), "a copy", err));
    DSC_TRY(cuda_try(cudaStreamSynchronize(b->at->stream), "a product", err));
    for (int i = 0; i < SUM_BLOCKS; i++)
        *out += sums[i];
    return DSC_OK;
}

/* Results of an algorithm, all that it writes; false in *runs if the library does not run it after all. */
dsc_status run_once(const bench *b, plan *p, const operands *o, trial t, const cublasLtMatmulAlgo_t *algo, bool *runs,
                    uint64_t *bits, dsc_error *err)
{
    uint64_t of_c, of_aux = 0, of_column;
    const dsc_gemm_args a = args_of(p, o);
    const bool writes_aux = p->key.epilogue == DSC_EPILOGUE_BIAS_GELU;
    DSC_TRY(fill_result(b, p, o, t, err));
    if (writes_aux)
        DSC_TRY(clear(b, &o->aux, err));
    DSC_TRY(clear(b, &o->column, err));
    *runs = dsc_cuda_plan_run(b->at, p, algo, &a, NULL) == DSC_OK;
    DSC_TRY(check_sum(b, o, &o->c, &of_c, err));
    if (writes_aux)
        DSC_TRY(check_sum(b, o, &o->aux, &of_aux, err));
    DSC_TRY(check_sum(b, o, &o->column, &of_column, err));
    *bits = of_c + 3 * of_aux + 5 * of_column;
    return DSC_OK;
}

/* Sums beside a product have an order of their own, of which the library says nothing: two runs have to agree. */
dsc_status try_out(const bench *b, plan *p, const operands *o, trial t, const cublasLtMatmulAlgo_t *algo,
                   candidate *out, dsc_error *err)
{
    uint64_t again = 0;
    DSC_TRY(run_once(b, p, o, t, algo, &out->in, &out->bits[t], err));
    if (!out->in || p->key.sums_of == DSC_GEMM_NO_SUMS)
        return DSC_OK;
    DSC_TRY(run_once(b, p, o, t, algo, &out->in, &again, err));
    out->in = out->in && again == out->bits[t];
    return DSC_OK;
}

/* The library's first choice; with sums, the first that is repeatable. -1: none. */
int first_of(const plan *p, const plan_candidates *c, const candidate *runner)
{
    for (int i = 0; i < c->count; i++)
        if (runner[i].in)
            return i;
        else if (p->key.sums_of == DSC_GEMM_NO_SUMS)
            return -1;
    return -1;
}

/* Leaves in the race who runs, and with SAME_BITS who gives what the first one gives. */
dsc_status try_all(const bench *b, plan *p, const operands *o, trial t, const plan_candidates *c, candidate *runner,
                   dsc_error *err)
{
    DSC_TRY(fill_operands(b, p, o, t, err));
    for (int i = 0; i < c->count; i++)
        if (t == TRIAL_CANCELS || runner[i].in)
            DSC_TRY(try_out(b, p, o, t, &c->algo[i], &runner[i], err));
    const int first = first_of(p, c, runner);
    for (int i = 0; i < c->count && first >= 0 && b->choice == DSC_GEMM_SAME_BITS; i++)
        runner[i].in = runner[i].in && runner[i].bits[t] == runner[first].bits[t];
    return DSC_OK;
}

dsc_status time_one(const bench *b, plan *p, const operands *o, const cublasLtMatmulAlgo_t *algo, float *ms,
                    dsc_error *err)
{
    const dsc_gemm_args a = args_of(p, o);
    DSC_TRY(cuda_try(watch_start(&b->watch, b->at->stream), "an event", err));
    DSC_TRY(dsc_cuda_plan_run(b->at, p, algo, &a, err));
    return cuda_try(watch_stop(&b->watch, b->at->stream, ms), "a product", err);
}

/* ---- one product ---- */

bool late(const bench *b) { return dsc_clock_ns() - b->start_ns > BUDGET_NS; }

dsc_status race(const bench *b, plan *p, const operands *o, const plan_candidates *c, int first,
                candidate *runner, dsc_error *err)
{
    for (int round = 0; round < MEASURE_ROUNDS && !(round > 0 && late(b)); round++) {
        float best = 0;
        for (int i = 0; i < c->count; i++) {
            float ms = 0;
            if (!runner[i].in)
                continue;
            DSC_TRY(time_one(b, p, o, &c->algo[i], &ms, err));
            runner[i].ms = round == 0 || ms < runner[i].ms ? ms : runner[i].ms;
            best = best == 0 || runner[i].ms < best ? runner[i].ms : best;
        }
        for (int i = 0; i < c->count; i++)
            runner[i].in = runner[i].in && (i == first || runner[i].ms <= HOPELESS * best);
    }
    return DSC_OK;
}

/* The first one stays when nobody beats it clearly. Sums that no algorithm gives twice alike are left to a kernel. */
dsc_status choose(const bench *b, plan *p, const operands *o, bool *changed, dsc_error *err)
{
    plan_candidates c;
    candidate runner[MEASURED_MAX] = {};
    const bool sums = p->key.sums_of != DSC_GEMM_NO_SUMS;
    DSC_TRY(dsc_cuda_plan_candidates(b->at->gemm, p, MEASURED_MAX, &c, err));
    if (c.count < 2 && !sums)
        return DSC_OK;
    DSC_TRY(try_all(b, p, o, TRIAL_CANCELS, &c, runner, err));
    if (has_second_trial(&p->key) && b->choice == DSC_GEMM_SAME_BITS)
        DSC_TRY(try_all(b, p, o, TRIAL_RANDOM, &c, runner, err));
    const int first = first_of(p, &c, runner);
    p->unrepeatable = sums && first < 0;
    p->apart = p->apart || p->unrepeatable;
    if (first < 0)
        return DSC_OK;
    DSC_TRY(race(b, p, o, &c, first, runner, err));
    int best = first;
    for (int i = first + 1; i < c.count; i++)
        if (runner[i].in && runner[i].ms < MEASURE_WORTH * runner[first].ms &&
            (best == first || runner[i].ms < runner[best].ms))
            best = i;
    p->algo = c.algo[best];
    *changed = best != 0;
    return DSC_OK;
}

dsc_status measure_all(const bench *b, char *memory, int64_t memory_bytes, dsc_gemm_measured *out, dsc_error *err)
{
    dsc_cuda_gemm *g = b->at->gemm;
    for (int64_t i = 0; i < g->plan_count; i++) {
        plan *p = &g->plans[i];
        operands o;
        bool changed = false;
        if (!p->prepared || !p->usable || p->from_text)
            continue;
        out->products++;
        if (late(b) || !lay_out(p, memory, memory_bytes, &o))
            continue;
        DSC_TRY(choose(b, p, &o, &changed, err));
        out->measured++;
        out->changed += changed;
        out->unrepeatable += p->unrepeatable;
    }
    return DSC_OK;
}

/* ---- epilogues with the product or apart ---- */

/* Not the lock: the product takes it. */
dsc_status time_whole(const bench *b, const dsc_gemm_args *a, float *ms, dsc_error *err)
{
    DSC_TRY(cuda_try(watch_start(&b->watch, b->at->stream), "an event", err));
    DSC_TRY(dsc_cuda_run_GEMM(b->at, a, err));
    return cuda_try(watch_stop(&b->watch, b->at->stream, ms), "a product", err);
}

/* Plan number `index`; the other way has to be faster clearly. */
dsc_status compare(const bench *b, int64_t index, const operands *o, dsc_error *err)
{
    dsc_cuda_gemm *g = b->at->gemm;
    const dsc_gemm_args a = args_of(&g->plans[index], o);
    const int before = g->plans[index].apart ? 1 : 0;
    float best[2] = { 0, 0 };
    DSC_TRY(fill_operands(b, &g->plans[index], o, TRIAL_RANDOM, err));
    for (int round = 0; round < MEASURE_ROUNDS; round++)
        for (int apart = 0; apart < 2; apart++) {
            float ms = 0;
            g->plans[index].apart = apart != 0;
            DSC_TRY(time_whole(b, &a, &ms, err));
            best[apart] = round == 0 || ms < best[apart] ? ms : best[apart];
        }
    g->plans[index].apart = (best[1 - before] < MEASURE_WORTH * best[before] ? 1 - before : before) != 0;
    return DSC_OK;
}

dsc_status compare_all(const bench *b, char *memory, int64_t memory_bytes, dsc_error *err)
{
    dsc_cuda_gemm *g = b->at->gemm;
    if (b->choice != DSC_GEMM_FASTEST || (g->fused & DSC_GEMM_FUSED_BY_TIME) == 0)
        return DSC_OK;
    for (int64_t i = 0; i < g->plan_count && !late(b); i++) {
        const plan *p = &g->plans[i];
        operands o;
        const bool either = fused_bit(p->key.epilogue, p->key.sums_of) != 0 && !p->unrepeatable;
        if (either && p->prepared && p->usable && !p->from_text && lay_out(p, memory, memory_bytes, &o))
            DSC_TRY(compare(b, i, &o, err));
    }
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_gemm_measure(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes, dsc_gemm_choice choice,
                                 dsc_gemm_measured *out, dsc_error *err)
{
    bench b = { at, choice, dsc_clock_ns(), {} };
    DSC_ASSERT(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    dsc_status status = cuda_try(watch_open(&b.watch), "an event", err);
    if (status == DSC_OK) {
        pthread_mutex_lock(&at->gemm->lock);
        status = measure_all(&b, static_cast<char *>(memory), memory_bytes, out, err);
        pthread_mutex_unlock(&at->gemm->lock);
    }
    if (status == DSC_OK)
        status = compare_all(&b, static_cast<char *>(memory), memory_bytes, err);
    watch_close(&b.watch);
    return status;
}

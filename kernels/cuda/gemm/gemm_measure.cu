/* gemm_measure.cu - chooses the algorithm of cuBLASLt for a product. Each algorithm is run on operands of the product's
 * own size and timed by events. The runs alternate, so a GPU that warms up or slows down affects all algorithms
 * equally.
 *
 * Two fresh runs may measure differently. So that their bits do not differ too, DSC_GEMM_SAME_BITS only accepts
 * algorithms whose whole result has the bits of the library's first choice. These algorithms add the K terms in the
 * same order: most tile shapes, but no other K split. A rounding to bf16 would hide nearly every other order, so
 * the operands are random but cancel. Each term of a sum comes a second time with the other sign, and the result
 * consists only of the rounding errors of that order.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/measure.h"

#include "base/clock.h"

namespace {

enum { SUM_BLOCKS = 64, SUM_THREADS = 256 };
/* All products together; what has not been measured by then keeps the library's first choice. */
constexpr int64_t BUDGET_NS = INT64_C(5000000000);
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

typedef struct matrix {
    void *ptr;
    int64_t bytes; /* a multiple of 256: what lies behind the elements is filled and summed with them */
    uint8_t dtype;
} matrix;

typedef struct operands {
    matrix a, b, c, bias, aux;
    uint64_t *sums; /* [SUM_BLOCKS] */
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
matrix cut(char **at, int64_t rows, int64_t cols, int64_t ld, uint8_t dtype)
{
    const int64_t bytes = rows == 0 ? 0 : ((rows - 1) * ld + cols) *
                                           static_cast<int64_t>(dsc_dtype_bytes(static_cast<dsc_dtype>(dtype)));
    const matrix m = { *at, dsc_align_up(bytes, 256), dtype };
    *at += m.bytes;
    return m;
}

/* False: the memory is too small. */
bool lay_out(const plan *p, char *memory, int64_t memory_bytes, operands *o)
{
    const plan_key *k = &p->key;
    const dsc_epilogue epilogue = static_cast<dsc_epilogue>(k->epilogue);
    const bool has_aux = dsc_epilogue_adds(epilogue) || epilogue == DSC_EPILOGUE_DGELU;
    char *at = memory;
    if (memory == NULL)
        return false;
    o->a = cut(&at, k->a_transposed ? k->k : k->m, k->a_transposed ? k->m : k->k, k->lda, k->ab_dtype);
    o->b = cut(&at, k->b_transposed ? k->n : k->k, k->b_transposed ? k->k : k->n, k->ldb, k->ab_dtype);
    o->c = cut(&at, k->m, k->n, k->ldc, k->c_dtype);
    o->bias = cut(&at, k->has_bias ? 1 : 0, k->n, k->n, k->ab_dtype);
    o->aux = cut(&at, has_aux ? k->m : 0, k->n, k->ldc, k->c_dtype);
    o->sums = reinterpret_cast<uint64_t *>(at);
    at += dsc_align_up(SUM_BLOCKS * static_cast<int64_t>(sizeof *o->sums), 256);
    return at - memory <= memory_bytes;
}

void fill(const bench *b, const matrix *m, const pattern &p)
{
    DSC_CUDA_FOR_DTYPE(m->dtype, T,
                       each<16 / sizeof(T)>(b->at, fill_op<T>{ static_cast<T *>(m->ptr), p },
                                            m->bytes / static_cast<int64_t>(sizeof(T)), true));
}

/* An addend would hide a sum that consists of rounding errors only. */
dsc_status clear(const bench *b, const matrix *m, dsc_error *err)
{
    return m->bytes == 0 ? DSC_OK : cuda_try(cudaMemsetAsync(m->ptr, 0, static_cast<size_t>(m->bytes), b->at->stream),
                                             "zeroing", err);
}

dsc_status fill_operands(const bench *b, const plan *p, const operands *o, dsc_error *err)
{
    const plan_key *k = &p->key;
    fill(b, &o->a, { UINT64_C(1) << 40, k->lda, k->k, k->a_transposed != 0, true });
    fill(b, &o->b, { UINT64_C(2) << 40, k->ldb, k->k, k->b_transposed == 0, false });
    DSC_TRY(clear(b, &o->bias, err));
    if (k->epilogue != DSC_EPILOGUE_DGELU)
        return clear(b, &o->aux, err);
    fill(b, &o->aux, { UINT64_C(3) << 40, k->ldc, 0, false, false });
    return DSC_OK;
}

dsc_gemm_args args_of(const plan *p, const operands *o)
{
    dsc_gemm_args a = p->shape;
    a.a = o->a.ptr;
    a.b = o->b.ptr;
    a.c = o->c.ptr;
    a.bias = o->bias.bytes > 0 ? o->bias.ptr : NULL;
    a.aux = o->aux.bytes > 0 ? o->aux.ptr : NULL;
    return a;
}

/* ---- one algorithm ---- */

typedef struct candidate {
    bool in;       /* the race */
    uint64_t bits; /* sum of its result */
    float ms;      /* its best time */
} candidate;

/* Result of the first run of an algorithm; none if the library does not run it after all. */
dsc_status try_out(const bench *b, plan *p, const operands *o, const cublasLtMatmulAlgo_t *algo, candidate *out,
                   dsc_error *err)
{
    uint64_t sums[SUM_BLOCKS] = {};
    const dsc_gemm_args a = args_of(p, o);
    const int64_t words = o->c.bytes / 4, blocks = dsc_min_i64(SUM_BLOCKS, dsc_div_ceil(words, SUM_THREADS));
    DSC_TRY(clear(b, &o->c, err)); /* also what lies between its rows */
    out->in = dsc_cuda_plan_run(b->at, p, algo, &a, NULL) == DSC_OK;
    DSC_CUDA_LAUNCH(sum_kernel, grid_size(blocks), SUM_THREADS, 0, b->at->stream,
                    static_cast<const uint32_t *>(o->c.ptr), words, o->sums);
    DSC_TRY(cuda_try(cudaGetLastError(), "a launch", err));
    DSC_TRY(cuda_try(cudaMemcpyAsync(sums, o->sums, static_cast<size_t>(blocks) * sizeof sums[0],
                                     cudaMemcpyDeviceToHost, b->at->stream), "a copy", err));
    DSC_TRY(cuda_try(cudaStreamSynchronize(b->at->stream), "a product", err));
    out->bits = 0;
    for (int i = 0; i < SUM_BLOCKS; i++)
        out->bits += sums[i];
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

dsc_status race(const bench *b, plan *p, const operands *o, const plan_candidates *c, candidate *runner, dsc_error *err)
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
        for (int i = 1; i < c->count; i++)
            runner[i].in = runner[i].in && runner[i].ms <= HOPELESS * best;
    }
    return DSC_OK;
}

/* The library's first choice is runner 0, and stays when nobody beats it clearly. */
dsc_status choose(const bench *b, plan *p, const operands *o, bool *changed, dsc_error *err)
{
    plan_candidates c;
    candidate runner[MEASURED_MAX] = {};
    int best = 0;
    DSC_TRY(dsc_cuda_plan_candidates(b->at->gemm, p, MEASURED_MAX, &c, err));
    if (c.count < 2)
        return DSC_OK;
    DSC_TRY(fill_operands(b, p, o, err));
    for (int i = 0; i < c.count; i++)
        DSC_TRY(try_out(b, p, o, &c.algo[i], &runner[i], err));
    if (!runner[0].in)
        return DSC_OK;
    for (int i = 1; i < c.count && b->choice == DSC_GEMM_SAME_BITS; i++)
        runner[i].in = runner[i].in && runner[i].bits == runner[0].bits;
    DSC_TRY(race(b, p, o, &c, runner, err));
    for (int i = 1; i < c.count; i++)
        if (runner[i].in && runner[i].ms < MEASURE_WORTH * runner[0].ms &&
            (best == 0 || runner[i].ms < runner[best].ms))
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
    watch_close(&b.watch);
    return status;
}

/* gemm.c - cuts a product into tiles by its shape, keeps the library's objects for each kind of tile, runs the tiles.
 *
 * A tile is computed in one of three ways. PACKED: our own bf16 kernel (forward products, CPUs with VDPBF16PS and
 * without AMX). LIBRARY: one oneDNN call over the whole K. PANELS: the library on fp32 copies of fp16 inputs, and of
 * bf16 inputs on a CPU without bf16 products.
 * Invariants.
 * (1) The tiling is a function of the arguments' shape and the CPU's level, never of threads or ranks.
 * (2) One thread computes a tile, in steps of K that depend on the shape, so its bits do not depend on the thread.
 * (3) Nothing is allocated for a shape that was prepared.
 * docs/kernels.md#gemm gives the reasons for these tiles.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/fp8_internal.h"
#include "kernels/cpu/gemm_internal.h"
#include "kernels/scalar.h"
#include "kernels/cpu_threads.h"
#include "kernels/thread_pool.h"

enum {
    PRIMS = 256,         /* kinds of tiles kept; the least recently used makes room. GPT-2 needs about 40 */
    TILES_MIN = 4,       /* below this many tiles they are made smaller, down to TILE_M_MIN by TILE_N_MIN */
    TILES_MANY = 8,      /* with this many left, tiles of TILE_M_LARGE rows: the library packs B once per tile */
    TILE_M = 256, TILE_M_LARGE = 512, TILE_M_MIN = 128,
    TILE_N = 384, TILE_N_MIN = 192, /* PACKED, and the library with B transposed: always the smaller */
    TILE_M_F32 = 384, TILE_N_F32 = 768, /* C is F32 and nothing follows: no tile buffer has to stay in cache */
    PANEL_K = 1024,      /* PANELS: with 256 x 384 tiles, the two fp32 panels take 2.6 MB */
    PACKED_K = 4096, PACKED_K_STEP = 2048, /* PACKED: up to the first in one step, then in steps of the second */
    PACKED_N_TRANSPOSED = 16384, /* with B transposed PACKED wins from about here on: the logits */
    COLSUM_BLOCK = 64
};

struct dsc_gemm_store {
    dsc_alloc *alloc;
    int32_t threads;
    uint32_t caps;
    pthread_mutex_t lock;
    dsc_gemm_lib *lib; /* opened by the first product */
    uint64_t clock;
    void **memory; /* [PRIMS][threads][4] */
    int64_t scratch_each;
    dsc_buf scratch; /* threads * scratch_each */
    pthread_mutex_t fp8_lock; /* of values, taken before `lock` */
    dsc_buf values;           /* of the operands of a product in fp8, in bf16 */
    dsc_gemm_prim prim[PRIMS];
};

/* ---- the tiling ---- */

typedef enum gemm_way { WAY_LIBRARY, WAY_PANELS, WAY_PACKED } gemm_way;

typedef struct gemm_plan {
    gemm_way way;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    int64_t k_step;      /* K, or less */
    bool buffered;       /* sums are kept in a tile buffer until the epilogue writes C */
    int64_t buffer_bytes, a_bytes, b_bytes; /* per thread, multiples of 64 */
} gemm_plan;

static gemm_way way_of(const dsc_gemm_args *a, uint32_t caps)
{
    if (a->ab_dtype == DSC_F32)
        return WAY_LIBRARY;
    if (a->ab_dtype == DSC_F16 || (caps & DSC_CPU_AVX512_BF16) == 0)
        return WAY_PANELS;
    if ((caps & DSC_CPU_AMX_BF16) != 0 || a->a_transposed)
        return WAY_LIBRARY;
    return !a->b_transposed || a->n >= PACKED_N_TRANSPOSED ? WAY_PACKED : WAY_LIBRARY;
}

/* The size of `size` cut into equal parts of at most `most`, a multiple of `unit` unless it is all of it. */
static int64_t part(int64_t size, int64_t most, int64_t unit)
{
    const int64_t each = dsc_align_up(dsc_div_ceil(size, dsc_div_ceil(size, most)), unit);
    return dsc_min_i64(each, size);
}

static void plan_tiles(gemm_plan *p, int64_t m, int64_t n, int64_t most_m, int64_t most_n)
{
    p->tile_m = part(m, most_m, 32);
    p->tile_n = part(n, most_n, 64);
    p->tiles_m = dsc_div_ceil(m, p->tile_m);
    p->tiles_n = dsc_div_ceil(n, p->tile_n);
}

/* A product with nothing behind it, or with what has the bits of a kernel after such a product: its tiles too. */
static bool is_plain(dsc_epilogue epilogue)
{
    return epilogue == DSC_EPILOGUE_NONE || epilogue == DSC_EPILOGUE_ACTIVATION || epilogue == DSC_EPILOGUE_SLOPE;
}

/* The largest tile, before there are enough of them. */
static void plan_most(const gemm_plan *p, const dsc_gemm_args *a, int64_t *most_m, int64_t *most_n)
{
    *most_m = TILE_M;
    *most_n = p->way == WAY_PACKED || a->b_transposed ? TILE_N_MIN : TILE_N;
    if (p->way == WAY_PACKED)
        return;
    if (a->c_dtype == DSC_F32 && is_plain(a->epilogue)) {
        *most_m = TILE_M_F32;
        *most_n = TILE_N_F32;
    } else if (dsc_div_ceil(a->m, TILE_M_LARGE) * dsc_div_ceil(a->n, *most_n) >= TILES_MANY) {
        *most_m = TILE_M_LARGE;
    }
}

static gemm_plan plan_make(const dsc_gemm_args *a, uint32_t caps)
{
    gemm_plan p = { .way = way_of(a, caps), .k_step = a->k };
    if (p.way == WAY_PANELS)
        p.k_step = dsc_min_i64(a->k, PANEL_K);
    if (p.way == WAY_PACKED && a->k > PACKED_K)
        p.k_step = part(a->k, PACKED_K_STEP, 64);
    /* An epilogue that reads `aux` may find it in C, which the sums must leave alone until then. */
    p.buffered = a->c_dtype != DSC_F32 || dsc_epilogue_adds(a->epilogue) || a->epilogue == DSC_EPILOGUE_DGELU;
    if (p.way == WAY_PACKED) /* one step ends in registers, and fp32 sums without an epilogue belong into C */
        p.buffered = p.k_step < a->k && (a->c_dtype != DSC_F32 || a->epilogue != DSC_EPILOGUE_NONE);
    int64_t most_m, most_n;
    plan_most(&p, a, &most_m, &most_n);
    plan_tiles(&p, a->m, a->n, most_m, most_n);
    while (p.tiles_m * p.tiles_n < TILES_MIN && (most_m > TILE_M_MIN || most_n > TILE_N_MIN)) {
        /* The longer side first: a square tile reads least. */
        if (most_n > TILE_N_MIN && (most_n >= most_m || most_m <= TILE_M_MIN))
            most_n = dsc_max_i64(most_n / 2, TILE_N_MIN);
        else
            most_m = dsc_max_i64(most_m / 2, TILE_M_MIN);
        plan_tiles(&p, a->m, a->n, most_m, most_n);
    }
    if (p.buffered)
        p.buffer_bytes = dsc_align_up(p.tile_m * p.tile_n * 4, 64);
    if (p.way == WAY_PANELS) {
        p.a_bytes = dsc_align_up(p.tile_m * p.k_step * 4, 64);
        p.b_bytes = dsc_align_up(p.tile_n * p.k_step * 4, 64);
    } else if (p.way == WAY_PACKED) {
        p.b_bytes = dsc_align_up(p.tile_n, DSC_BF16_PANEL) * dsc_align_up(p.k_step, 2) * 2;
    }
    return p;
}

/* ---- the store ---- */

dsc_status dsc_gemm_store_open(dsc_alloc *alloc, int32_t threads, uint32_t caps, dsc_gemm_store **out, dsc_error *err)
{
    dsc_gemm_store *s;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    s->alloc = alloc;
    s->threads = threads;
    s->caps = caps;
    dsc_status status =
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, (int64_t)PRIMS * threads * 4, sizeof *s->memory, &s->memory, err);
    if (status == DSC_OK && (pthread_mutex_init(&s->lock, NULL) != 0 || pthread_mutex_init(&s->fp8_lock, NULL) != 0))
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "", "the system has no memory for a lock");
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, s->memory);
        dsc_alloc_free(alloc, s);
        return status;
    }
    for (int32_t i = 0; i < PRIMS; i++)
        s->prim[i].memory = s->memory + (int64_t)i * threads * 4;
    *out = s;
    return DSC_OK;
}

void dsc_gemm_store_close(dsc_gemm_store **store)
{
    if (store == NULL || *store == NULL)
        return;
    dsc_gemm_store *s = *store;
    for (int32_t i = 0; i < PRIMS; i++)
        if (s->prim[i].used != 0)
            dsc_gemm_lib_drop(s->lib, &s->prim[i]);
    dsc_gemm_lib_close(&s->lib);
    dsc_buf_close(&s->scratch);
    dsc_buf_close(&s->values);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->fp8_lock);
    dsc_alloc_free(s->alloc, s->memory);
    dsc_alloc_free(s->alloc, s);
    *store = NULL;
}

static dsc_status prim_get(dsc_gemm_store *s, const dsc_gemm_key *key, const dsc_gemm_prim **out, dsc_error *err)
{
    dsc_gemm_prim *oldest = &s->prim[0];
    for (int32_t i = 0; i < PRIMS; i++) {
        dsc_gemm_prim *p = &s->prim[i];
        if (p->used != 0 && memcmp(&p->key, key, sizeof *key) == 0) {
            p->used = ++s->clock;
            *out = p;
            return DSC_OK;
        }
        if (p->used < oldest->used)
            oldest = p;
    }
    if (s->lib == NULL)
        DSC_TRY(dsc_gemm_lib_open(s->alloc, s->threads, &s->lib, err));
    if (oldest->used != 0)
        dsc_gemm_lib_drop(s->lib, oldest);
    oldest->used = 0;
    oldest->key = *key;
    DSC_TRY(dsc_gemm_lib_make(s->lib, oldest, err));
    oldest->used = ++s->clock;
    *out = oldest;
    return DSC_OK;
}

/* Tiles come in up to two heights, two widths and, with panels, two depths, and then in a first and a later one. */
typedef struct gemm_kinds {
    const dsc_gemm_prim *prim[2][2][2][2];
} gemm_kinds; /* [last m][last n][last k][accumulate] */

/* Finds or makes the primitives of every kind of tile. */
static dsc_status kinds_make(dsc_gemm_store *s, const dsc_gemm_args *a, const gemm_plan *p, gemm_kinds *kinds,
                             int64_t *library_bytes, dsc_error *err)
{
    const int64_t k_steps = dsc_div_ceil(a->k, p->k_step);
    const int64_t last_m = a->m - (p->tiles_m - 1) * p->tile_m, last_n = a->n - (p->tiles_n - 1) * p->tile_n;
    const int64_t last_k = a->k - (k_steps - 1) * p->k_step;
    for (int i = 0; i < 16; i++) {
        const bool end_m = i & 8, end_n = i & 4, end_k = i & 2, later = i & 1;
        if ((!end_m && p->tiles_m == 1) || (!end_n && p->tiles_n == 1) || (!end_k && k_steps == 1) ||
            (later && k_steps == 1) || (!later && k_steps > 1 && end_k) || (later && k_steps == 2 && !end_k))
            continue; /* no such tile */
        dsc_gemm_key key = { .m = end_m ? last_m : p->tile_m,
                             .n = end_n ? last_n : p->tile_n,
                             .k = end_k ? last_k : p->k_step,
                             .a_transposed = a->a_transposed,
                             .b_transposed = a->b_transposed,
                             .bf16 = a->ab_dtype == DSC_BF16 && p->way == WAY_LIBRARY,
                             .accumulate = a->accumulate || later };
        key.lda = p->way == WAY_PANELS ? (a->a_transposed ? key.m : key.k) : a->lda;
        key.ldb = p->way == WAY_PANELS ? (a->b_transposed ? key.k : key.n) : a->ldb;
        key.ldc = p->buffered ? key.n : a->ldc;
        DSC_TRY(prim_get(s, &key, &kinds->prim[end_m][end_n][end_k][later], err));
        *library_bytes = dsc_max_i64(*library_bytes, kinds->prim[end_m][end_n][end_k][later]->scratch_bytes);
    }
    return DSC_OK;
}

/* Everything that a run needs: primitives, and the scratch as large as they and our own buffers ask. */
static dsc_status make_ready(dsc_gemm_store *s, const dsc_gemm_args *a, const gemm_plan *p, gemm_kinds *kinds,
                             dsc_error *err)
{
    int64_t library_bytes = 0;
    memset(kinds, 0, sizeof *kinds);
    if (p->way != WAY_PACKED)
        DSC_TRY(kinds_make(s, a, p, kinds, &library_bytes, err));
    const int64_t each = dsc_align_up(p->buffer_bytes + p->a_bytes + p->b_bytes + library_bytes, 4096);
    if (each <= s->scratch_each)
        return DSC_OK;
    dsc_buf_close(&s->scratch);
    s->scratch_each = 0;
    DSC_TRY(dsc_buf_open(s->alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, each * s->threads, &s->scratch, err));
    s->scratch_each = each;
    return DSC_OK;
}

/* ---- products in fp8: of their values in bf16 ---- */

/* The same product in bf16; `values` holds A's, then B's. */
static dsc_gemm_args in_bf16(const dsc_gemm_args *a, uint16_t *values)
{
    dsc_gemm_args out = *a;
    out.a_fp8 = out.b_fp8 = DSC_FP8_NONE;
    out.a_scale = out.b_scale = NULL;
    out.a_blocks = out.b_blocks = DSC_FP8_BLOCKS_NONE;
    out.lda = out.ldb = a->k;
    out.a = values;
    out.b = values != NULL ? values + a->m * a->k : NULL;
    return out;
}

/* The caller has fp8_lock. */
static dsc_status values_room(dsc_gemm_store *s, const dsc_gemm_args *a, dsc_error *err)
{
    const int64_t bytes = (a->m + a->n) * a->k * 2;
    if (bytes <= s->values.bytes)
        return DSC_OK;
    dsc_buf_close(&s->values);
    return dsc_buf_open(s->alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, bytes, &s->values, err);
}

static dsc_status prepare(dsc_gemm_store *s, const dsc_gemm_args *shape, dsc_error *err)
{
    const gemm_plan plan = plan_make(shape, s->caps);
    gemm_kinds kinds;
    pthread_mutex_lock(&s->lock);
    const dsc_status status = make_ready(s, shape, &plan, &kinds, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

dsc_status dsc_gemm_store_prepare(dsc_gemm_store *s, const dsc_gemm_args *shape, dsc_error *err)
{
    dsc_gemm_check(shape);
    if ((s->caps & DSC_CPU_AVX2) == 0 || shape->m == 0 || shape->n == 0)
        return DSC_OK; /* the reference needs nothing */
    if (shape->a_fp8 == DSC_FP8_NONE)
        return prepare(s, shape, err);
    pthread_mutex_lock(&s->fp8_lock);
    const dsc_status status = values_room(s, shape, err);
    pthread_mutex_unlock(&s->fp8_lock);
    const dsc_gemm_args bf16 = in_bf16(shape, NULL);
    return status == DSC_OK ? prepare(s, &bf16, err) : status;
}

/* ---- running ---- */

typedef struct gemm_job {
    const dsc_gemm_args *args;
    const gemm_plan *plan;
    const gemm_kinds *kinds;
    dsc_gemm_store *store;
    dsc_epilogue_fn epilogue;
    dsc_panel_fn panel;
    _Atomic int failed; /* the library's status of some tile that failed */
} gemm_job;

static const char *at(const void *p, dsc_dtype dtype, int64_t row, int64_t ld, int64_t col)
{
    return (const char *)p + (row * ld + col) * (int64_t)dsc_dtype_bytes(dtype);
}

/* The products of tile (i, j) into x. */
static int tile_product(const gemm_job *job, int64_t i, int64_t j, float *x, char *scratch)
{
    const dsc_gemm_args *a = job->args;
    const gemm_plan *p = job->plan;
    const int64_t m0 = i * p->tile_m, n0 = j * p->tile_n;
    float *a_panel = (float *)(void *)(scratch + p->buffer_bytes);
    float *b_panel = (float *)(void *)(scratch + p->buffer_bytes + p->a_bytes);
    char *library = scratch + p->buffer_bytes + p->a_bytes + p->b_bytes;
    for (int64_t k0 = 0; k0 < a->k; k0 += p->k_step) {
        const bool end_k = k0 + p->k_step >= a->k;
        const dsc_gemm_prim *prim = job->kinds->prim[i == p->tiles_m - 1][j == p->tiles_n - 1][end_k][k0 > 0];
        const dsc_gemm_key *key = &prim->key;
        const void *pa =
            a->a_transposed ? at(a->a, a->ab_dtype, k0, a->lda, m0) : at(a->a, a->ab_dtype, m0, a->lda, k0);
        const void *pb =
            a->b_transposed ? at(a->b, a->ab_dtype, n0, a->ldb, k0) : at(a->b, a->ab_dtype, k0, a->ldb, n0);
        if (p->way == WAY_PANELS) {
            const dsc_panel of_a = { pa, a->a_transposed ? key->k : key->m, key->lda, a->lda, a->ab_dtype };
            const dsc_panel of_b = { pb, a->b_transposed ? key->n : key->k, key->ldb, a->ldb, a->ab_dtype };
            job->panel(a_panel, &of_a);
            job->panel(b_panel, &of_b);
            pa = a_panel;
            pb = b_panel;
        }
        const int status = dsc_gemm_lib_run(job->store->lib, prim, dsc_thread_index(), pa, pb, x, library);
        if (status != 0)
            return status;
    }
    return 0;
}

static dsc_epilogue_tile tile_epilogue(const gemm_job *job, int64_t i, int64_t j, const float *x, int64_t ldx)
{
    const dsc_gemm_args *a = job->args;
    const gemm_plan *p = job->plan;
    const int64_t m0 = i * p->tile_m, n0 = j * p->tile_n;
    const int64_t offset = (m0 * a->ldc + n0) * (int64_t)dsc_dtype_bytes(a->c_dtype);
    return (dsc_epilogue_tile){
        .kind = a->epilogue, .c_dtype = a->c_dtype, .bias_dtype = a->ab_dtype,
        .rows = dsc_min_i64(p->tile_m, a->m - m0), .cols = dsc_min_i64(p->tile_n, a->n - n0), .x = x, .ldx = ldx,
        .c = (char *)a->c + offset, .aux = a->aux != NULL ? (char *)a->aux + offset : NULL, .ldc = a->ldc,
        .bias = a->bias != NULL ? at(a->bias, a->ab_dtype, 0, 0, n0) : NULL, .activation = a->activation,
    };
}

static const uint16_t *b_at(const dsc_gemm_args *a, int64_t n0, int64_t k0)
{
    return (const uint16_t *)a->b + (a->b_transposed ? n0 * a->ldb + k0 : k0 * a->ldb + n0);
}

/* Part of B that is packed after step k0 of columns n0: the next step, or the first of columns n_next (-1: unknown). */
static void tell_next(const gemm_job *job, dsc_bf16_tile *t, int64_t n0, int64_t k0, int64_t n_next)
{
    const dsc_gemm_args *a = job->args;
    const gemm_plan *p = job->plan;
    const bool more_k = k0 + p->k_step < a->k;
    const int64_t n = more_k ? n0 : n_next, k = more_k ? k0 + p->k_step : 0;
    t->next = NULL;
    if (n < 0)
        return;
    const int64_t k_count = dsc_min_i64(p->k_step, a->k - k), n_count = dsc_min_i64(p->tile_n, a->n - n);
    t->next = b_at(a, n, k);
    t->next_rows = a->b_transposed ? n_count : k_count;
    t->next_cols = a->b_transposed ? k_count : n_count;
    t->next_ld = a->ldb;
}

/* Our own kernel. `packed`: the columns of this tile are packed in the scratch already. */
static void tile_packed(const gemm_job *job, int64_t i, int64_t j, char *scratch, bool packed, int64_t n_next)
{
    const dsc_gemm_args *a = job->args;
    const gemm_plan *p = job->plan;
    const int64_t m0 = i * p->tile_m, n0 = j * p->tile_n;
    const bool to_c = a->c_dtype == DSC_F32 && a->epilogue == DSC_EPILOGUE_NONE;
    const dsc_epilogue_tile epilogue = tile_epilogue(job, i, j, NULL, 0);
    uint16_t *b = (uint16_t *)(void *)(scratch + p->buffer_bytes);
    dsc_bf16_tile t = { .lda = a->lda, .b = b, .rows = epilogue.rows, .cols = epilogue.cols };
    t.sum = to_c ? (float *)a->c + m0 * a->ldc + n0 : p->buffered ? (float *)(void *)scratch : NULL;
    t.ld_sum = to_c ? a->ldc : t.cols;
    for (int64_t k0 = 0; k0 < a->k; k0 += p->k_step) {
        t.k = dsc_min_i64(p->k_step, a->k - k0);
        t.a = (const uint16_t *)a->a + m0 * a->lda + k0;
        t.add = a->accumulate || k0 > 0;
        t.finish = !to_c && k0 + t.k == a->k ? &epilogue : NULL;
        tell_next(job, &t, n0, k0, n_next);
        if (!packed || p->k_step < a->k)
            dsc_bf16_pack(b, b_at(a, n0, k0), a->ldb, a->b_transposed, t.k, t.cols);
        dsc_bf16_run(&t);
    }
}

static int tile_library(const gemm_job *job, int64_t i, int64_t j, char *scratch)
{
    const dsc_gemm_args *a = job->args;
    const gemm_plan *p = job->plan;
    const int64_t ldx = p->buffered ? dsc_min_i64(p->tile_n, a->n - j * p->tile_n) : a->ldc;
    float *x = p->buffered ? (float *)(void *)scratch : (float *)a->c + i * p->tile_m * a->ldc + j * p->tile_n;
    const int status = tile_product(job, i, j, x, scratch);
    if (status == 0 && (p->buffered || a->epilogue != DSC_EPILOGUE_NONE)) {
        const dsc_epilogue_tile tile = tile_epilogue(job, i, j, x, ldx);
        job->epilogue(&tile);
    }
    return status;
}

/* Tiles are numbered down the columns, so that tiles of the same columns of B follow each other. Which columns a thread
 * gets next is known inside its run of tiles, and else a guess that only costs time when it is wrong. */
static void run_tiles_packed(const gemm_job *job, int64_t first, int64_t last, char *scratch)
{
    const gemm_plan *p = job->plan;
    for (int64_t tile = first; tile < last; tile++) {
        const int64_t j = tile / p->tiles_m, next = tile + 1 < last ? tile + 1 : tile + dsc_thread_count();
        const bool other = next < p->tiles_m * p->tiles_n && next / p->tiles_m != j;
        tile_packed(job, tile % p->tiles_m, j, scratch, tile > first && tile % p->tiles_m > 0,
                    other ? next / p->tiles_m * p->tile_n : -1);
    }
}

static void run_tiles(void *ctx, int64_t first, int64_t last)
{
    gemm_job *job = ctx;
    const gemm_plan *p = job->plan;
    char *scratch = (char *)job->store->scratch.ptr + dsc_thread_index() * job->store->scratch_each;
    if (p->way == WAY_PACKED) {
        run_tiles_packed(job, first, last, scratch);
        return;
    }
    dsc_gemm_lib_saved saved;
    dsc_gemm_lib_enter(&saved);
    for (int64_t tile = first; tile < last && atomic_load_explicit(&job->failed, memory_order_relaxed) == 0; tile++) {
        const int status = tile_library(job, tile % p->tiles_m, tile / p->tiles_m, scratch);
        if (status != 0)
            atomic_store_explicit(&job->failed, status, memory_order_relaxed);
    }
    dsc_gemm_lib_leave(&saved);
}

static dsc_status product(const dsc_gemm_args *a, const dsc_cpu_threads *pool, dsc_error *err)
{
    dsc_gemm_store *s = pool->gemm;
    if (a->m == 0 || a->n == 0)
        return DSC_OK;
    if (s == NULL)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "GEMM", "this pool has no store of prepared products");
    const gemm_plan plan = plan_make(a, pool->caps);
    const bool wide = (pool->caps & DSC_CPU_AVX512) != 0;
    gemm_kinds kinds;
    gemm_job job = { .args = a,
                     .plan = &plan,
                     .kinds = &kinds,
                     .store = s,
                     .epilogue = wide ? dsc_epilogue_avx512 : dsc_epilogue_avx2,
                     .panel = wide ? dsc_panel_avx512 : dsc_panel_avx2 };
    dsc_cpu_threads local = *pool;
    local.threads = (int32_t)dsc_min_i64(pool->threads, s->threads); /* there is scratch for so many */
    pthread_mutex_lock(&s->lock);
    dsc_status status = make_ready(s, a, &plan, &kinds, err);
    if (status == DSC_OK)
        dsc_thread_pool_run(&local, plan.tiles_m * plan.tiles_n, run_tiles, &job);
    pthread_mutex_unlock(&s->lock);
    if (status == DSC_OK && atomic_load(&job.failed) != 0)
        status = dsc_gemm_lib_fail(atomic_load(&job.failed), "a matmul", err);
    return status;
}

static dsc_status product_fp8(const dsc_gemm_args *a, const dsc_cpu_threads *pool, dsc_error *err)
{
    dsc_gemm_store *s = pool->gemm;
    if (a->m == 0 || a->n == 0)
        return DSC_OK;
    if (s == NULL)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "GEMM", "this pool has no store of prepared products");
    pthread_mutex_lock(&s->fp8_lock);
    dsc_status status = values_room(s, a, err);
    if (status == DSC_OK) {
        const dsc_gemm_args bf16 = in_bf16(a, s->values.ptr);
        const bool blocks = a->a_blocks != DSC_FP8_BLOCKS_NONE;
        const dsc_fp8_unpack of_a = {
            s->values.ptr, a->a, a->m, a->k, a->lda, a->a_fp8, blocks ? 0 : a->a_scale->step, a->a_blocks, a->a_steps
        };
        const dsc_fp8_unpack of_b = {
            (uint16_t *)s->values.ptr + a->m * a->k, a->b,        a->n,      a->k, a->ldb, a->b_fp8,
            blocks ? 0 : a->b_scale->step,           a->b_blocks, a->b_steps
        };
        dsc_fp8_unpack_run(&of_a, pool);
        dsc_fp8_unpack_run(&of_b, pool);
        status = product(&bf16, pool, err);
    }
    pthread_mutex_unlock(&s->fp8_lock);
    return status;
}

/* ---- column sums ---- */

typedef struct colsum_job {
    const dsc_colsum_args *args;
    dsc_colsum_fn fn;
} colsum_job;

static void colsum_blocks(void *ctx, int64_t first, int64_t last)
{
    const colsum_job *job = ctx;
    job->fn(job->args, first * COLSUM_BLOCK, dsc_min_i64(last * COLSUM_BLOCK, job->args->cols));
}

static dsc_status colsum(const void *args, const dsc_cpu_threads *pool, dsc_colsum_fn fn)
{
    const dsc_colsum_args *a = args;
    DSC_ASSERT(a->rows >= 0 && a->cols >= 0);
    DSC_ASSERT(a->ld >= a->cols);
    DSC_ASSERT(dsc_dtype_computes(a->x_dtype));
    colsum_job job = { a, fn };
    dsc_thread_pool_run(pool, dsc_div_ceil(a->cols, COLSUM_BLOCK), colsum_blocks, &job);
    return DSC_OK;
}

static dsc_status gemm(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_gemm_args *a = args;
    dsc_gemm_check(a);
    if (a->a_fp8 != DSC_FP8_NONE)
        return product_fp8(a, pool, err);
    DSC_TRY(product(a, pool, err));
    if (a->sums_of == DSC_GEMM_NO_SUMS)
        return DSC_OK;
    const dsc_colsum_args sums = dsc_gemm_sums_args(a);
    return colsum(&sums, pool, (pool->caps & DSC_CPU_AVX512) != 0 ? dsc_colsum_avx512 : dsc_colsum_avx2);
}

static dsc_status colsum_plain(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return colsum(args, pool, dsc_colsum_ref);
}
static dsc_status colsum_avx2(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return colsum(args, pool, dsc_colsum_avx2);
}
static dsc_status colsum_avx512(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return colsum(args, pool, dsc_colsum_avx512);
}

void dsc_gemm_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_GEMM] = (caps & DSC_CPU_AVX2) != 0 ? gemm : dsc_gemm_ref;
    table->fn[DSC_KERNEL_COLSUM] = colsum_plain;
    if ((caps & DSC_CPU_AVX2) != 0)
        table->fn[DSC_KERNEL_COLSUM] = colsum_avx2;
    if ((caps & DSC_CPU_AVX512) != 0)
        table->fn[DSC_KERNEL_COLSUM] = colsum_avx512;
}

/* gemm_internal.h - between gemm.c (tiles), gemm_dnnl.c (the library) and gemm_epilogue_*.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_GEMM_INTERNAL_H
#define DSC_KERNELS_CPU_GEMM_INTERNAL_H

#include <signal.h>

#include "base/alloc.h"
#include "kernels/kernels.h"

/* One product the library can run: C[m,n] = (accumulate ? C : 0) + op(A) op(B), C fp32. Compared as bytes, so every
 * field is 64 bits and there is no padding. */
typedef struct dsc_gemm_key {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int64_t a_transposed, b_transposed, bf16, accumulate; /* 0 or 1 */
} dsc_gemm_key;

typedef struct dsc_gemm_prim {
    dsc_gemm_key key;
    uint64_t used;         /* when it was last looked up; 0: empty slot */
    int64_t scratch_bytes; /* the library's, per thread */
    void *primitive;       /* owned */
    void **memory;         /* owned [threads][4]: A, B, C, scratch of each thread, without data */
} dsc_gemm_prim;

/* The library's engine and one stream per thread. */
typedef struct dsc_gemm_lib dsc_gemm_lib;
DSC_MUST_USE dsc_status dsc_gemm_lib_open(dsc_alloc *alloc, int32_t threads, dsc_gemm_lib **out, dsc_error *err);
void dsc_gemm_lib_close(dsc_gemm_lib **lib);
/* Fills primitive, memory[] and scratch_bytes for prim->key; prim->memory is the caller's array. Nothing is left on
 * failure. */
DSC_MUST_USE dsc_status dsc_gemm_lib_make(dsc_gemm_lib *lib, dsc_gemm_prim *prim, dsc_error *err);
void dsc_gemm_lib_drop(dsc_gemm_lib *lib, dsc_gemm_prim *prim);
/* On thread `thread` of the pool; between enter and leave. Returns 0 or the library's status for dsc_gemm_lib_fail. */
int dsc_gemm_lib_run(dsc_gemm_lib *lib, const dsc_gemm_prim *prim, int32_t thread, const void *a, const void *b,
                     float *c, void *scratch);
/* Between enter and leave the library keeps to the calling thread, and no signal handler runs there. Kernels that
 * oneDNN generates (before 3.12, github.com/uxlfoundation/oneDNN/issues/4845) point the stack register into the
 * heap. There the kernel would write a signal's frame over the memory below. Signals that a fault raises are not
 * blocked. */
typedef struct dsc_gemm_lib_saved {
    int threads;
    sigset_t signals;
} dsc_gemm_lib_saved;
void dsc_gemm_lib_enter(dsc_gemm_lib_saved *saved);
void dsc_gemm_lib_leave(const dsc_gemm_lib_saved *saved);
dsc_status dsc_gemm_lib_fail(int status, const char *call, dsc_error *err);

/* Epilogue of a tile of fp32 products x while it is in cache. c may be x (F32 in place). */
typedef struct dsc_epilogue_tile {
    dsc_epilogue kind;
    dsc_dtype c_dtype, bias_dtype;
    int64_t rows, cols;
    const float *x;
    int64_t ldx;
    void *c;
    void *aux; /* same stride as c */
    int64_t ldc;
    const void *bias; /* [cols] or NULL */
    dsc_activation activation;
} dsc_epilogue_tile;
typedef void (*dsc_epilogue_fn)(const dsc_epilogue_tile *tile);
void dsc_epilogue_ref(const dsc_epilogue_tile *tile);
void dsc_epilogue_avx2(const dsc_epilogue_tile *tile);
void dsc_epilogue_avx512(const dsc_epilogue_tile *tile);

/* Products by VDPBF16PS (gemm_avx512bf16.c): A by rows as stored, B packed in panels of 64 columns. */
enum { DSC_BF16_PANEL = 64 };
/* Packs k x n of B (stored [k, n], or [n, k] when transposed) into align(n, 64) columns of align(k, 2) elements.
 * Columns from n on may stay as they are. */
void dsc_bf16_pack(uint16_t *to, const uint16_t *b, int64_t ld, bool transposed, int64_t k, int64_t n);
typedef struct dsc_bf16_tile {
    const uint16_t *a;
    int64_t lda;
    const uint16_t *b; /* packed */
    int64_t rows, cols, k;
    float *sum; /* where sums are stored, or, with `add`, added from */
    int64_t ld_sum;
    bool add;
    const dsc_epilogue_tile *finish; /* epilogue of the tile (rows, cols, x, ldx unused); NULL: sums go to `sum` */
    const uint16_t *next; /* NULL, or what this thread is likely to pack next, as stored: brought near meanwhile */
    int64_t next_rows, next_cols, next_ld;
} dsc_bf16_tile;
void dsc_bf16_run(const dsc_bf16_tile *tile);

/* to[r * cols + c] = from[r * ld + c] as fp32: the panels of fp16, and of bf16 on a CPU without its products. */
typedef struct dsc_panel {
    const uint16_t *from;
    int64_t rows, cols, ld;
    dsc_dtype dtype; /* BF16 or F16 */
} dsc_panel;
typedef void (*dsc_panel_fn)(float *to, const dsc_panel *panel);
void dsc_panel_avx2(float *to, const dsc_panel *panel);
void dsc_panel_avx512(float *to, const dsc_panel *panel);

/* Columns first..last-1 of a COLSUM; the order of additions of gemm.h, so every variant has the same bits. */
typedef void (*dsc_colsum_fn)(const dsc_colsum_args *args, int64_t first, int64_t last);
void dsc_colsum_ref(const dsc_colsum_args *args, int64_t first, int64_t last);
void dsc_colsum_avx2(const dsc_colsum_args *args, int64_t first, int64_t last);
void dsc_colsum_avx512(const dsc_colsum_args *args, int64_t first, int64_t last);

dsc_status dsc_gemm_ref(const void *args, const dsc_cpu_threads *pool, dsc_error *err);
/* Asserts that the arguments keep gemm.h's rules. */
void dsc_gemm_check(const dsc_gemm_args *args);

#endif

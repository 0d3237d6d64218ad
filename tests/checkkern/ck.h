/* ck.h - checks every variant of every kernel against its reference, and times the ones that passed.
 *
 * An op file tests/checkkern/OP.c has `void ck_OP(void)`, listed in ck_ops.def. One case looks like this:
 *
 *     if (!ck_case("adamw n=%d", n)) continue;              // filtered out by --fn
 *     float *p = ck_buf(CK_INOUT, DSC_F32, n, "master");    // red zones around it, NaN poison in outputs
 *     const float *g = ck_buf(CK_IN, DSC_F32, n, "grad");
 *     ck_normal(p, 0, 1), ck_normal(g, 0, 1);               // from the seed and the case's name
 *     dsc_update_args args = { .master = p, ... };
 *     ck_kernel(DSC_KERNEL_ADAMW, &args, sizeof args, verify);  // verify = NULL: every output bitwise as the reference
 *
 * ck_kernel runs the kernel of every caps mask this CPU has: 0 is the reference, then AVX2, AVX512, AVX512_BF16. GEMM
 * also runs with the AMX bit, and then bf16 products are the library's. Each mask runs with 1, 2, 3 and 8 threads (the
 * reference by day with 1 and 3), and the inputs are restored in between. ck_kernel checks red zones, untouched inputs
 * and gaps, and that every thread count gives the same bits; then `verify` compares the variant's outputs with
 * something, once for equal bits.
 * Failures print variant, element, numbers and the line that reruns the case. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_CK_H
#define DSC_TESTS_CHECKKERN_CK_H

#include "base/bf16.h"
#include "base/f16.h"
#include "kernels/kernels.h"

typedef enum ck_role {
    CK_IN,     /* must not change */
    CK_OUT,    /* NaN poison before each run; compared */
    CK_INOUT,  /* restored before each run; compared */
    CK_SCRATCH /* NaN poison before each run; not compared */
} ck_role;

/* Ends the case before and starts one. False when --fn filters it out. Buffers live until the next case. */
bool ck_case(const char *fmt, ...) DSC_PRINTF(1, 2);
/* In two of three cases aligned to elements only (an odd element offset half of the time). Other cases, cases named
 * "bench", buffers of dtype U8 (structs) and those after ck_align are 64-byte aligned. */
void *ck_buf(ck_role role, dsc_dtype dtype, int64_t count, const char *name);
void ck_align(void); /* until the case ends */
/* Declares a buffer as rows of `cols` at `stride`: the elements between rows become NaN and must not be written. */
void ck_gaps(const void *buf, int64_t rows, int64_t cols, int64_t stride);

/* Fill a whole buffer, by its dtype. */
void ck_normal(const void *buf, double mean, double std);
void ck_uniform(const void *buf, double low, double high);
void ck_int(const void *buf, int32_t low, int32_t high); /* I32, both ends included */
/* Puts zeros, denormals, Inf-free extremes and powers of two among the elements (about one in 16). */
void ck_edges(const void *buf);
uint32_t ck_random(void); /* the case's generator */

double ck_get(const void *buf, int64_t i);             /* element as double */
void ck_set(const void *buf, int64_t i, double value); /* rounded to the buffer's dtype */
double ck_ref(const void *buf, int64_t i);             /* result of the reference (caps 0, 1 thread) */
double ck_start(const void *buf, int64_t i);           /* value before the run (poison for CK_OUT) */

/* Compares the current variant's outputs; not called for a variant with the bits of one that passed before it. */
typedef void (*ck_verify_fn)(const void *args);
void ck_kernel(dsc_kernel kernel, const void *args, int64_t args_bytes, ck_verify_fn verify);

/* For verify functions; each counts into the case's failures. */
bool ck_has_ref_bits(const void *buf);                                /* counts no failure */
void ck_same(const void *buf);                                        /* bitwise as the reference */
void ck_near(const void *buf, int64_t i, double expected, double tol); /* |got - expected| <= tol; NaN fails */
void ck_near_ref(const void *buf, double tol_relative, double tol_absolute); /* all elements, against the reference */
void ck_fail(const char *fmt, ...) DSC_PRINTF(1, 2);
uint32_t ck_caps(void);                 /* caps of the variant under test */
/* With --device cuda there is one variant, the GPU's, which rounds where DSC_CPU_AVX512_BF16 does. Kernels whose sums
 * have an order of their own there are held to their bounds alone. */
enum { CK_GPU = 1 << 16 };
bool ck_on_gpu(void);
/* Sets which epilogues the GPU's library computes with a product (dsc_gemm_fused); false on a CPU. */
bool ck_device_fuse(uint32_t fused);
void ck_same_on_cpu(const void *buf);                                 /* ck_same, and nothing on a GPU */
void ck_variant_set(uint32_t caps);     /* for cases without ck_kernel: what messages name */
const char *ck_dtype_text(dsc_dtype dtype); /* "f32", "bf16" or "f16" */
double ck_spacing(dsc_dtype dtype, double x); /* distance of |x| to the next value of F32, BF16 or F16 */
double ck_rounding(dsc_dtype dtype, double x); /* error of storing x: half a spacing in 16 bits, 0 in F32 */

/* Times every variant that never failed in this run: median of several runs, 1 thread and --threads. Only with --bench
 * (ck_benching), in a case of its own or after ck_kernel. bytes: moved; flops: 0 when memory decides. */
enum {
    CK_NO_REF = 1,   /* the plain C reference would take seconds */
    CK_F32_PEAK = 2  /* compare flops with fp32 multiply-adds even where the CPU has bf16 products */
};
bool ck_benching(void);
int64_t ck_bench_size(int64_t on_cpu, int64_t on_gpu);
/* A simulated GPU, and no night: cases whose size means something to CPUs alone are smaller. */
bool ck_shortened(void);
void ck_bench(dsc_kernel kernel, const void *args, int64_t args_bytes, int64_t bytes, int64_t flops, uint32_t flags);

/* ck_peak.c: measured limits of this machine with `threads` threads. */
double ck_peak_bytes_per_ns(int32_t threads);              /* copy: read plus written */
double ck_peak_flops_per_ns(int32_t threads, bool bf16);   /* FMA fp32, or VDPBF16PS */
double ck_fma_loop_avx2(int64_t rounds);                   /* each returns flops done; ck_peak_avx2.c ... */
double ck_fma_loop_avx512(int64_t rounds);
double ck_fma_loop_avx512bf16(int64_t rounds);

#define X(name) void ck_##name(void);
#include "tests/checkkern/ck_ops.def"
#undef X

#endif

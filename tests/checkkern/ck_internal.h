/* ck_internal.h - shared by the files of the checker; op files include ck.h only. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_TESTS_CHECKKERN_CK_INTERNAL_H
#define DSC_TESTS_CHECKKERN_CK_INTERNAL_H

#include <stdio.h>

#include "tests/checkkern/ck.h"

enum { CK_VARIANTS = 5, CK_BUFS_MAX = 32 };
typedef struct ck_variant {
    const char *name;
    uint32_t caps;
    bool gemm_only;
} ck_variant;
extern const ck_variant ck_variants[CK_VARIANTS];

typedef struct ck_settings {
    const char *fn; /* glob over case names, NULL: all */
    uint64_t seed;
    bool bench;
    int32_t threads; /* of benches */
    bool gpu;        /* --device cuda */
    bool cpu_time;   /* benches: one thread, by its CPU clock, for a machine that others use too */
} ck_settings;
extern ck_settings ck_set_up;
extern int64_t ck_cases_run, ck_cases_failed;

/* This case runs `fn` in place of every variant and passes when the checker finds a failure. */
void ck_canary(dsc_kernel_fn fn);
bool ck_variant_runs(int32_t variant, dsc_kernel kernel); /* on this CPU */
bool ck_matches(const char *name);          /* --fn */
const char *ck_variant_name(uint32_t caps);
double ck_now_ns(void);
void ck_case_end(void);
const char *ck_case_name(void);
bool ck_may_bench(dsc_kernel kernel, int32_t variant);
/* Allocations of the case, red zones included. Returns how many. */
typedef struct ck_span {
    char *block;
    int64_t bytes;
} ck_span;
/* The case compares nothing, for this reason, which is a literal. Failures of the case still count. */
void ck_skip(const char *why);
int32_t ck_spans(ck_span span[CK_BUFS_MAX]);
/* One run without checks, of any caps mask or CK_GPU. */
void ck_run(dsc_kernel kernel, uint32_t caps, const void *args, int64_t args_bytes);

/* ck_device.c. A failure is the case's. `number`: of the run, each with another schedule in the simulator. */
bool ck_device_is_simulated(void); /* the program has simulated GPUs in it */
bool ck_wants_cudnn(void); /* CK_CUDNN is set in the environment: attention and convolutions by cuDNN are checked too */
bool ck_device_open(dsc_error *err);
void ck_device_close(void);
void ck_device_describe(char *text, size_t text_bytes);
/* Whether CONV2D has a kernel for the pass on the GPU: cuDNN's. */
bool ck_device_choose_conv2d(const dsc_conv2d_args *args);
/* Attentions of all shapes that were asked for take the kernel of `kind`, where they have it: "warps", "cudnn" or one
 * of warpgroups. False: the shape of `args` does not take it here, and all take the kernel of warps then. A shape
 * without a choice is a failure of the case, except for "cudnn": cuDNN may refuse a shape that has one own kernel. */
bool ck_device_choose_attention(const dsc_attention_fwd_args *args, const char *kind);
bool ck_device_run(dsc_kernel kernel, const void *args, int64_t args_bytes, int32_t number);
void ck_device_bench(dsc_kernel kernel, const void *args, int64_t args_bytes, int64_t bytes, int64_t flops, bool f32);

struct dsc_gemm_store *ck_gemm_store(uint32_t caps); /* one per caps mask, opened when first asked for */

#endif

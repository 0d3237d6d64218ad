/* ck_internal.h - what the files of the checker share; op files include ck.h only. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_TESTS_CHECKKERN_CK_INTERNAL_H
#define DSC_TESTS_CHECKKERN_CK_INTERNAL_H

#include <stdio.h>

#include "tests/checkkern/ck.h"

enum { CK_VARIANTS = 5 };
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
struct dsc_gemm_store *ck_gemm_store(uint32_t caps); /* one per caps mask, opened when first asked for */

#endif

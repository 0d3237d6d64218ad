/* ck_exact.h - shared by the checks of kernels whose bits are a contract: lengths, wild numbers, and a second
 * implementation of rounding. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_CK_EXACT_H
#define DSC_TESTS_CHECKKERN_CK_EXACT_H

#include "tests/checkkern/ck_internal.h"

enum { CK_LENGTHS = 19 };
extern const int64_t ck_lengths[CK_LENGTHS];

/* Every element is the reference's, or both are NaN. */
void ck_same_or_nan(const void *buf, int64_t count);
void ck_wild(const void *buf, int64_t count);
double ck_half_value(uint16_t h, dsc_dtype dtype);
uint16_t ck_nearest_half(float x, dsc_dtype dtype);
uint16_t ck_round_stochastic(float x, uint32_t random_bits, double *error);
void ck_check_mean(double error, int64_t count);

#endif

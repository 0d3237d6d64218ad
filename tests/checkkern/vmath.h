/* vmath.h - one loop per instruction set over the vector functions of kernels/cpu/vmath_*.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_VMATH_H
#define DSC_TESTS_CHECKKERN_VMATH_H
#include "tests/checkkern/ck.h"

typedef enum ck_vmath_fn { CK_EXP, CK_SIGMOID, CK_TANH, CK_GELU, CK_GELU_SLOPE, CK_BF16, CK_VMATH_COUNT } ck_vmath_fn;
/* count: a multiple of 16 */
void ck_vmath_avx2(ck_vmath_fn fn, float *out, const float *in, int64_t count);
void ck_vmath_avx512(ck_vmath_fn fn, float *out, const float *in, int64_t count);

#endif

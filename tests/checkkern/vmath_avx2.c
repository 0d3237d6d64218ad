/* vmath_avx2.c - the inline functions of kernels/cpu/vmath_avx2.h as loops. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/vmath.h"

#if defined(__AVX2__)
#include "kernels/cpu/vmath_avx2.h"

void ck_vmath_avx2(ck_vmath_fn fn, float *out, const float *in, int64_t count)
{
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 x = _mm256_loadu_ps(in + i);
        __m256 y = x;
        switch (fn) {
        case CK_EXP: y = dsc_exp_avx2(x); break;
        case CK_SIGMOID: y = dsc_sigmoid_avx2(x); break;
        case CK_TANH: y = dsc_tanh_avx2(x); break;
        case CK_GELU: y = dsc_gelu_avx2(x); break;
        case CK_GELU_SLOPE: y = dsc_gelu_slope_avx2(x); break;
        case CK_BF16: y = dsc_f32_from_bf16_avx2(dsc_bf16_from_f32_avx2(x)); break;
        case CK_VMATH_COUNT: break;
        }
        _mm256_storeu_ps(out + i, y);
    }
}
#else
void ck_vmath_avx2(ck_vmath_fn fn, float *out, const float *in, int64_t count) {}
#endif

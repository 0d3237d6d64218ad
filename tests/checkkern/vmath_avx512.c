/* vmath_avx512.c - the inline functions of kernels/cpu/vmath_avx512.h as loops. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/vmath.h"

#if defined(__AVX512F__)
#include "kernels/cpu/vmath_avx512.h"

void ck_vmath_avx512(ck_vmath_fn fn, float *out, const float *in, int64_t count)
{
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 x = _mm512_loadu_ps(in + i);
        __m512 y = x;
        switch (fn) {
        case CK_EXP: y = dsc_exp_avx512(x); break;
        case CK_SIGMOID: y = dsc_sigmoid_avx512(x); break;
        case CK_TANH: y = dsc_tanh_avx512(x); break;
        case CK_GELU: y = dsc_gelu_avx512(x); break;
        case CK_GELU_SLOPE: y = dsc_gelu_slope_avx512(x); break;
        case CK_BF16: y = dsc_f32_from_bf16_avx512(dsc_bf16_from_f32_avx512(x)); break;
        case CK_VMATH_COUNT: break;
        }
        _mm512_storeu_ps(out + i, y);
    }
}
#else
void ck_vmath_avx512(ck_vmath_fn fn, float *out, const float *in, int64_t count) {}
#endif

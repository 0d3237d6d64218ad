/* conv2d_micro_avx512.c - conv2d_micro_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

#define MICRO_VECS 4
#define MICRO_ROWS(vecs) ((vecs) == 4 ? 6 : (vecs) == 3 ? 8 : 12)
#define MICRO_PAIRS 0
#define MICRO_NAME dsc_conv2d_micro_avx512
#include "kernels/cpu/conv2d_micro_v16.h"

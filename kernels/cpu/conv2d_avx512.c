/* conv2d_avx512.c - conv2d_range.h for AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

#define CONV2D_ISA avx512
#include "kernels/cpu/conv2d_range.h"

/* batch_norm_avx512.c - batch_norm_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/batch_norm_v16.h"

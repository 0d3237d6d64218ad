/* dropout_avx2.c - dropout_wide.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/philox_avx2.h"

#include "kernels/cpu/dropout_wide.h"

DROPOUT_DEFINE(avx2, dropout_words_wide)

/* fp8_ref.c - the reference. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/fp8_range.h"

FP8_DEFINE(ref)

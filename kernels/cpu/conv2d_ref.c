/* conv2d_ref.c - conv2d_range.h for the reference. SPDX-License-Identifier: Apache-2.0 */
#define CONV2D_ISA ref
#include "kernels/cpu/conv2d_range.h"

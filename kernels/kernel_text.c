/* kernel_text.c - the names of kernels. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

const char *dsc_kernel_text(dsc_kernel kernel)
{
    switch (kernel) {
#define X(id, args) \
    case DSC_KERNEL_##id: return #id;
#include "kernels/kernels.def"
#undef X
    case DSC_KERNEL_COUNT: break;
    }
    return "?";
}

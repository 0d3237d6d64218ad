/* gemm_epilogue_kinds.h - one instance of rows() for each kind and dtypes. Included by gemm_epilogue_*.c after rows(),
 * whose last three arguments are constants in every call here, so that each call is a loop of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_GEMM_EPILOGUE_KINDS_H
#define DSC_KERNELS_GEMM_EPILOGUE_KINDS_H

#include "kernels/gemm_internal.h"

static inline __attribute__((always_inline)) void by_kind(const dsc_epilogue_tile *t, bool bf16, bool bias_bf16)
{
    switch (t->kind) {
    case DSC_EPILOGUE_NONE: rows(t, DSC_EPILOGUE_NONE, bf16, bias_bf16); break;
    case DSC_EPILOGUE_BIAS: rows(t, DSC_EPILOGUE_BIAS, bf16, bias_bf16); break;
    case DSC_EPILOGUE_BIAS_GELU: rows(t, DSC_EPILOGUE_BIAS_GELU, bf16, bias_bf16); break;
    case DSC_EPILOGUE_BIAS_ADD: rows(t, DSC_EPILOGUE_BIAS_ADD, bf16, bias_bf16); break;
    case DSC_EPILOGUE_DGELU: rows(t, DSC_EPILOGUE_DGELU, bf16, bias_bf16); break;
    case DSC_EPILOGUE_ADD: rows(t, DSC_EPILOGUE_ADD, bf16, bias_bf16); break;
    }
}

static void by_dtypes(const dsc_epilogue_tile *t)
{
    const bool bf16 = t->c_dtype == DSC_BF16;
    if (t->bias_dtype == DSC_BF16)
        bf16 ? by_kind(t, true, true) : by_kind(t, false, true);
    else
        bf16 ? by_kind(t, true, false) : by_kind(t, false, false);
}

#endif

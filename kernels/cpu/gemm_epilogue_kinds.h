/* gemm_epilogue_kinds.h - one instance of rows() for each kind and dtypes. Included by gemm_epilogue_*.c after rows(),
 * whose last three arguments are constants in every call here, so that each call is a loop of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_GEMM_EPILOGUE_KINDS_H
#define DSC_KERNELS_CPU_GEMM_EPILOGUE_KINDS_H

#include "kernels/cpu/gemm_internal.h"
#include "kernels/cpu/range.h"

static inline __attribute__((always_inline)) void by_kind(const dsc_epilogue_tile *t, dsc_dtype dtype,
                                                          dsc_dtype bias_dtype)
{
    switch (t->kind) {
    case DSC_EPILOGUE_NONE: rows(t, DSC_EPILOGUE_NONE, dtype, bias_dtype); break;
    case DSC_EPILOGUE_BIAS: rows(t, DSC_EPILOGUE_BIAS, dtype, bias_dtype); break;
    case DSC_EPILOGUE_BIAS_GELU: rows(t, DSC_EPILOGUE_BIAS_GELU, dtype, bias_dtype); break;
    case DSC_EPILOGUE_BIAS_ADD: rows(t, DSC_EPILOGUE_BIAS_ADD, dtype, bias_dtype); break;
    case DSC_EPILOGUE_DGELU: rows(t, DSC_EPILOGUE_DGELU, dtype, bias_dtype); break;
    case DSC_EPILOGUE_ADD: rows(t, DSC_EPILOGUE_ADD, dtype, bias_dtype); break;
    case DSC_EPILOGUE_BIAS_ACTIVATION:
    case DSC_EPILOGUE_ACTIVATION:
    case DSC_EPILOGUE_SLOPE:
        break; /* by_dtypes has taken them */
    }
}

static void by_dtypes(const dsc_epilogue_tile *t)
{
    if (t->kind == DSC_EPILOGUE_BIAS_ACTIVATION || t->kind == DSC_EPILOGUE_ACTIVATION)
        activation_by_kind(t);
    else if (t->kind == DSC_EPILOGUE_SLOPE)
        slope_by_kind(t);
    else if (t->c_dtype == DSC_F32)
        DSC_FOR_DTYPE(t->bias_dtype, by_kind(t, DSC_F32, dtype));
    else if (t->bias_dtype == DSC_F32)
        t->c_dtype == DSC_F16 ? by_kind(t, DSC_F16, DSC_F32) : by_kind(t, DSC_BF16, DSC_F32);
    else
        t->c_dtype == DSC_F16 ? by_kind(t, DSC_F16, DSC_F16) : by_kind(t, DSC_BF16, DSC_BF16);
}

#endif

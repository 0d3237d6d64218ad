/* lstm.c - cuts a step of an LSTM into pieces of rows and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/lstm_internal.h"
#include "kernels/kernels.h"

static void check_shape(const dsc_lstm_shape *of)
{
    DSC_ASSERT(of->samples >= 0);
    DSC_ASSERT(of->steps >= 1);
    DSC_ASSERT(of->hidden >= 1);
    DSC_ASSERT(of->step >= 0 && of->step < of->steps);
}

static dsc_status fwd(const dsc_lstm_fwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_ASSERT(dsc_lstm_is_first(&a->shape) || a->product != NULL);
    DSC_TRY(dsc_range_dtype_check("LSTM_FWD", a->dtype, err));
    dsc_range_run(pool, a->shape.samples * dsc_lstm_pieces(&a->shape), fn, a);
    return DSC_OK;
}

static dsc_status bwd(const dsc_lstm_bwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_TRY(dsc_range_dtype_check("LSTM_BWD", a->dtype, err));
    dsc_range_run(pool, a->shape.samples * dsc_lstm_pieces(&a->shape), fn, a);
    return DSC_OK;
}

#define LSTM_VARIANT(isa)                                                                                              \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return fwd(args, pool, err, dsc_lstm_fwd_##isa);                                                               \
    }                                                                                                                  \
    static dsc_status bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return bwd(args, pool, err, dsc_lstm_bwd_##isa);                                                               \
    }
LSTM_VARIANT(ref)
LSTM_VARIANT(avx2)
LSTM_VARIANT(avx512)

void dsc_lstm_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_LSTM_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_LSTM_BWD] = avx512 ? bwd_avx512 : avx2 ? bwd_avx2 : bwd_ref;
}

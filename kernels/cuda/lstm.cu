/* lstm.cu - a step of an LSTM: a thread has a column of a sample. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/lstm.h"

namespace
{

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T> struct lstm_fwd_op {
    dsc_lstm_fwd_args a;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t h = a.shape.hidden, sample = i / h, j = i % h, row = dsc_lstm_row(&a.shape, sample);
        const T *x = static_cast<const T *>(a.x) + 4 * row * h + j, *bias = static_cast<const T *>(a.bias);
        T *gates = static_cast<T *>(a.gates) + 4 * row * h + j;
        const bool is_first = dsc_lstm_is_first(&a.shape);
        float gate[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float part = is_first ? 0.0f : a.product[(4 * sample + k) * h + j];
            gate[k] = to_f32(x[k * h]) + part;
            if (bias != NULL)
                gate[k] += to_f32(bias[k * h + j]);
            gate[k] = k == 2 ? tanhf(gate[k]) : sigmoid(gate[k]);
        }
        float cell = gate[0] * gate[2];
        if (!is_first)
            cell = fmaf(gate[1], a.cells[(row - 1) * h + j], cell);
#pragma unroll
        for (int k = 0; k < 4; k++)
            gates[k * h] = element<T>::from(gate[k]);
        a.cells[row * h + j] = cell;
        static_cast<T *>(a.y)[row * h + j] = element<T>::from(gate[3] * tanhf(cell));
    }
};

template <class T> struct lstm_bwd_op {
    dsc_lstm_bwd_args a;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t h = a.shape.hidden, sample = i / h, j = i % h, row = dsc_lstm_row(&a.shape, sample);
        const int64_t at = row * h + j;
        const T *gates = static_cast<const T *>(a.gates) + 4 * row * h + j, *y = static_cast<const T *>(a.y);
        T *d = static_cast<T *>(a.d_gates) + 4 * row * h + j;
        const bool follows = !dsc_lstm_is_first(&a.shape), leads = !dsc_lstm_is_last(&a.shape);
        const float in = to_f32(gates[0]), forget = to_f32(gates[h]), cell_in = to_f32(gates[2 * h]);
        const float out = to_f32(gates[3 * h]), t = tanhf(a.cells[at]);
        const float dy = to_f32(static_cast<const T *>(a.d_y)[at]) + (leads ? a.product[i] : 0.0f);
        const float dc = dy * out * (1.0f - t * t) + (leads ? a.d_cell[i] : 0.0f);
        d[0] = element<T>::from(dc * cell_in * in * (1.0f - in));
        d[h] = element<T>::from(dc * (follows ? a.cells[at - h] : 0.0f) * forget * (1.0f - forget));
        d[2 * h] = element<T>::from(dc * in * (1.0f - cell_in * cell_in));
        d[3 * h] = element<T>::from(dy * t * out * (1.0f - out));
        static_cast<T *>(a.before)[at] = follows ? y[at - h] : element<T>::from(0.0f);
        a.d_cell[i] = dc * forget;
    }
};

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_lstm_fwd_args *a)
{
    const lstm_fwd_op<T> op = { *a };
    each<1>(at, op, a->shape.samples * a->shape.hidden, false);
}

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_lstm_bwd_args *a)
{
    const lstm_bwd_op<T> op = { *a };
    each<1>(at, op, a->shape.samples * a->shape.hidden, false);
}

} // namespace

dsc_status dsc_cuda_run_LSTM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_lstm_fwd_args *a = static_cast<const dsc_lstm_fwd_args *>(args);
    DSC_TRY(dtype_check("LSTM_FWD", a->dtype, err));
    DSC_ASSERT(a->shape.hidden >= 1 && a->shape.step >= 0 && a->shape.step < a->shape.steps);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, fwd<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_LSTM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_lstm_bwd_args *a = static_cast<const dsc_lstm_bwd_args *>(args);
    DSC_TRY(dtype_check("LSTM_BWD", a->dtype, err));
    DSC_ASSERT(a->shape.hidden >= 1 && a->shape.step >= 0 && a->shape.step < a->shape.steps);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, bwd<T>(at, a));
    return DSC_OK;
}

/* attention.h - shared parts of the attention kernels: tiles in shared memory, and how warps read them for products.
 *
 * A tile has DP columns (the head size rounded up; zeros beyond it) and rows of DP + 8 elements. Eight rows of 16 bytes
 * then lie in different banks, for every DP.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/ptx.h"

/* By shuffles and fp32 multiply-adds: fp32, fp16, and bf16 heads that the tensor core kernels do not have. */
enum { DSC_CUDA_ATTENTION_HEAD_MAX = 256, DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX = 128 };
dsc_status dsc_cuda_attention_fwd_plain(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err);
dsc_status dsc_cuda_attention_bwd_plain(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err);

namespace {

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

__host__ __device__ constexpr int tile_stride(int columns) { return columns + 8; }
__host__ __device__ constexpr int tile_elements(int rows, int columns) { return rows * tile_stride(columns); }

/* A score below every real one: a row of nothing else stays finite. A power of two, so that it is exact when scaled. */
constexpr float LOW_SCORE = -0x1p100f;

/* Whether key `key` of sample `batch` is one that nobody sees; of `tokens` keys. */
__device__ __forceinline__ bool is_hidden(const dsc_attention_keys &keys, int64_t batch, int32_t tokens, int32_t key)
{
    return key >= tokens || (keys.tokens != NULL && keys.tokens[batch * tokens + key] == keys.hidden);
}

/* The first key that query `token` sees; before it nothing is. MORE: the kernel has windows and documents to both
 * sides, as MORE says of others below. */
template <bool MORE = false>
__device__ __forceinline__ int32_t first_key(const dsc_attention_keys &keys, int64_t batch, int32_t tokens,
                                             int32_t token)
{
    if (!MORE && keys.all)
        return 0;
    const int32_t last = min(token, tokens - 1);
    const int32_t start = keys.positions != NULL ? last - keys.positions[batch * tokens + last] : 0;
    const int32_t window = MORE && keys.all ? keys.window / 2 + 1 : keys.window;
    return keys.window > 0 ? max(start, keys.past + last + 1 - window) : start;
}

/* The end of the tiles of N tokens from `tile` on that have one whose first key is before `last`: first keys never
 * decrease, so a search by halves. With `all` a token sees another one if that one sees it. */
template <int N, bool MORE = false>
__device__ __forceinline__ int32_t end_of_tiles(const dsc_attention_keys &keys, int64_t batch, int32_t tokens,
                                                int32_t tile, int32_t last)
{
    int32_t end = (tokens + N - 1) / N;
    while (tile < end) {
        const int32_t middle = (tile + end) / 2;
        if (first_key<MORE>(keys, batch, tokens, middle * N) < last)
            tile = middle + 1;
        else
            end = middle;
    }
    return end;
}

/* ---- logits (dsc_attention_logits) ---- */

struct logit_rule {
    bool any;
    float scale, softcap, alibi, of_key;
};

inline logit_rule rule_of(const dsc_attention_logits &logits, float scale)
{
    const float of_key = logits.alibi > 0 ? logits.alibi_of_key : 0.0f;
    return { dsc_attention_has_logits(&logits), scale, logits.softcap, logits.alibi, of_key };
}

__device__ __forceinline__ float slope_of(const logit_rule &rule, int32_t heads, int64_t head)
{
    return rule.alibi > 0 ? exp2f(-dsc_attention_slope_power(rule.alibi, heads, static_cast<int32_t>(head))) : 0.0f;
}

/* Scores of a product become logits but for the slopes. */
template <int MT, int NT> __device__ __forceinline__ void cap_scores(float (&score)[MT][NT][4], const logit_rule &rule)
{
    const float factor = rule.softcap > 0 ? 2 * LOG2_E * rule.scale / rule.softcap : rule.scale;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = score[m][n][e] * factor;
                if (rule.softcap > 0)
                    x = rule.softcap * fmaf(-2.0f, fast_reciprocal(1.0f + fast_exp2(x)), 1.0f);
                score[m][n][e] = x;
            }
}

/* Gradients of logits become those of the scaled scores, which cap_scores made logits of. */
template <int MT, int NT>
__device__ __forceinline__ void cap_gradients(float (&ds)[MT][NT][4], const float (&logit)[MT][NT][4],
                                              const logit_rule &rule)
{
    if (!(rule.softcap > 0))
        return;
    const float factor = 1.0f / rule.softcap;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float t = logit[m][n][e] * factor;
                ds[m][n][e] *= fmaf(-t, t, 1.0f);
            }
}

/* Rows from `row` on and columns from `col` on are tokens: rows of keys and columns of queries, or the other way. */
template <bool KEYS_ARE_ROWS, int MT, int NT>
__device__ __forceinline__ void slope_scores(float (&logit)[MT][NT][4], const logit_rule &rule, float slope,
                                             int32_t row, int32_t col)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    if (!(slope > 0))
        return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t at_row = row + 16 * m + 8 * (e / 2) + g, at_col = col + 8 * n + 2 * t + (e & 1);
                const int32_t distance = abs(at_row - at_col);
                if (rule.of_key > 0)
                    logit[m][n][e] += dsc_attention_key_addend(rule.of_key, slope, KEYS_ARE_ROWS ? at_row : at_col);
                else
                    logit[m][n][e] = fmaf(-slope, static_cast<float>(distance), logit[m][n][e]);
            }
}

/* Rows first .. of a tensor's head. */
struct head_rows {
    const uint16_t *first; /* row 0 of the batch item, at the head */
    int64_t stride;
    int32_t count, size; /* rows and columns that exist */
    bool vectors;        /* 16-byte accesses are possible */
};

/* ROWS rows from `row` on into a tile; by asynchronous copies of the open group where 16 bytes go at once. */
template <int DP, int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(uint16_t *tile, const head_rows &x, int32_t row)
{
    constexpr int CHUNKS = DP / 8;
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS * 8;
        uint16_t *to = tile + r * tile_stride(DP) + c;
        const bool exists = row + r < x.count;
        const uint16_t *from = x.first + (exists ? static_cast<int64_t>(row + r) * x.stride : 0);
        if (x.vectors) {
            const bool valid = exists && c < x.size;
            cp_async16(to, from + (valid ? c : 0), valid);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                to[j] = exists && c + j < x.size ? from[c + j] : static_cast<uint16_t>(0);
        }
    }
}

/* Rows row .. row + 15, columns col .. col + 15 as the left operand. */
template <int DP> __device__ __forceinline__ void left_operand(unsigned (&a)[4], const uint16_t *tile, int row, int col)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    ldmatrix_x4(a, tile + (row + lane % 16) * tile_stride(DP) + col + lane / 16 * 8);
}

/* Right operands of two products: their n are rows row .. row + 15 of the tile, k its columns col .. col + 15. */
template <int DP>
__device__ __forceinline__ void right_operands(unsigned (&b)[4], const uint16_t *tile, int row, int col)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    ldmatrix_x4(b, tile + (row + lane / 16 * 8 + lane % 8) * tile_stride(DP) + col + (lane / 8 & 1) * 8);
}

/* Variant with k along rows and n along columns. */
template <int DP>
__device__ __forceinline__ void right_operands_trans(unsigned (&b)[4], const uint16_t *tile, int row, int col)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    ldmatrix_x4_trans(b, tile + (row + lane % 16) * tile_stride(DP) + col + lane / 16 * 8);
}

/* sum[m][n] of tiles of 16 x 8: rows of `left` times rows of `right`, over all DP columns. */
template <int DP, int MT, int NT>
__device__ __forceinline__ void multiply_rows(float (&sum)[MT][NT][4], const uint16_t *left, int left_row,
                                              const uint16_t *right)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[m][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < DP; k += 16) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            left_operand<DP>(a[m], left, left_row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            unsigned b[4];
            right_operands<DP>(b, right, 8 * n, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_bf16(sum[m][n], a[m], b[0], b[1]);
                mma_bf16(sum[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* sum[m][n] += x times the rows of `right`: x [16 MT, 8 NT] becomes bf16, its columns are right's rows. */
template <int DP, int MT, int NT>
__device__ __forceinline__ void multiply_columns(float (&sum)[MT][DP / 8][4], const float (&x)[MT][NT][4],
                                                 const uint16_t *right)
{
#pragma unroll
    for (int k = 0; k < NT; k += 2) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = pack_bf16(x[m][k][0], x[m][k][1]);
            a[m][1] = pack_bf16(x[m][k][2], x[m][k][3]);
            a[m][2] = pack_bf16(x[m][k + 1][0], x[m][k + 1][1]);
            a[m][3] = pack_bf16(x[m][k + 1][2], x[m][k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            unsigned b[4];
            right_operands_trans<DP>(b, right, 8 * k, 8 * n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_bf16(sum[m][n], a[m], b[0], b[1]);
                mma_bf16(sum[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* A warp's 16 MT rows times `factor` into its rows of a tile, and from there to rows row .. of a tensor's head. */
template <int DP, int MT>
__device__ __forceinline__ void store_warp_rows(uint16_t *tile, int tile_row, const float (&x)[MT][DP / 8][4],
                                                const float (&factor)[MT][2], uint16_t *to, int64_t stride, int32_t row,
                                                int32_t rows, int32_t size, bool vectors)
{
    constexpr int CHUNKS = DP / 8;
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint16_t *pair = tile + (tile_row + 16 * m + 8 * half + g) * tile_stride(DP) + 8 * n + 2 * t;
                *reinterpret_cast<unsigned *>(pair) =
                    pack_bf16(x[m][n][2 * half] * factor[m][half], x[m][n][2 * half + 1] * factor[m][half]);
            }
    __syncwarp();
    for (int i = lane; i < 16 * MT * CHUNKS; i += 32) {
        const int r = i / CHUNKS, c = i % CHUNKS * 8;
        if (row + r >= rows || c >= size)
            continue;
        const uint16_t *from = tile + (tile_row + r) * tile_stride(DP) + c;
        uint16_t *out = to + static_cast<int64_t>(row + r) * stride + c;
        if (vectors)
            *reinterpret_cast<uint4 *>(out) = *reinterpret_cast<const uint4 *>(from);
        else
            for (int j = 0; j < 8 && c + j < size; j++)
                out[j] = from[j];
    }
}

/* Sum and maximum over the four lanes that share a row of a product. */
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

inline bool rows_are_aligned(const void *p, int64_t stride, int32_t size)
{
    return is_aligned(p) && stride % 8 == 0 && size % 8 == 0;
}

/* Blocks may have more dynamic shared memory than 48 KiB when the kernel says so first. */
template <class Kernel> dsc_status allow_shared(Kernel *kernel, int bytes, dsc_error *err)
{
    if (bytes <= 48 * 1024)
        return DSC_OK;
    if (cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes) == cudaSuccess)
        return DSC_OK;
    (void)cudaGetLastError();
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "ATTENTION", "this GPU's blocks cannot have %d bytes of shared memory",
                    bytes);
}

} // namespace

#endif

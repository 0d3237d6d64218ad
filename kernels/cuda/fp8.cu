/* fp8.cu - the cast to fp8 (fp8.h). A first kernel writes the largest |x| of each of its blocks. The second kernel
 * takes the largest of all. It casts squares of 128 x 128, which it turns in shared memory. It begins with the last
 * square: the first kernel has read that last, so the L2 cache still has it. Compiled as exact.cu is, whose first lines
 * say why. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum {
    FP8_THREADS = 256,
    FP8_WARPS = FP8_THREADS / 32,
    SQUARE = 128,
    PATCH = 32,             /* of a block; of a warp: each lane has 4 rows of 8 numbers */
    PITCH = SQUARE / 4 + 1, /* words of a turned row: neither the writes nor the reads share a bank */
    TOP_AHEAD = 4           /* vectors that a thread loads before it looks at them */
};

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The block's largest; all threads get it. */
__device__ __forceinline__ uint32_t block_top(uint32_t top)
{
    __shared__ uint32_t of_warp[FP8_WARPS];
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, width));
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < FP8_WARPS; w++)
        top = larger(top, of_warp[w]);
    return top;
}

/* |x| of the upper and of the lower bf16 of each word; what is below the number does not matter until the end. */
__device__ __forceinline__ void look(uint32_t &upper, uint32_t &lower, const uint4 &v)
{
    const uint32_t words[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t size = words[i] & 0x7fff7fffu;
        upper = larger(upper, size);
        lower = larger(lower, size << 16);
    }
}

/* Of the block's share of all vectors; all threads get it. */
__device__ __forceinline__ uint32_t top_of(const uint4 *x, int64_t count)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * FP8_THREADS;
    uint32_t upper = 0, lower = 0;
    int64_t i = static_cast<int64_t>(blockIdx.x) * FP8_THREADS + threadIdx.x;
    for (; i + (TOP_AHEAD - 1) * step < count; i += TOP_AHEAD * step) {
        uint4 v[TOP_AHEAD];
#pragma unroll
        for (int k = 0; k < TOP_AHEAD; k++)
            v[k] = x[i + k * step];
#pragma unroll
        for (int k = 0; k < TOP_AHEAD; k++)
            look(upper, lower, v[k]);
    }
    for (; i < count; i += step)
        look(upper, lower, x[i]);
    return block_top(larger(upper & 0xffff0000u, lower));
}

__global__ void __launch_bounds__(FP8_THREADS) fp8_top_kernel(uint32_t *part, const uint4 *x, int64_t count)
{
    const uint32_t top = top_of(x, count);
    if (threadIdx.x == 0)
        part[blockIdx.x] = top;
}

__global__ void __launch_bounds__(FP8_THREADS) fp8_raise_kernel(uint32_t *most, const uint4 *x, int64_t count)
{
    const uint32_t top = top_of(x, count);
    if (threadIdx.x == 0)
        atomicMax(most, top);
}

/* As dsc_fp8_exponent. */
template <bool E4M3> __device__ __forceinline__ int exponent_of(uint32_t top)
{
    const uint32_t largest = E4M3 ? 0x43e00000u : 0x47600000u;
    if (top == 0 || top >= 0x7f800000u)
        return 0;
    int e = static_cast<int>(largest >> 23) - static_cast<int>(top >> 23);
    if ((top & 0x7fffffu) > (largest & 0x7fffffu))
        e--;
    return e > DSC_FP8_EXPONENT_MAX ? DSC_FP8_EXPONENT_MAX : e < -DSC_FP8_EXPONENT_MAX ? -DSC_FP8_EXPONENT_MAX : e;
}

__device__ __forceinline__ float power_of(int e) { return __uint_as_float(static_cast<uint32_t>(e + 127) << 23); }

struct scaling {
    float power;
    bool finite; /* all numbers */
};

/* Two bf16 of one word. */
template <bool E4M3> __device__ __forceinline__ uint32_t cast_pair(uint32_t word, const scaling &s)
{
    float low = __uint_as_float(word << 16) * s.power, high = __uint_as_float(word & 0xffff0000u) * s.power;
    if (!s.finite) {
        low = (word & 0x7f80u) == 0x7f80u ? __uint_as_float(0x7fc00000u) : low;
        high = (word & 0x7f800000u) == 0x7f800000u ? __uint_as_float(0x7fc00000u) : high;
    }
    return pack_fp8<E4M3>(low, high);
}

template <bool E4M3> __device__ __forceinline__ uint2 cast_eight(const uint4 &v, const scaling &s)
{
    return make_uint2(cast_pair<E4M3>(v.x, s) | cast_pair<E4M3>(v.y, s) << 16,
                      cast_pair<E4M3>(v.z, s) | cast_pair<E4M3>(v.w, s) << 16);
}

/* Bytes of four rows, four columns of them, as four words of a column each. */
__device__ __forceinline__ void turn(uint32_t (&to)[4], const uint32_t (&from)[4])
{
    const uint32_t even01 = pick_bytes(from[0], from[1], 0x6240), odd01 = pick_bytes(from[0], from[1], 0x7351);
    const uint32_t even23 = pick_bytes(from[2], from[3], 0x6240), odd23 = pick_bytes(from[2], from[3], 0x7351);
    to[0] = pick_bytes(even01, even23, 0x5410);
    to[1] = pick_bytes(odd01, odd23, 0x5410);
    to[2] = pick_bytes(even01, even23, 0x7632);
    to[3] = pick_bytes(odd01, odd23, 0x7632);
}

/* Of numbers that are cast already, or of bf16. */
template <bool E4M3, bool CASTS>
__device__ __forceinline__ uint2 eight_at(const dsc_cast_fp8_args &a, const scaling &s, int64_t at)
{
    if (CASTS)
        return cast_eight<E4M3>(*reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.from) + at), s);
    return *reinterpret_cast<const uint2 *>(static_cast<const uint8_t *>(a.from) + at);
}

/* A lane's four rows of eight numbers; `turned` gets them by columns. */
template <bool E4M3, bool CASTS>
__device__ __forceinline__ void cast_patch(const dsc_cast_fp8_args &a, const scaling &s, int64_t row, int64_t col,
                                           uint32_t *turned)
{
    uint2 q[4];
    uint32_t left[4], right[4], words[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        q[r] = eight_at<E4M3, CASTS>(a, s, (row + r) * a.col_count + col);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (a.rows != NULL)
            *reinterpret_cast<uint2 *>(a.rows + (row + r) * a.col_count + col) = q[r];
        left[r] = q[r].x, right[r] = q[r].y;
    }
    if (a.columns == NULL)
        return;
    turn(words, left);
#pragma unroll
    for (int c = 0; c < 4; c++)
        turned[c * PITCH] = words[c];
    turn(words, right);
#pragma unroll
    for (int c = 0; c < 4; c++)
        turned[(4 + c) * PITCH] = words[c];
}

/* 16 rows of a column at a time. */
__device__ __forceinline__ void store_columns(const dsc_cast_fp8_args &a, int64_t row, int64_t col,
                                              const uint32_t *turned)
{
    for (int i = static_cast<int>(threadIdx.x); i < SQUARE * SQUARE / 16; i += FP8_THREADS) {
        const int c = i / (SQUARE / 16), part = i % (SQUARE / 16);
        const uint32_t *from = turned + c * PITCH + 4 * part;
        if (col + c < a.col_count && row + 16 * part < a.row_count)
            *reinterpret_cast<uint4 *>(a.columns + (col + c) * a.row_count + row + 16 * part) =
                make_uint4(from[0], from[1], from[2], from[3]);
    }
}

template <bool E4M3, bool CASTS>
__global__ void __launch_bounds__(FP8_THREADS, 4) fp8_cast_kernel(const dsc_cast_fp8_args a, int parts, int64_t squares)
{
    __shared__ uint32_t turned[SQUARE * PITCH];
    const int64_t across = (a.col_count + SQUARE - 1) / SQUARE;
    uint32_t top = 0;
    for (int i = static_cast<int>(threadIdx.x); i < parts; i += FP8_THREADS)
        top = larger(top, a.scale->part[i]);
    top = block_top(top);
    const int e = exponent_of<E4M3>(top);
    const scaling s = { power_of(e), top < 0x7f800000u };
    if (CASTS && blockIdx.x == 0 && threadIdx.x == 0)
        a.scale->step = power_of(-e);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int64_t t = blockIdx.x; t < squares; t += gridDim.x) {
        const int64_t square = squares - 1 - t;
        const int64_t row = square / across * SQUARE, col = square % across * SQUARE;
#pragma unroll
        for (int i = 0; i < SQUARE * SQUARE / (PATCH * PATCH) / FP8_WARPS; i++) {
            const int patch = i * FP8_WARPS + warp;
            const int r = patch / (SQUARE / PATCH) * PATCH + lane / 4 * 4;
            const int c = patch % (SQUARE / PATCH) * PATCH + lane % 4 * 8;
            if (row + r < a.row_count && col + c < a.col_count)
                cast_patch<E4M3, CASTS>(a, s, row + r, col + c, turned + c * PITCH + r / 4);
        }
        if (a.columns == NULL)
            continue;
        __syncthreads();
        store_columns(a, row, col, turned);
        __syncthreads();
    }
}

/* ---- a piece of a matrix ---- */

__global__ void fp8_scale_kernel(dsc_fp8_scale *scale, const uint32_t *tops, int64_t count, int64_t stride)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < count; i++)
        top = larger(top, tops[i * stride]);
    scale->step = power_of(-exponent_of<true>(top));
}

__global__ void __launch_bounds__(FP8_THREADS)
    fp8_piece_kernel(uint2 *to, const uint4 *x, int64_t count, const dsc_fp8_scale *scale)
{
    const scaling s = { 1.0f / scale->step, false };
    const int64_t step = static_cast<int64_t>(gridDim.x) * FP8_THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * FP8_THREADS + threadIdx.x; i < count; i += step)
        to[i] = cast_eight<true>(x[i], s);
}

/* ---- blocks with a scale each ---- */

enum { BLOCK_PITCH = DSC_FP8_BLOCK + 4 }; /* numbers: rows of a square in shared memory begin 8-byte aligned */

/* Four numbers of a lane. */
struct four {
    uint16_t x[4];
};

__device__ __forceinline__ uint32_t warp_top(const four &v)
{
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        top = larger(top, static_cast<uint32_t>(v.x[i] & 0x7fffu) << 16);
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, width));
    return top;
}

template <bool E4M3> __device__ __forceinline__ uint32_t cast_four(const four &v, uint32_t top)
{
    const scaling s = { power_of(exponent_of<E4M3>(top)), top < 0x7f800000u };
    return cast_pair<E4M3>(v.x[0] | static_cast<uint32_t>(v.x[1]) << 16, s) |
           cast_pair<E4M3>(v.x[2] | static_cast<uint32_t>(v.x[3]) << 16, s) << 16;
}

/* Numbers behind the matrix's end are 0. Returns the largest |x| of the square; all threads get it. */
__device__ __forceinline__ uint32_t load_square(uint16_t *square, const dsc_cast_fp8_args &a, int64_t row, int64_t col)
{
    uint32_t upper = 0, lower = 0;
    for (int i = static_cast<int>(threadIdx.x); i < DSC_FP8_BLOCK * DSC_FP8_BLOCK / 8; i += FP8_THREADS) {
        const int r = i / (DSC_FP8_BLOCK / 8), c = i % (DSC_FP8_BLOCK / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row + r < a.row_count && col + c < a.col_count)
            v = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.from) + (row + r) * a.col_count + col +
                                                 c);
        uint2 *to = reinterpret_cast<uint2 *>(square + r * BLOCK_PITCH + c);
        to[0] = make_uint2(v.x, v.y);
        to[1] = make_uint2(v.z, v.w);
        look(upper, lower, v);
    }
    const uint32_t top = block_top(larger(upper & 0xffff0000u, lower));
    __syncthreads();
    return top;
}

/* A warp casts 128 numbers of a row, or of a column, at a time. SQUARES: all have the square's scale. */
template <bool E4M3, bool SQUARES>
__global__ void __launch_bounds__(FP8_THREADS) fp8_blocks_kernel(const dsc_cast_fp8_args a)
{
    __shared__ uint2 words_of_square[DSC_FP8_BLOCK * BLOCK_PITCH / 4];
    uint16_t *const square = reinterpret_cast<uint16_t *>(words_of_square);
    const int64_t across = (a.col_count + DSC_FP8_BLOCK - 1) / DSC_FP8_BLOCK;
    const int64_t down = (a.row_count + DSC_FP8_BLOCK - 1) / DSC_FP8_BLOCK;
    const int64_t i = blockIdx.x / across, j = blockIdx.x % across, row = i * DSC_FP8_BLOCK, col = j * DSC_FP8_BLOCK;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const uint32_t most = load_square(square, a, row, col);
    if (SQUARES && threadIdx.x == 0) {
        const float step = power_of(-exponent_of<E4M3>(most));
        if (a.rows != NULL)
            a.row_steps[i * ((across + 3) / 4 * 4) + j] = step;
        if (a.columns != NULL)
            a.column_steps[j * ((down + 3) / 4 * 4) + i] = step;
    }
    for (int r = warp; a.rows != NULL && r < DSC_FP8_BLOCK && row + r < a.row_count; r += FP8_WARPS) {
        const uint2 words = *reinterpret_cast<const uint2 *>(square + r * BLOCK_PITCH + 4 * lane);
        const four v = { { static_cast<uint16_t>(words.x), static_cast<uint16_t>(words.x >> 16),
                           static_cast<uint16_t>(words.y), static_cast<uint16_t>(words.y >> 16) } };
        const uint32_t top = SQUARES ? most : warp_top(v);
        if (!SQUARES && lane == 0)
            a.row_steps[j * a.row_count + row + r] = power_of(-exponent_of<E4M3>(top));
        if (col + 4 * lane < a.col_count)
            *reinterpret_cast<uint32_t *>(a.rows + (row + r) * a.col_count + col + 4 * lane) = cast_four<E4M3>(v, top);
    }
    for (int c = warp; a.columns != NULL && c < DSC_FP8_BLOCK && col + c < a.col_count; c += FP8_WARPS) {
        four v;
#pragma unroll
        for (int k = 0; k < 4; k++)
            v.x[k] = square[(4 * lane + k) * BLOCK_PITCH + c];
        const uint32_t top = SQUARES ? most : warp_top(v);
        if (!SQUARES && lane == 0)
            a.column_steps[i * a.col_count + col + c] = power_of(-exponent_of<E4M3>(top));
        if (row + 4 * lane < a.row_count)
            *reinterpret_cast<uint32_t *>(a.columns + (col + c) * a.row_count + row + 4 * lane) =
                cast_four<E4M3>(v, top);
    }
}

dsc_status cast_blocks(const dsc_cuda_launch *at, const dsc_cast_fp8_args *a)
{
    const int64_t squares = dsc_div_ceil(a->row_count, DSC_FP8_BLOCK) * dsc_div_ceil(a->col_count, DSC_FP8_BLOCK);
    const bool e4m3 = a->format == DSC_FP8_E4M3, whole = a->blocks == DSC_FP8_BLOCKS_SQUARE;
    DSC_ASSERT(squares <= INT32_MAX && !a->from_fp8);
    const unsigned grid = static_cast<unsigned>(squares);
    if (whole && e4m3)
        DSC_CUDA_LAUNCH((fp8_blocks_kernel<true, true>), grid, FP8_THREADS, 0, at->stream, *a);
    else if (whole)
        DSC_CUDA_LAUNCH((fp8_blocks_kernel<false, true>), grid, FP8_THREADS, 0, at->stream, *a);
    else if (e4m3)
        DSC_CUDA_LAUNCH((fp8_blocks_kernel<true, false>), grid, FP8_THREADS, 0, at->stream, *a);
    else
        DSC_CUDA_LAUNCH((fp8_blocks_kernel<false, false>), grid, FP8_THREADS, 0, at->stream, *a);
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_CAST_FP8(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_cast_fp8_args *a = static_cast<const dsc_cast_fp8_args *>(args);
    DSC_ASSERT(a->row_count > 0 && a->row_count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(a->col_count > 0 && a->col_count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(a->format == DSC_FP8_E4M3 || a->format == DSC_FP8_E5M2);
    DSC_ASSERT(is_aligned(a->from) && is_aligned(a->rows) && is_aligned(a->columns));
    if (a->blocks != DSC_FP8_BLOCKS_NONE)
        return cast_blocks(at, a);
    const int64_t vectors = a->row_count * a->col_count / 8, most = 4 * static_cast<int64_t>(at->multiprocessors);
    const int64_t parts =
        dsc_min_i64(dsc_min_i64(DSC_FP8_PARTS_MAX, most), dsc_div_ceil(vectors, FP8_THREADS * TOP_AHEAD));
    const int64_t squares = dsc_div_ceil(a->row_count, SQUARE) * dsc_div_ceil(a->col_count, SQUARE);
    const unsigned grid = grid_size(dsc_min_i64(squares, 2 * most)); /* as many wait as run: the last ones share out */
    if (a->from_fp8) {
        DSC_ASSERT(a->rows == NULL);
        DSC_CUDA_LAUNCH((fp8_cast_kernel<true, false>), grid, FP8_THREADS, 0, at->stream, *a, 0, squares);
        return DSC_OK;
    }
    DSC_CUDA_LAUNCH(fp8_top_kernel, grid_size(parts), FP8_THREADS, 0, at->stream, a->scale->part,
                    static_cast<const uint4 *>(a->from), vectors);
    if (a->format == DSC_FP8_E4M3)
        DSC_CUDA_LAUNCH((fp8_cast_kernel<true, true>), grid, FP8_THREADS, 0, at->stream, *a, static_cast<int>(parts),
                        squares);
    else
        DSC_CUDA_LAUNCH((fp8_cast_kernel<false, true>), grid, FP8_THREADS, 0, at->stream, *a, static_cast<int>(parts),
                        squares);
    return DSC_OK;
}

dsc_status dsc_cuda_run_FP8_PIECE(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_fp8_piece_args *a = static_cast<const dsc_fp8_piece_args *>(args);
    DSC_ASSERT(a->count >= 0 && a->count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(is_aligned(a->from));
    const int64_t vectors = a->count / 8, most = 4 * static_cast<int64_t>(at->multiprocessors);
    const unsigned grid = grid_size(dsc_max_i64(1, dsc_min_i64(most, dsc_div_ceil(vectors, FP8_THREADS * TOP_AHEAD))));
    const uint4 *from = static_cast<const uint4 *>(a->from);
    if (a->work == DSC_FP8_PIECE_SCALE)
        DSC_CUDA_LAUNCH(fp8_scale_kernel, 1, 1, 0, at->stream, a->scale, a->tops, a->top_count, a->top_stride);
    else if (a->work == DSC_FP8_PIECE_TOP)
        DSC_CUDA_LAUNCH(fp8_raise_kernel, grid, FP8_THREADS, 0, at->stream, a->top, from, vectors);
    else if (vectors > 0)
        DSC_CUDA_LAUNCH(fp8_piece_kernel, grid, FP8_THREADS, 0, at->stream, reinterpret_cast<uint2 *>(a->to), from,
                        vectors, a->scale);
    return DSC_OK;
}

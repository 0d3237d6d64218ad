/* grouped_gemm.cu - products of each expert's rows with its matrix. The host does not know the numbers of rows.
 *
 * The grid has a block for each tile that there may be: rows / TILE + experts tiles of rows, by the shapes alone. A
 * block finds its expert in the starts of rows, or that it has no work. bf16 goes to tensor cores, F32 and F16 to plain
 * multiply-adds. On sm_90 most shapes in bf16 have the kernels of grouped_gemm_sm90.cu instead. Each element is one sum
 * over k in order of steps, so the bits do not depend on the grid. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/grouped_gemm_sm90.h"
#include "kernels/cuda/launchers.h"

namespace
{

/* Sizes and strides of all experts' products C[m, n] over k, in elements. An operand's element (row, k) is `row` times
 * row_step and k times k_step from its start. */
struct operand {
    int64_t row_step, k_step;
    int64_t start_row, start_expert; /* offsets of a row of routed tokens and of an expert */
};

template <class T, class C> struct grouped_arrays {
    const T *a, *b, *add;
    C *c;
    const int32_t *starts;
    operand of_a, of_b;
    int64_t c_start_row, c_start_expert;
    int64_t m, n, k; /* 0: an expert's rows */
    int32_t experts, tiles_n;
};

struct place_of_tile {
    int32_t expert, first_row; /* expert -1: no work */
    int64_t m, k, m0, n0;
};

/* Rows of an expert, as tiles of `size`. The first warp looks at 32 experts at a time. */
template <class T, class C>
__device__ place_of_tile find_tile(const grouped_arrays<T, C> &a, int64_t block, int32_t size, place_of_tile *shared)
{
    const int32_t tile = static_cast<int32_t>(block / a.tiles_n);
    const int64_t n0 = block % a.tiles_n * size;
    if (a.m > 0) { /* all experts have equally many */
        const int32_t each = static_cast<int32_t>((a.m + size - 1) / size), expert = tile / each;
        const int32_t first = a.starts[expert];
        return { expert, first, a.m, a.starts[expert + 1] - first, static_cast<int64_t>(tile % each) * size, n0 };
    }
    if (threadIdx.x == 0)
        shared->expert = -1;
    __syncthreads();
    if (threadIdx.x < 32) {
        const int32_t lane = static_cast<int32_t>(threadIdx.x);
        int32_t before = 0;
        for (int32_t first = 0; first < a.experts; first += 32) {
            const int32_t e = first + lane;
            const int32_t row = a.starts[min(e, a.experts)], rows = e < a.experts ? a.starts[e + 1] - row : 0;
            const int32_t tiles = (rows + size - 1) / size;
            int32_t end = tiles; /* sum of this and the lower lanes */
#pragma unroll
            for (int width = 1; width < 32; width *= 2) {
                const int32_t below = __shfl_up_sync(0xffffffffu, end, width);
                end += lane >= width ? below : 0;
            }
            const int32_t mine = tile - before - (end - tiles);
            if (mine >= 0 && mine < tiles)
                *shared = { e, row, rows, a.k, static_cast<int64_t>(mine) * size, n0 };
            before += __shfl_sync(0xffffffffu, end, 31);
        }
    }
    __syncthreads();
    return *shared;
}

template <class T> __device__ const T *start_of(const T *x, const operand &of, const place_of_tile &at)
{
    return x + at.first_row * of.start_row + at.expert * of.start_expert;
}

template <class T, class C>
__device__ __forceinline__ void put(const grouped_arrays<T, C> &a, const place_of_tile &at, int64_t i, int64_t j,
                                    float x)
{
    const int64_t to = at.first_row * a.c_start_row + at.expert * a.c_start_expert + i * a.n + j;
    if (i >= at.m || j >= a.n)
        return;
    if (a.add != NULL)
        x += to_f32(a.add[to]);
    a.c[to] = element<C>::from(x);
}

/* ---- bf16 on tensor cores: 8 warps of 64 x 32 sums ---- */

enum {
    TILE = 128,
    STEP = 32,
    THREADS = 256,
    EACH = 8,
    CHUNKS = TILE * STEP / (EACH * THREADS),
    ROW = STEP + 8,
    K_ROW = TILE + 8, /* strides of [row][k] and [k][row]: eight rows lie in different banks */
    TILE_ELEMENTS = TILE * ROW
};
static_assert(STEP * K_ROW <= TILE_ELEMENTS, "a tile of either layout fits");

/* A tile of 128 rows and 32 of k, read as chunks of 8 that lie together. It is in registers until it goes to shared
 * memory in the order of memory: as [row][k] or [k][row]. */
struct chunks {
    vector<uint16_t, EACH> part[CHUNKS];
};

/* Chunk c of this thread: its first row and k. ALONG: 8 of k are together, else 8 rows. */
template <bool ALONG> __device__ __forceinline__ void chunk_at(int c, int32_t *row, int32_t *k)
{
    const int32_t i = c * THREADS + static_cast<int32_t>(threadIdx.x);
    *row = ALONG ? i / (STEP / EACH) : i % (TILE / EACH) * EACH;
    *k = ALONG ? i % (STEP / EACH) * EACH : i / (TILE / EACH);
}

template <bool ALONG>
__device__ void read_chunks(chunks &out, const uint16_t *x, const operand &of, int64_t row0, int64_t rows, int64_t k0,
                            int64_t ks, bool aligned)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int32_t row, k;
        chunk_at<ALONG>(c, &row, &k);
        const int64_t r = row0 + row, i = k0 + k, at = r * of.row_step + i * of.k_step;
        const int64_t left = ALONG ? (r < rows ? ks - i : 0) : (i < ks ? rows - r : 0);
        if (aligned && left >= EACH) {
            load_vector(out.part[c], x + at);
            continue;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
            out.part[c].elements[j] = j < left ? x[at + j] : static_cast<uint16_t>(0);
    }
}

template <bool ALONG> __device__ void write_chunks(uint16_t *tile, const chunks &from)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int32_t row, k;
        chunk_at<ALONG>(c, &row, &k);
        store_vector(tile + (ALONG ? row * ROW + k : k * K_ROW + row), from.part[c]);
    }
}

/* Rows row .. row + 15 of k .. k + 15 of a tile as a warp's left operand. */
template <bool ALONG>
__device__ __forceinline__ void read_rows(unsigned (&out)[4], const uint16_t *tile, int row, int k)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (ALONG)
        ldmatrix_x4(out, tile + (row + lane % 16) * ROW + k + lane / 16 * 8);
    else
        ldmatrix_x4_trans(out, tile + (k + lane % 8 + lane / 16 * 8) * K_ROW + row + lane / 8 % 2 * 8);
}

/* Right operand of the same rows: that of the first 8, then that of the last 8. */
template <bool ALONG>
__device__ __forceinline__ void read_columns(unsigned (&out)[4], const uint16_t *tile, int row, int k)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (ALONG)
        ldmatrix_x4(out, tile + (row + lane / 16 * 8 + lane % 8) * ROW + k + lane / 8 % 2 * 8);
    else
        ldmatrix_x4_trans(out, tile + (k + lane % 16) * K_ROW + row + lane / 16 * 8);
}

/* One step of k of a warp's sums, which are rows m0 .. m0 + 63 and columns n0 .. n0 + 31 of the tile. */
template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void multiply_step(float (&sum)[4][4][4], const uint16_t *a, const uint16_t *b, int m0,
                                              int n0)
{
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        unsigned rows[4][4], columns[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            read_rows<A_ALONG>(rows[i], a, m0 + 16 * i, k);
#pragma unroll
        for (int j = 0; j < 2; j++)
            read_columns<B_ALONG>(columns[j], b, n0 + 16 * j, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_bf16(sum[i][j], rows[i], columns[j / 2][j % 2 * 2], columns[j / 2][j % 2 * 2 + 1]);
    }
}

template <class C>
__device__ void put_sums(const grouped_arrays<uint16_t, C> &a, const place_of_tile &at, const float (&sum)[4][4][4],
                         int m0, int n0)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                put(a, at, at.m0 + m0 + 16 * i + lane / 4 + 8 * (e / 2), at.n0 + n0 + 8 * j + 2 * (lane % 4) + (e & 1),
                    sum[i][j][e]);
}

template <class C, bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS, 2) tensor_kernel(const grouped_arrays<uint16_t, C> a, bool aligned)
{
    __align__(16) __shared__ uint16_t a_tile[2][TILE_ELEMENTS], b_tile[2][TILE_ELEMENTS];
    __shared__ place_of_tile found;
    const place_of_tile at = find_tile(a, blockIdx.x, TILE, &found);
    if (at.expert < 0)
        return;
    const uint16_t *a_from = start_of(a.a, a.of_a, at), *b_from = start_of(a.b, a.of_b, at);
    const int warp = static_cast<int>(threadIdx.x / 32), m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    float sum[4][4][4] = {};
    chunks next_a, next_b;
    read_chunks<A_ALONG>(next_a, a_from, a.of_a, at.m0, at.m, 0, at.k, aligned);
    read_chunks<B_ALONG>(next_b, b_from, a.of_b, at.n0, a.n, 0, at.k, aligned);
    for (int64_t k = 0, step = 0; k < at.k; k += STEP, step++) {
        uint16_t *const a_now = a_tile[step % 2], *const b_now = b_tile[step % 2];
        write_chunks<A_ALONG>(a_now, next_a);
        write_chunks<B_ALONG>(b_now, next_b);
        __syncthreads();
        if (k + STEP < at.k) {
            read_chunks<A_ALONG>(next_a, a_from, a.of_a, at.m0, at.m, k + STEP, at.k, aligned);
            read_chunks<B_ALONG>(next_b, b_from, a.of_b, at.n0, a.n, k + STEP, at.k, aligned);
        }
        multiply_step<A_ALONG, B_ALONG>(sum, a_now, b_now, m0, n0);
    }
    put_sums(a, at, sum, m0, n0);
}

/* ---- F32 and F16: 256 threads of 4 x 4 sums ---- */

enum { PLAIN_TILE = 64, PLAIN_STEP = 16 };

template <class T>
__device__ void read_plain(float (*tile)[PLAIN_TILE + 4], const T *x, const operand &of, int64_t row0, int64_t rows,
                           int64_t k0, int64_t ks)
{
    for (int i = static_cast<int>(threadIdx.x); i < PLAIN_TILE * PLAIN_STEP; i += THREADS) {
        const bool along = of.k_step == 1; /* neighbours in memory are neighbours here */
        const int row = along ? i / PLAIN_STEP : i % PLAIN_TILE, k = along ? i % PLAIN_STEP : i / PLAIN_TILE;
        const int64_t r = row0 + row, at_k = k0 + k;
        tile[k][row] = r < rows && at_k < ks ? to_f32(x[r * of.row_step + at_k * of.k_step]) : 0.0f;
    }
}

template <class T, class C> __global__ void __launch_bounds__(THREADS) plain_kernel(const grouped_arrays<T, C> a)
{
    __shared__ float a_tile[PLAIN_STEP][PLAIN_TILE + 4], b_tile[PLAIN_STEP][PLAIN_TILE + 4];
    __shared__ place_of_tile found;
    const place_of_tile at = find_tile(a, blockIdx.x, PLAIN_TILE, &found);
    if (at.expert < 0)
        return;
    const T *a_from = start_of(a.a, a.of_a, at), *b_from = start_of(a.b, a.of_b, at);
    const int row = static_cast<int>(threadIdx.x / 16) * 4, column = static_cast<int>(threadIdx.x % 16) * 4;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < at.k; k0 += PLAIN_STEP) {
        read_plain(a_tile, a_from, a.of_a, at.m0, at.m, k0, at.k);
        read_plain(b_tile, b_from, a.of_b, at.n0, a.n, k0, at.k);
        __syncthreads();
        for (int k = 0; k < PLAIN_STEP; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = fmaf(a_tile[k][row + i], b_tile[k][column + j], sum[i][j]);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            put(a, at, at.m0 + row + i, at.n0 + column + j, sum[i][j]);
}

/* ---- host ---- */

template <class T, class C> grouped_arrays<T, C> arrays_of(const dsc_grouped_gemm_args *a, int32_t size)
{
    const int64_t in = a->in, out = a->out, matrix = in * out;
    grouped_arrays<T, C> x = {};
    x.a = static_cast<const T *>(a->a);
    x.b = static_cast<const T *>(a->b);
    x.add = static_cast<const T *>(a->add);
    x.c = static_cast<C *>(a->c);
    x.starts = a->starts;
    x.experts = a->experts;
    if (a->kind == DSC_GROUPED_WEIGHT) {
        x.of_a = { 1, out, out, 0 };
        x.of_b = { 1, in, in, 0 };
        x.c_start_expert = matrix;
        x.m = out;
        x.n = in;
    } else {
        const bool forward = a->kind == DSC_GROUPED_FORWARD;
        x.n = forward ? out : in;
        x.k = forward ? in : out;
        x.of_a = { x.k, 1, x.k, 0 };
        x.of_b = { forward ? in : 1, forward ? 1 : in, 0, matrix };
        x.c_start_row = x.n;
    }
    x.tiles_n = static_cast<int32_t>(dsc_div_ceil(x.n, size));
    return x;
}

/* Tiles of rows that there may be, times those of columns. */
unsigned blocks_of(const dsc_grouped_gemm_args *a, int64_t m, int32_t tiles_n, int32_t size)
{
    const int64_t tiles = m > 0 ? a->experts * dsc_div_ceil(m, size) : a->rows / size + a->experts;
    return grid_size(tiles * tiles_n);
}

template <class T, class C> void plain(const dsc_cuda_launch *at, const dsc_grouped_gemm_args *a)
{
    const grouped_arrays<T, C> x = arrays_of<T, C>(a, PLAIN_TILE);
    DSC_CUDA_LAUNCH((plain_kernel<T, C>), blocks_of(a, x.m, x.tiles_n, PLAIN_TILE), THREADS, 0, at->stream, x);
}

template <class C, bool A_ALONG, bool B_ALONG> void tensor(const dsc_cuda_launch *at, const dsc_grouped_gemm_args *a)
{
    const grouped_arrays<uint16_t, C> x = arrays_of<uint16_t, C>(a, TILE);
    const bool aligned = a->in % 8 == 0 && a->out % 8 == 0 && is_aligned(a->a) && is_aligned(a->b);
    DSC_CUDA_LAUNCH((tensor_kernel<C, A_ALONG, B_ALONG>), blocks_of(a, x.m, x.tiles_n, TILE), THREADS, 0, at->stream, x,
                    aligned);
}

} // namespace

dsc_status dsc_cuda_run_GROUPED_GEMM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_grouped_gemm_args *a = static_cast<const dsc_grouped_gemm_args *>(args);
    DSC_TRY(dtype_check("GROUPED_GEMM", a->dtype, err));
    DSC_ASSERT(a->in >= 1 && a->out >= 1 && a->experts >= 1);
    DSC_ASSERT(a->rows >= 0 && a->rows <= INT32_MAX);
    DSC_ASSERT(a->add == NULL || a->kind != DSC_GROUPED_WEIGHT);
    if (a->rows == 0 && a->kind != DSC_GROUPED_WEIGHT)
        return DSC_OK;
    if (at->grouped != NULL && dsc_cuda_grouped_sm90_fits(a))
        return dsc_cuda_grouped_sm90(at, a, err);
    if (a->dtype == DSC_BF16 && a->kind == DSC_GROUPED_FORWARD)
        tensor<uint16_t, true, true>(at, a);
    else if (a->dtype == DSC_BF16 && a->kind == DSC_GROUPED_INPUT)
        tensor<uint16_t, true, false>(at, a);
    else if (a->dtype == DSC_BF16)
        tensor<float, false, false>(at, a);
    else if (a->dtype == DSC_F16 && a->kind == DSC_GROUPED_WEIGHT)
        plain<half_bits, float>(at, a);
    else if (a->dtype == DSC_F16)
        plain<half_bits, half_bits>(at, a);
    else
        plain<float, float>(at, a);
    return DSC_OK;
}

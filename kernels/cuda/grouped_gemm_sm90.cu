/* grouped_gemm_sm90.cu - products of each expert's rows with its matrix, by warpgroup products and tile copies of
 * sm_90a, for bf16.
 *
 * A block stays for many tiles of 128 x 256 sums and goes through the experts' tiles by the starts of their rows, which
 * only the device knows. Two warpgroups have 64 x 256 sums each in registers. One warp copies both operands' next 64 of
 * k into a ring of stages in shared memory. It goes on with the next tile while the sums of the last are stored.
 * Operands have the same order in both memories. Where k is in rows, the products transpose: the matrix for gradients
 * of the input, and both operands for gradients of weights.
 *
 * Copies fill zeros in beyond the ends of tensors and matrices. Rows behind an expert's last are the next expert's:
 * they give sums that nobody stores, except where rows are the terms of the sums. There the copying warp writes zeros
 * over those of both operands, since they may be Inf.
 *
 * Work and traffic: a stage of 48 KiB has 8 products of 64 x 256 x 16, which take 1024 cycles of a multiprocessor. At
 * that rate copies read 48 bytes a cycle from the L2 cache, where the 132 tiles that are computed together find most
 * rows and matrices. The products read 80 of 128 bytes a cycle of shared memory. Public kernels of this form reach 660
 * TFLOP/s on an H100.
 *
 * The ends of a tile are its stores, 64 KiB or for gradients of weights 128 KiB, and shuffles before them. They take
 * about 2000 and 3000 cycles beside k / 64 * 1024, 12 and 18 % for k = 1024. With 1024 rows an expert, partial tiles
 * are another 6 %, and partial steps of gradients 3 %. So 550 TFLOP/s are expected for k = 1024, 580 for k = 2048, and
 * 500 for gradients of weights.
 *
 * Each element is one sum over k in order of steps of 16, so the bits depend neither on the grid nor on other experts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/grouped_gemm_sm90.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/shared.h"
#include "kernels/cuda/warpgroups.h"

namespace
{

enum {
    TILE_M = TILE * CONSUMERS,
    TILE_N = 256,
    STEP = BOX,
    STAGES = 4,
    A_BYTES = TILE_M * STEP * 2,
    B_BYTES = TILE_N * STEP * 2,
    STAGE_BYTES = A_BYTES + B_BYTES,
    BARRIERS = 2 * STAGES + 1,
    SHARED_BYTES = STAGES * STAGE_BYTES + BARRIERS * static_cast<int>(sizeof(mbarrier)),
    GIVEN_REGISTERS = 40,
    TAKEN_REGISTERS = 232,
    EACH = 8 /* elements of one access */
};
static_assert(GIVEN_REGISTERS + CONSUMERS * TAKEN_REGISTERS <= (1 + CONSUMERS) * START_REGISTERS,
              "warpgroups take more registers than there are");

struct grouped_tensors {
    CUtensorMap a, b;
    void *c;
    const uint16_t *add;
    const int32_t *starts;
    int64_t m, n, k; /* m of gradients of weights, k of the others: the expert's rows */
    int32_t experts, tiles_n;
};

template <int KIND> __host__ __device__ constexpr bool is_weight() { return KIND == DSC_GROUPED_WEIGHT; }
/* Whether the operand's rows are k. */
template <int KIND> __host__ __device__ constexpr bool a_turns() { return KIND == DSC_GROUPED_WEIGHT; }
template <int KIND> __host__ __device__ constexpr bool b_turns() { return KIND != DSC_GROUPED_FORWARD; }

/* ---- which tiles a block has ---- */

/* A tile of an expert: its place in the expert's product, and the steps of its sums. */
struct tile_place {
    int32_t expert, first_row, rows, m0, n0, steps;
};

/* A block's way through all tiles, in the order of experts, their rows and their columns. */
template <int KIND> struct tile_walk {
    int32_t expert;
    int64_t before; /* tiles of the experts before it */

    /* The tile of a number, which is not below that of the call before. False: there is none. */
    __device__ __forceinline__ bool find(const grouped_tensors &t, int64_t number, tile_place &out)
    {
        for (; expert < t.experts; expert++) {
            const int32_t first = t.starts[expert], rows = t.starts[expert + 1] - first;
            const int64_t m = is_weight<KIND>() ? t.m : rows;
            const int64_t tiles = (m + TILE_M - 1) / TILE_M * t.tiles_n;
            if (number < before + tiles) {
                const int32_t mine = static_cast<int32_t>(number - before);
                const int64_t k = is_weight<KIND>() ? rows : t.k;
                out = { expert,
                        first,
                        rows,
                        mine / t.tiles_n * TILE_M,
                        mine % t.tiles_n * TILE_N,
                        static_cast<int32_t>((k + STEP - 1) / STEP) };
                return true;
            }
            before += tiles;
        }
        return false;
    }
};

/* ---- the ring ---- */

struct ring {
    unsigned char *stages;
    mbarrier *full, *free, *landed; /* landed: a copy that is not yet full */
    typedef ring_turn<STAGES> turn;

    __device__ __forceinline__ unsigned char *a(const turn &x) const { return stages + x.stage * STAGE_BYTES; }
    __device__ __forceinline__ unsigned char *b(const turn &x) const { return a(x) + A_BYTES; }

    /* Until the stage is there. */
    __device__ __forceinline__ void wait_full(const turn &x) const { mbarrier_wait(&full[x.stage], x.parity); }

    /* A warp has read the stage: all of its lanes, though one says so. */
    __device__ __forceinline__ void give_back(const turn &x) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(&free[x.stage]);
    }
};

__device__ __forceinline__ ring begin_ring(unsigned char *shared)
{
    mbarrier *const barriers = reinterpret_cast<mbarrier *>(shared + STAGES * STAGE_BYTES);
    const ring r = { shared, barriers, barriers + STAGES, barriers + 2 * STAGES };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&r.full[i], 1);
            mbarrier_init(&r.free[i], CONSUMER_WARPS);
        }
        mbarrier_init(r.landed, 1);
        mbarrier_publish();
    }
    __syncthreads();
    return r;
}

/* ---- the copying warp ---- */

/* By one thread: both operands' step from k0 on. */
template <int KIND>
__device__ __forceinline__ void copy_step(const ring &r, const ring::turn &turn, const grouped_tensors &t,
                                          const tile_place &at, int32_t k0, mbarrier *heard)
{
    mbarrier_wait(&r.free[turn.stage], turn.parity ^ 1);
    mbarrier_expect(heard, STAGE_BYTES);
    if (a_turns<KIND>()) {
#pragma unroll
        for (int i = 0; i < TILE_M / BOX; i++)
            copy_box(r.a(turn) + i * BOX_BYTES, &t.a, heard, at.m0 + i * BOX, at.first_row + k0, 0, 0);
    } else {
        copy_box(r.a(turn), &t.a, heard, k0, at.first_row + at.m0, 0, 0);
    }
    if (b_turns<KIND>()) {
        const int32_t row = is_weight<KIND>() ? at.first_row + k0 : k0, matrix = is_weight<KIND>() ? 0 : at.expert;
#pragma unroll
        for (int i = 0; i < TILE_N / BOX; i++)
            copy_box(r.b(turn) + i * BOX_BYTES, &t.b, heard, at.n0 + i * BOX, row, matrix, 0);
    } else {
        copy_box(r.b(turn), &t.b, heard, k0, at.n0, at.expert, 0);
    }
}

/* By the warp: zeros over the rows of a step from `rows` on. */
__device__ __forceinline__ void clear_rows(unsigned char *stage, int32_t rows)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int box = 0; box < STAGE_BYTES / BOX_BYTES; box++)
        for (int at = rows * (BOX * 2) + lane * 16; at < BOX_BYTES; at += 32 * 16)
            *reinterpret_cast<uint4 *>(stage + box * BOX_BYTES + at) = make_uint4(0, 0, 0, 0);
    copies_fence();
    __syncwarp();
}

template <int KIND> __device__ __forceinline__ void copy_tiles(const ring &r, const grouped_tensors &t)
{
    const bool first_lane = threadIdx.x == 0;
    ring::turn turn = { 0, 0 };
    unsigned parity = 0;
    tile_walk<KIND> walk = { 0, 0 };
    tile_place at;
    for (int64_t number = blockIdx.x; walk.find(t, number, at); number += gridDim.x)
        for (int32_t k = 0; k < at.steps; k++, turn.next()) {
            const int32_t left = is_weight<KIND>() ? at.rows - k * STEP : STEP;
            mbarrier *const heard = left < STEP ? r.landed : &r.full[turn.stage];
            if (first_lane)
                copy_step<KIND>(r, turn, t, at, k * STEP, heard);
            __syncwarp(); /* the other lanes do not poll while the first has work */
            if (left >= STEP)
                continue;
            mbarrier_wait(r.landed, parity);
            parity ^= 1;
            clear_rows(r.a(turn), left);
            if (first_lane)
                mbarrier_arrive(&r.full[turn.stage]);
        }
}

/* ---- a computing warpgroup ---- */

/* Asks for a stage's products. `group`: the warpgroup's number. */
template <int KIND>
__device__ __forceinline__ void ask_step(float (&sum)[TILE_N / 8][4], const ring &r, const ring::turn &turn, int group)
{
    const int a_next = a_turns<KIND>() ? 2 * EIGHT_ROWS : 32, b_next = b_turns<KIND>() ? 2 * EIGHT_ROWS : 32;
    const shared_matrix a = matrix_of(r.a(turn) + group * BOX_BYTES, a_turns<KIND>() ? BOX_BYTES : 16, EIGHT_ROWS);
    const shared_matrix b = matrix_of(r.b(turn), b_turns<KIND>() ? BOX_BYTES : 16, EIGHT_ROWS);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEP / 16; k++)
        wgmma_wide<a_turns<KIND>(), b_turns<KIND>()>(sum, matrix_at(a, a_next * k), matrix_at(b, b_next * k));
    wgmma_commit();
}

/* The products of a stage run until those of the next one are asked for. */
template <int KIND>
__device__ __forceinline__ void add_steps(float (&sum)[TILE_N / 8][4], const ring &r, ring::turn &turn, int32_t steps,
                                          int group)
{
    ring::turn before = turn;
    wgmma_wait<0>(sum); /* its zeros come before all products */
    for (int32_t k = 0; k < steps; k++, before = turn, turn.next()) {
        r.wait_full(turn);
        ask_step<KIND>(sum, r, turn, group);
        wgmma_wait_operands<1>();
        if (k > 0)
            r.give_back(before);
    }
    wgmma_wait<0>(sum);
    if (steps > 0)
        r.give_back(before);
}

/* Word i of lane l of four lanes becomes word l of lane i. */
__device__ __forceinline__ void turn_words(unsigned (&w)[4])
{
    const int lane = static_cast<int>(threadIdx.x % 4);
    const bool odd = lane % 2 != 0, high = lane >= 2;
    const unsigned r0 = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
    const unsigned r1 = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
    const unsigned x0 = odd ? r0 : w[0], x1 = odd ? w[1] : r0, y0 = odd ? r1 : w[2], y1 = odd ? w[3] : r1;
    const unsigned s0 = __shfl_xor_sync(0xffffffffu, high ? x0 : y0, 2);
    const unsigned s1 = __shfl_xor_sync(0xffffffffu, high ? x1 : y1, 2);
    w[0] = high ? s0 : x0, w[1] = high ? s1 : x1;
    w[2] = high ? y0 : s0, w[3] = high ? y1 : s1;
}

union four_words {
    uint4 all;
    unsigned each[4];
};

/* A row of this quad of lanes, as bf16: lane l stores every fourth eight columns, from the l-th on. */
__device__ __forceinline__ void store_row(const grouped_tensors &t, const float (&sum)[TILE_N / 8][4], int half,
                                          int64_t first, int32_t n0, bool inside)
{
    const int lane = static_cast<int>(threadIdx.x % 4);
    uint16_t *const c = static_cast<uint16_t *>(t.c) + first;
    four_words added[TILE_N / 32];
#pragma unroll
    for (int j = 0; j < TILE_N / 32; j++) {
        const int column = n0 + EACH * (4 * j + lane);
        added[j].all = make_uint4(0, 0, 0, 0);
        if (t.add != NULL && inside && column < t.n)
            added[j].all = *reinterpret_cast<const uint4 *>(t.add + first + column);
    }
#pragma unroll
    for (int j = 0; j < TILE_N / 32; j++) {
        const int column = n0 + EACH * (4 * j + lane);
        four_words out;
        if (t.add != NULL)
            turn_words(added[j].each);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned both = added[j].each[i];
            const float low = sum[4 * j + i][2 * half] + __uint_as_float(both << 16);
            const float high = sum[4 * j + i][2 * half + 1] + __uint_as_float(both & 0xffff0000u);
            out.each[i] = pack_bf16(low, high);
        }
        turn_words(out.each);
        if (inside && column < t.n)
            *reinterpret_cast<uint4 *>(c + column) = out.all;
    }
}

/* A row of this quad of lanes, as fp32: 32 bytes of each eight columns. */
__device__ __forceinline__ void store_row_f32(const grouped_tensors &t, const float (&sum)[TILE_N / 8][4], int half,
                                              int64_t first, int32_t n0)
{
    float *const c = static_cast<float *>(t.c) + first + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < TILE_N / 8; j++)
        if (n0 + EACH * j < t.n)
            *reinterpret_cast<float2 *>(c + n0 + EACH * j) = make_float2(sum[j][2 * half], sum[j][2 * half + 1]);
}

template <int KIND>
__device__ __forceinline__ void store_sums(const grouped_tensors &t, const tile_place &at,
                                           const float (&sum)[TILE_N / 8][4], int warp)
{
    const int64_t rows = is_weight<KIND>() ? t.m : at.rows;
    const int64_t start = is_weight<KIND>() ? at.expert * t.m : at.first_row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t row = at.m0 + 16 * warp + static_cast<int32_t>(threadIdx.x % 32) / 4 + 8 * half;
        if (!is_weight<KIND>())
            store_row(t, sum, half, (start + row) * t.n, at.n0, row < rows);
        else if (row < rows)
            store_row_f32(t, sum, half, (start + row) * t.n, at.n0);
    }
}

/* ---- the kernel ---- */

template <int KIND>
__global__ void __launch_bounds__(SM90_THREADS, 1) grouped_sm90_kernel(const __grid_constant__ grouped_tensors t)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const ring r = begin_ring(shared);
    if (threadIdx.x < WARPGROUP) {
        registers_give<GIVEN_REGISTERS>();
        if (threadIdx.x < 32)
            copy_tiles<KIND>(r, t);
        return;
    }
    registers_take<TAKEN_REGISTERS>();
    const int warp = computing_warp();
    ring::turn turn = { 0, 0 };
    tile_walk<KIND> walk = { 0, 0 };
    tile_place at;
    for (int64_t number = blockIdx.x; walk.find(t, number, at); number += gridDim.x) {
        float sum[TILE_N / 8][4] = {};
        add_steps<KIND>(sum, r, turn, at.steps, warp / 4);
        store_sums<KIND>(t, at, sum, warp);
    }
}

/* ---- launches ---- */

/* An operand: matrices of rows, without gaps. */
struct operand {
    const void *first;
    int64_t columns, rows, matrices;
};

struct operands {
    operand a, b;
};

operands operands_of(const dsc_grouped_gemm_args *a)
{
    if (a->kind == DSC_GROUPED_WEIGHT)
        return { { a->a, a->out, a->rows, 1 }, { a->b, a->in, a->rows, 1 } };
    return { { a->a, a->kind == DSC_GROUPED_FORWARD ? a->in : a->out, a->rows, 1 },
             { a->b, a->in, a->out, a->experts } };
}

/* Requirements of tensor maps: strides in sixteens of bytes and below 2^40, sizes below 2^32. Positions are int32. */
bool can_map(const operand &x)
{
    const int64_t limit = INT64_C(1) << 39;
    return is_aligned(x.first) && x.columns % EACH == 0 && x.columns <= INT32_MAX - TILE_N && x.rows >= 1 &&
           x.rows <= INT32_MAX - TILE_N && x.columns < limit / x.rows && x.columns * x.rows < limit / x.matrices;
}

/* box_rows: rows of one copy. */
dsc_status describe(CUtensorMap *map, const operand &x, int box_rows, void *encode, dsc_error *err)
{
    const cuuint64_t columns = static_cast<cuuint64_t>(x.columns), rows = static_cast<cuuint64_t>(x.rows);
    const cuuint64_t dim[4] = { columns, rows, static_cast<cuuint64_t>(x.matrices), 1 };
    const cuuint64_t stride[3] = { 2 * columns, 2 * columns * rows, 2 * columns * rows * dim[2] };
    const cuuint32_t box[4] = { BOX, static_cast<cuuint32_t>(box_rows), 1, 1 }, step[4] = { 1, 1, 1, 1 };
    const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(x.first), dim, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_DEVICE, "GROUPED_GEMM", "cuTensorMapEncodeTiled: status %d", static_cast<int>(result));
}

template <int KIND> dsc_status launch(const dsc_cuda_launch *at, const dsc_grouped_gemm_args *a, dsc_error *err)
{
    const operands of = operands_of(a);
    grouped_tensors t = {};
    DSC_TRY(describe(&t.a, of.a, a_turns<KIND>() ? STEP : TILE_M, at->grouped, err));
    DSC_TRY(describe(&t.b, of.b, b_turns<KIND>() ? STEP : TILE_N, at->grouped, err));
    t.c = a->c, t.add = static_cast<const uint16_t *>(a->add), t.starts = a->starts;
    t.m = a->out; /* used for gradients of weights */
    t.n = KIND == DSC_GROUPED_FORWARD ? a->out : a->in;
    t.k = KIND == DSC_GROUPED_FORWARD ? a->in : a->out;
    t.experts = a->experts;
    t.tiles_n = static_cast<int32_t>(dsc_div_ceil(t.n, TILE_N));
    const int64_t tiles_m = is_weight<KIND>() ? a->experts * dsc_div_ceil(t.m, TILE_M) : a->rows / TILE_M + a->experts;
    const unsigned blocks = grid_size(dsc_min_i64(tiles_m * t.tiles_n, at->multiprocessors));
    DSC_TRY(shared_allow("GROUPED_GEMM", grouped_sm90_kernel<KIND>, SHARED_BYTES, err));
    DSC_CUDA_LAUNCH((grouped_sm90_kernel<KIND>), blocks, SM90_THREADS, SHARED_BYTES, at->stream, t);
    return DSC_OK;
}

} // namespace

void *dsc_cuda_grouped_sm90_find(void)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const bool found = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault,
                                                        &result) == cudaSuccess;
    (void)cudaGetLastError();
    return found && result == cudaDriverEntryPointSuccess &&
                   starts_with_registers(grouped_sm90_kernel<DSC_GROUPED_FORWARD>) &&
                   starts_with_registers(grouped_sm90_kernel<DSC_GROUPED_INPUT>) &&
                   starts_with_registers(grouped_sm90_kernel<DSC_GROUPED_WEIGHT>)
               ? encode
               : NULL;
}

bool dsc_cuda_grouped_sm90_fits(const dsc_grouped_gemm_args *a)
{
    const operands of = operands_of(a);
    return a->dtype == DSC_BF16 && a->in % EACH == 0 && a->out % EACH == 0 && can_map(of.a) && can_map(of.b) &&
           is_aligned(a->c) && is_aligned(a->add);
}

dsc_status dsc_cuda_grouped_sm90(const dsc_cuda_launch *at, const dsc_grouped_gemm_args *a, dsc_error *err)
{
    DSC_ASSERT(at->grouped != NULL && dsc_cuda_grouped_sm90_fits(a));
    if (a->kind == DSC_GROUPED_FORWARD)
        return launch<DSC_GROUPED_FORWARD>(at, a, err);
    return a->kind == DSC_GROUPED_INPUT ? launch<DSC_GROUPED_INPUT>(at, a, err)
                                        : launch<DSC_GROUPED_WEIGHT>(at, a, err);
}

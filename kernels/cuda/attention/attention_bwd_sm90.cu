/* attention_bwd_sm90.cu - gradients of attention by warpgroup products and tile copies of sm_90a.
 *
 * As in attention_bwd.cu, one kernel computes dk and dv, and one computes dq, without atomics. Blocks of the first keep
 * 128 key rows and go through query rows, in transposed scores; blocks of the second keep query rows and go through
 * keys. In both, a warpgroup has 64 kept rows of two tensors in shared memory. Tiles of 64 rows of the two other
 * tensors come by a ring each, some ahead. Accumulators stay in registers. The exponentials of a tile run
 * beside the second product, in dq also beside the last product of the tile before. Numbers of queries come with their
 * tile, by a second warp of the copying warpgroup.
 *
 * The order of all sums is that of attention_bwd.cu, so that where both kinds of products add up alike both give the
 * same bits. The kernel of a shape is chosen by measurement (attention_plan.cu).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_gradients.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_tiles.h"

namespace {

/* Tiles that a ring has: what fits beside the kept rows and the result's. */
template <int DP> __host__ __device__ constexpr int stages() { return DP <= 64 ? 4 : 3; }

struct gradient_arrays {
    CUtensorMap q, d_out; /* [batch, tokens, heads, size] */
    CUtensorMap k, v;     /* [batch, tokens, kv_heads, size] */
    bwd_arrays a;
};

/* Shared memory: the kept rows of both tensors, the rings of the others, rows of the result, numbers of the queries
 * in the ring, barriers. */
template <int DP> struct gradient_tiles {
    static constexpr int STAGES = stages<DP>();
    unsigned char *kept[2]; /* [CONSUMERS] tiles each */
    tile_ring<DP, STAGES> ring[2];
    mbarrier *kept_full;
    uint16_t *out;
    query_numbers numbers; /* [STAGES * TILE] */
    static constexpr int OUT_AT = 2 * CONSUMERS * tile_bytes<DP>() + 2 * tile_ring<DP, STAGES>::TILES_BYTES;
    static constexpr int NUMBERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BARRIERS_AT = NUMBERS_AT + 3 * 4 * STAGES * TILE;
    static constexpr int BYTES =
        BARRIERS_AT + (1 + 2 * tile_ring<DP, STAGES>::BARRIERS) * static_cast<int>(sizeof(mbarrier));
};

/* `fillers`: who fills a stage of the first ring. */
template <int DP> __device__ __forceinline__ gradient_tiles<DP> begin_tiles(unsigned char *shared, unsigned fillers)
{
    mbarrier *barriers = reinterpret_cast<mbarrier *>(shared + gradient_tiles<DP>::BARRIERS_AT);
    float *const numbers = reinterpret_cast<float *>(shared + gradient_tiles<DP>::NUMBERS_AT);
    constexpr int STAGES = gradient_tiles<DP>::STAGES;
    gradient_tiles<DP> s;
    s.out = reinterpret_cast<uint16_t *>(shared + gradient_tiles<DP>::OUT_AT);
    s.numbers = { numbers, numbers + STAGES * TILE, reinterpret_cast<int32_t *>(numbers + 2 * STAGES * TILE) };
    s.kept_full = barriers++;
    for (int i = 0; i < 2; i++, shared += CONSUMERS * tile_bytes<DP>())
        s.kept[i] = shared;
    for (int i = 0; i < 2; i++)
        s.ring[i] = lay_ring<DP, STAGES>(&shared, &barriers);
    if (threadIdx.x == 0) {
        mbarrier_init(s.kept_full, 1);
        s.ring[0].begin(fillers);
        s.ring[1].begin(1);
        mbarrier_publish();
    }
    __syncthreads();
    return s;
}

/* ---- the copying warpgroup ---- */

/* The tiles that come by: rows row .. end - 1 in steps of 64, of heads head .. head_end - 1 one after the other. */
struct walk {
    int32_t steps, row, end, head, head_end, batch;
};

/* Where a walk is: rows and rings' turn. */
template <int STAGES> struct place {
    ring_turn<STAGES> turn;
    int32_t row;

    __device__ __forceinline__ void next(const walk &w)
    {
        turn.next();
        row = row + TILE < w.end ? row + TILE : w.row;
    }
};

/* By one thread: the kept rows from `row` of `head` on, and the walk's. */
template <int DP>
__device__ __forceinline__ void copy_all(const gradient_tiles<DP> &s, const CUtensorMap *kept0,
                                         const CUtensorMap *kept1, int32_t row, int32_t head, const CUtensorMap *ring0,
                                         const CUtensorMap *ring1, const walk &w)
{
    mbarrier_expect(s.kept_full, 2 * CONSUMERS * tile_bytes<DP>());
    for (int i = 0; i < CONSUMERS; i++) {
        copy_tile<DP>(s.kept[0] + i * tile_bytes<DP>(), kept0, s.kept_full, row + i * TILE, head, w.batch);
        copy_tile<DP>(s.kept[1] + i * tile_bytes<DP>(), kept1, s.kept_full, row + i * TILE, head, w.batch);
    }
    ring_turn<stages<DP>()> turn = { 0, 0 };
    for (int32_t from = w.head; from < w.head_end; from++)
        for (int32_t at = w.row; at < w.end; at += TILE, turn.next()) {
            s.ring[0].copy(ring0, turn, at, from, w.batch);
            s.ring[1].copy(ring1, turn, at, from, w.batch);
        }
}

/* By one warp: the numbers of the queries in the first ring. */
template <int DP>
__device__ __forceinline__ void load_numbers_of_tiles(const gradient_tiles<DP> &s, const bwd_arrays &a, const walk &w)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    ring_turn<stages<DP>()> turn = { 0, 0 };
    for (int32_t head = w.head; head < w.head_end; head++)
        for (int32_t row = w.row; row < w.end; row += TILE, turn.next()) {
            s.ring[0].wait_free(turn);
            for (int i = lane; i < TILE; i += 32)
                load_number(s.numbers, turn.stage * TILE + i, a, w.batch, head, row + i);
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive(&s.ring[0].full[turn.stage]);
        }
}

/* ---- dk, dv ---- */

/* A computing warp's keys: 16 rows of the 64 of its warpgroup. */
template <int DP> struct key_side {
    const gradient_tiles<DP> &s;
    const bwd_arrays &a;
    const walk &w;
    const unsigned char *k, *v; /* its warpgroup's kept rows */
    int32_t key;                /* its first */
    float scale2;
    hidden_rows<1> hidden;
};

/* Registers of products that are under way. */
struct under_way {
    float score[1][TILE / 8][4], ds[1][TILE / 8][4];
    unsigned p[TILE / 16][4], packed[TILE / 16][4];
};

template <int DP>
__device__ __forceinline__ void ask_key_scores(under_way &r, const key_side<DP> &x, const place<stages<DP>()> &at)
{
    x.s.ring[0].wait_full(at.turn);
    ask_rows<DP>(r.score[0], x.k, x.s.ring[0].tile(at.turn));
}

template <int DP>
__device__ __forceinline__ void ask_key_slopes(under_way &r, const key_side<DP> &x, const place<stages<DP>()> &at)
{
    x.s.ring[1].wait_full(at.turn);
    ask_rows<DP>(r.ds[0], x.v, x.s.ring[1].tile(at.turn));
}

/* One tile after the other. */
template <int DP>
__device__ __forceinline__ void compute_keys(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4],
                                             const key_side<DP> &x)
{
    under_way r;
    place<stages<DP>()> now = { { 0, 0 }, x.w.row };
    for (int32_t j = 0; j < x.w.steps; j++, now.next(x.w)) {
        const int numbers = now.turn.stage * TILE;
        ask_key_scores(r, x, now);
        ask_key_slopes(r, x, now);
        wgmma_wait<1>(r.score[0]);
        key_probabilities<1, TILE>(r.score, x.s.numbers, numbers, x.a, x.key, now.row, x.scale2, x.hidden);
        pack_rows(r.p, r.score[0]);
        ask_columns<DP>(dv[0], r.p, x.s.ring[1].tile(now.turn));
        wgmma_wait<1>(r.ds[0]);
        key_gradients<1, TILE>(r.ds, r.score, x.s.numbers, numbers);
        pack_rows(r.packed, r.ds[0]);
        ask_columns<DP>(dk[0], r.packed, x.s.ring[0].tile(now.turn));
        wgmma_wait<1>(dv[0]);
        wgmma_wait<0>(dk[0]);
        x.s.ring[0].give_back(now.turn);
        x.s.ring[1].give_back(now.turn);
    }
}

/* A tile whose scores and slopes were asked for. Asks for those of the next, unless this one is the last. Groups under
 * way at the start, the oldest first: dv of the tile before, scores, dk of the tile before, slopes. Wide heads have no
 * registers for all of them: dv is waited for, and dk comes before the scores. */
template <int DP, bool LAST>
__device__ __forceinline__ void key_step(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4], under_way &r,
                                         const key_side<DP> &x, const place<stages<DP>()> &now,
                                         const ring_turn<stages<DP>()> &before, bool first)
{
    const int numbers = now.turn.stage * TILE;
    constexpr bool WIDE = DP > 64;
    place<stages<DP>()> after = now;
    after.next(x.w);
    if (WIDE)
        wgmma_wait<1>(r.score[0]);
    else
        wgmma_wait<2>(r.score[0]);
    if (!first)
        x.s.ring[WIDE ? 0 : 1].give_back(before);
    key_probabilities<1, TILE>(r.score, x.s.numbers, numbers, x.a, x.key, now.row, x.scale2, x.hidden);
    pack_rows(r.p, r.score[0]);
    ask_columns<DP>(dv[0], r.p, x.s.ring[1].tile(now.turn));
    wgmma_wait<1>(r.ds[0]);
    if (!first && !WIDE)
        x.s.ring[0].give_back(before);
    key_gradients<1, TILE>(r.ds, r.score, x.s.numbers, numbers);
    if (!LAST && !WIDE)
        ask_key_scores(r, x, after);
    pack_rows(r.packed, r.ds[0]);
    ask_columns<DP>(dk[0], r.packed, x.s.ring[0].tile(now.turn));
    if (WIDE) {
        wgmma_wait<1>(dv[0]);
        x.s.ring[1].give_back(now.turn);
    }
    if (!LAST && WIDE)
        ask_key_scores(r, x, after);
    if (!LAST)
        ask_key_slopes(r, x, after);
}

/* The next tile's products are asked for before those of this tile are waited for, so that some always are under way.
 * The sums are those of compute_keys. */
template <int DP>
__device__ __forceinline__ void compute_keys_early(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4],
                                                   const key_side<DP> &x)
{
    under_way r;
    place<stages<DP>()> now = { { 0, 0 }, x.w.row };
    ring_turn<stages<DP>()> before = { 0, 0 };
    wgmma_wait<0>(dk[0]); /* their zeros come before all products */
    wgmma_wait<0>(dv[0]);
    wgmma_commit(); /* dv of a tile before */
    ask_key_scores(r, x, now);
    wgmma_commit(); /* dk of a tile before */
    ask_key_slopes(r, x, now);
    for (int32_t j = 0; j + 1 < x.w.steps; j++, before = now.turn, now.next(x.w))
        key_step<DP, false>(dk, dv, r, x, now, before, j == 0);
    key_step<DP, true>(dk, dv, r, x, now, before, x.w.steps == 1);
    wgmma_wait<0>(dv[0]);
    wgmma_wait<0>(dk[0]);
}

template <int DP, bool EARLY>
__global__ void __launch_bounds__(SM90_THREADS, 1) dkv_sm90_kernel(const __grid_constant__ gradient_arrays given)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const bwd_arrays &a = given.a;
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.kv_heads, key_head = pair % a.kv_heads;
    const int32_t first = static_cast<int32_t>(blockIdx.x % a.tiles) * ROWS; /* the first tiles have most queries */
    /* The query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const int32_t heads = a.heads / a.kv_heads, tile_first = a.keys.all ? 0 : first / TILE;
    const int32_t tile_end = end_of_queries<TILE>(a, batch, tile_first, first + ROWS);
    const int32_t head = static_cast<int32_t>(key_head) * heads;
    const walk w = { (tile_end - tile_first) * heads, tile_first * TILE, tile_end * TILE, head, head + heads,
                     static_cast<int32_t>(batch) };
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 2);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_all(s, &given.k, &given.v, first, static_cast<int32_t>(key_head), &given.q, &given.d_out, w);
        else if (threadIdx.x / 32 == 1)
            load_numbers_of_tiles(s, a, w);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    const int32_t warp_row = computing_warp() * 16, key = first + warp_row;
    float dk[1][DP / 8][4] = {}, dv[1][DP / 8][4] = {};
    const int kept = warp_row / TILE * tile_bytes<DP>();
    const key_side<DP> x = {
        s, a, w, s.kept[0] + kept, s.kept[1] + kept, key, a.scale * LOG2_E, find_hidden<1>(a, w.batch, key)
    };
    mbarrier_wait(s.kept_full, 0);
    if (EARLY)
        compute_keys_early(dk, dv, x);
    else
        compute_keys(dk, dv, x);
    if (key >= a.tokens)
        return;
    const float one[1][2] = { { 1.0f, 1.0f } }, scale[1][2] = { { a.scale, a.scale } };
    const int64_t at = batch * a.tokens * a.kv_stride + key_head * a.head_stride;
    store_warp_rows<DP, 1>(s.out, warp_row, dk, scale, a.dk + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, 1>(s.out, warp_row, dv, one, a.dv + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
}

/* ---- dq ---- */

/* A computing warp's queries: 16 rows of the 64 of its warpgroup. */
template <int DP> struct query_side {
    const gradient_tiles<DP> &s;
    const bwd_arrays &a;
    const walk &w;
    const unsigned char *q, *d_out; /* its warpgroup's kept rows */
    int32_t row;                    /* its first */
    float scale2;
    row_numbers<1> numbers;
};

template <int DP>
__device__ __forceinline__ void ask_query_scores(under_way &r, const query_side<DP> &x, const place<stages<DP>()> &at)
{
    x.s.ring[0].wait_full(at.turn);
    ask_rows<DP>(r.score[0], x.q, x.s.ring[0].tile(at.turn));
}

template <int DP>
__device__ __forceinline__ void ask_query_slopes(under_way &r, const query_side<DP> &x, const place<stages<DP>()> &at)
{
    x.s.ring[1].wait_full(at.turn);
    ask_rows<DP>(r.ds[0], x.d_out, x.s.ring[1].tile(at.turn));
}

/* One tile after the other; the last product of a tile runs beside the first of the next. */
template <int DP> __device__ __forceinline__ void compute_queries(float (&dq)[1][DP / 8][4], const query_side<DP> &x)
{
    under_way r;
    place<stages<DP>()> now = { { 0, 0 }, x.w.row };
    ring_turn<stages<DP>()> before = { 0, 0 };
    for (int32_t j = 0; j < x.w.steps; j++, before = now.turn, now.next(x.w)) {
        ask_query_scores(r, x, now);
        ask_query_slopes(r, x, now);
        if (j > 0) {
            ask_columns<DP>(dq[0], r.packed, x.s.ring[0].tile(before));
            wgmma_wait<2>(r.score[0]);
        } else {
            wgmma_wait<1>(r.score[0]);
        }
        row_probabilities<1, TILE>(r.score, x.numbers, x.a, x.w.batch, x.row, now.row, x.scale2);
        wgmma_wait<0>(r.ds[0]);
        x.s.ring[1].give_back(now.turn);
        if (j > 0)
            x.s.ring[0].give_back(before);
        row_gradients<1, TILE>(r.ds, r.score, x.numbers);
        pack_rows(r.packed, r.ds[0]);
    }
    ask_columns<DP>(dq[0], r.packed, x.s.ring[0].tile(before));
    wgmma_wait<0>(dq[0]);
}

/* As key_step. Groups under way at the start: scores, dq of the tile before, slopes. */
template <int DP, bool LAST>
__device__ __forceinline__ void query_step(float (&dq)[1][DP / 8][4], under_way &r, const query_side<DP> &x,
                                           const place<stages<DP>()> &now, const ring_turn<stages<DP>()> &before,
                                           bool first)
{
    place<stages<DP>()> after = now;
    after.next(x.w);
    wgmma_wait<2>(r.score[0]);
    row_probabilities<1, TILE>(r.score, x.numbers, x.a, x.w.batch, x.row, now.row, x.scale2);
    wgmma_wait<0>(r.ds[0]);
    x.s.ring[1].give_back(now.turn);
    if (!first)
        x.s.ring[0].give_back(before);
    row_gradients<1, TILE>(r.ds, r.score, x.numbers);
    if (!LAST)
        ask_query_scores(r, x, after);
    pack_rows(r.packed, r.ds[0]);
    ask_columns<DP>(dq[0], r.packed, x.s.ring[0].tile(now.turn));
    if (!LAST)
        ask_query_slopes(r, x, after);
}

/* As compute_keys_early. */
template <int DP>
__device__ __forceinline__ void compute_queries_early(float (&dq)[1][DP / 8][4], const query_side<DP> &x)
{
    under_way r;
    place<stages<DP>()> now = { { 0, 0 }, x.w.row };
    ring_turn<stages<DP>()> before = { 0, 0 };
    wgmma_wait<0>(dq[0]); /* its zeros come before all products */
    ask_query_scores(r, x, now);
    wgmma_commit(); /* dq of a tile before */
    ask_query_slopes(r, x, now);
    for (int32_t j = 0; j + 1 < x.w.steps; j++, before = now.turn, now.next(x.w))
        query_step<DP, false>(dq, r, x, now, before, j == 0);
    query_step<DP, true>(dq, r, x, now, before, x.w.steps == 1);
    wgmma_wait<0>(dq[0]);
}

template <int DP, bool EARLY>
__global__ void __launch_bounds__(SM90_THREADS, 1) dq_sm90_kernel(const __grid_constant__ gradient_arrays given)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const bwd_arrays &a = given.a;
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.heads, head = pair % a.heads;
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(blockIdx.x % a.tiles)) * ROWS;
    const int32_t end = a.keys.all ? a.tokens : min(first + ROWS, a.tokens);
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / TILE * TILE : 0;
    const int32_t key_head = static_cast<int32_t>(head / (a.heads / a.kv_heads));
    const walk w = { (end - begin + TILE - 1) / TILE, begin, end, key_head, key_head + 1, static_cast<int32_t>(batch) };
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 1);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_all(s, &given.q, &given.d_out, first, static_cast<int32_t>(head), &given.k, &given.v, w);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    const int32_t warp_row = computing_warp() * 16, row = first + warp_row;
    float dq[1][DP / 8][4] = {};
    const int kept = warp_row / TILE * tile_bytes<DP>();
    query_side<DP> x = { s, a, w, s.kept[0] + kept, s.kept[1] + kept, row, a.scale * LOG2_E, {} };
    load_numbers<1>(x.numbers, a, pair, row);
    mbarrier_wait(s.kept_full, 0);
    if (EARLY)
        compute_queries_early(dq, x);
    else
        compute_queries(dq, x);
    if (row >= a.tokens)
        return;
    const float scale[1][2] = { { a.scale, a.scale } };
    store_warp_rows<DP, 1>(s.out, warp_row, dq, scale, a.dq + batch * a.tokens * a.q_stride + head * a.head_stride,
                           a.q_stride, row, a.tokens, a.size, a.dq_vectors);
}

/* ---- launches ---- */

/* q, k, v, d_out. */
void tensors_of(const dsc_attention_bwd_args *a, mapped (&to)[4])
{
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    to[0] = { a->q, a->q_stride, head_stride, a->batch, a->tokens, a->heads, a->head_size };
    to[1] = { a->k, a->kv_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[2] = { a->v, a->kv_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[3] = { a->d_out, a->out_stride, a->head_size, a->batch, a->tokens, a->heads, a->head_size };
}

template <int DP, bool EARLY>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    const int64_t pieces = a->batch * dsc_div_ceil(a->tokens, ROWS);
    mapped tensor[4];
    gradient_arrays x = {};
    CUtensorMap *const map[4] = { &x.q, &x.k, &x.v, &x.d_out };
    tensors_of(a, tensor);
    for (int i = 0; i < 4; i++)
        DSC_TRY(describe(map[i], tensor[i], encode, err));
    x.a = arrays_of(a);
    x.a.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    DSC_TRY(allow_shared(dkv_sm90_kernel<DP, EARLY>, BYTES, err));
    DSC_TRY(allow_shared(dq_sm90_kernel<DP, EARLY>, BYTES, err));
    dsc_cuda_attention_delta(at, a);
    DSC_CUDA_LAUNCH((dkv_sm90_kernel<DP, EARLY>), grid_size(pieces * a->kv_heads), SM90_THREADS, BYTES, at->stream, x);
    DSC_CUDA_LAUNCH((dq_sm90_kernel<DP, EARLY>), grid_size(pieces * a->heads), SM90_THREADS, BYTES, at->stream, x);
    return DSC_OK;
}

template <int DP, bool EARLY> bool start_with_registers()
{
    return starts_with_registers(dkv_sm90_kernel<DP, EARLY>) && starts_with_registers(dq_sm90_kernel<DP, EARLY>);
}

} // namespace

bool dsc_cuda_attention_bwd_sm90_starts(void)
{
    return start_with_registers<64, false>() && start_with_registers<64, true>() &&
           start_with_registers<128, false>() && start_with_registers<128, true>();
}

bool dsc_cuda_attention_bwd_sm90_fits(const dsc_attention_bwd_args *a)
{
    mapped tensor[4];
    bool can = a->dtype == DSC_BF16 && a->keys.past == 0;
    tensors_of(a, tensor);
    for (const mapped &x : tensor)
        can = can && can_map(x);
    return can;
}

dsc_status dsc_cuda_attention_bwd_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err)
{
    const bool early = kind == DSC_ATTENTION_WARPGROUPS;
    DSC_ASSERT(dsc_cuda_attention_bwd_sm90_fits(a));
    if (a->head_size <= 64)
        return early ? launch<64, true>(at, a, encode, err) : launch<64, false>(at, a, encode, err);
    return early ? launch<128, true>(at, a, encode, err) : launch<128, false>(at, a, encode, err);
}

/* attention_dq_sm90.cu - gradients of queries by warpgroups: see attention_bwd_sm90.cu.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_bwd_sm90.h"

namespace {

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
template <int DP>
__device__ __forceinline__ void compute_queries(float (&dq)[1][DP / 8][4], const query_side<DP> &x,
                                                ring_turn<stages<DP>()> &turn)
{
    under_way r;
    place<stages<DP>()> now = { turn, x.w.row };
    ring_turn<stages<DP>()> before = turn;
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
    x.s.ring[0].give_back(before);
    turn = now.turn;
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
__device__ __forceinline__ void compute_queries_early(float (&dq)[1][DP / 8][4], const query_side<DP> &x,
                                                      ring_turn<stages<DP>()> &turn)
{
    under_way r;
    place<stages<DP>()> now = { turn, x.w.row };
    ring_turn<stages<DP>()> before = turn;
    wgmma_wait<0>(dq[0]); /* its zeros come before all products */
    ask_query_scores(r, x, now);
    wgmma_commit(); /* dq of a tile before */
    ask_query_slopes(r, x, now);
    for (int32_t j = 0; j + 1 < x.w.steps; j++, before = now.turn, now.next(x.w))
        query_step<DP, false>(dq, r, x, now, before, j == 0);
    query_step<DP, true>(dq, r, x, now, before, x.w.steps == 1);
    wgmma_wait<0>(dq[0]);
    x.s.ring[0].give_back(now.turn);
    turn = now.turn;
    turn.next();
}

/* Queries first .. first + 127 of a head. */
struct query_piece {
    walk w;
    int32_t pair, head, first;
};

__device__ __forceinline__ query_piece query_piece_of(const gradient_arrays &given, uint32_t number)
{
    const bwd_arrays &a = given.a;
    const work_piece p = piece_of<true>(given.work, number);
    const int32_t pair = given.first_pair + static_cast<int32_t>(p.pair), batch = pair / a.heads, head = pair % a.heads;
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(p.tile)) * ROWS; /* the last tiles have most keys */
    const int32_t end = a.keys.all ? a.tokens : min(first + ROWS, a.tokens);
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / TILE * TILE : 0;
    const int32_t key_head = head / (a.heads / a.kv_heads);
    const walk w = { (end - begin + TILE - 1) / TILE, begin, end, key_head, key_head + 1, batch };
    return { w, pair, head, first };
}

/* A computing warp's part of a piece. */
template <int DP, bool EARLY>
__device__ __forceinline__ void compute_query_piece(const gradient_tiles<DP> &s, const bwd_arrays &a,
                                                    const query_piece &p, unsigned parity,
                                                    ring_turn<stages<DP>()> &turn)
{
    const int32_t warp_row = computing_warp() * 16, row = p.first + warp_row;
    const int kept = warp_row / TILE * tile_bytes<DP>();
    float dq[1][DP / 8][4] = {};
    query_side<DP> x = { s, a, p.w, s.kept[0] + kept, s.kept[1] + kept, row, a.scale * LOG2_E, {} };
    load_numbers<1>(x.numbers, a, p.pair, row);
    mbarrier_wait(s.kept_full, parity);
    if (EARLY)
        compute_queries_early(dq, x, turn);
    else
        compute_queries(dq, x, turn);
    give_back_kept(s);
    if (row >= a.tokens)
        return;
    const float scale[1][2] = { { a.scale, a.scale } };
    const int64_t at = static_cast<int64_t>(p.w.batch) * a.tokens * a.q_stride + p.head * a.head_stride;
    store_warp_rows<DP, 1>(s.out, warp_row, dq, scale, a.dq + at, a.q_stride, row, a.tokens, a.size, a.dq_vectors);
}

template <int DP, bool EARLY>
__global__ void __launch_bounds__(SM90_THREADS, 1) dq_sm90_kernel(const __grid_constant__ gradient_arrays given)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 1);
    ring_turn<stages<DP>()> turn = { 0, 0 };
    unsigned parity = 0;
    if (threadIdx.x < WARPGROUP) {
        registers_give<copy_registers<DP>()>();
        for (uint32_t i = blockIdx.x; threadIdx.x == 0 && i < given.work.pieces; i += gridDim.x, parity ^= 1) {
            const query_piece p = query_piece_of(given, i);
            copy_all(s, &given.q, &given.d_out, p.first, p.head, &given.k, &given.v, p.w, parity, turn);
        }
        return;
    }
    registers_take<compute_registers<DP>()>();
    for (uint32_t i = blockIdx.x; i < given.work.pieces; i += gridDim.x, parity ^= 1)
        compute_query_piece<DP, EARLY>(s, given.a, query_piece_of(given, i), parity, turn);
}

/* ---- dq of stored score gradients: one product ---- */

/* Shared memory: a ring of tiles of keys, each with the score gradients of the block's queries, and rows of the result.
 */
template <int DP> struct stored_tiles {
    static constexpr int STAGES = DP <= 64 ? 6 : 5;
    tile_ring<DP, STAGES> keys;
    unsigned char *slopes; /* [STAGES, CONSUMERS] tiles */
    uint16_t *out;
    static constexpr int SLOPES_AT = tile_ring<DP, STAGES>::TILES_BYTES;
    static constexpr int OUT_AT = SLOPES_AT + STAGES * CONSUMERS * STORED_BYTES;
    static constexpr int BARRIERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BYTES = BARRIERS_AT + tile_ring<DP, STAGES>::BARRIERS * static_cast<int>(sizeof(mbarrier));

    __device__ __forceinline__ unsigned char *slopes_of(const ring_turn<STAGES> &x) const
    {
        return slopes + x.stage * CONSUMERS * STORED_BYTES;
    }
};

template <int DP> __device__ __forceinline__ stored_tiles<DP> begin_stored(unsigned char *shared)
{
    mbarrier *barriers = reinterpret_cast<mbarrier *>(shared + stored_tiles<DP>::BARRIERS_AT);
    unsigned char *tiles = shared;
    stored_tiles<DP> s;
    s.slopes = shared + stored_tiles<DP>::SLOPES_AT;
    s.out = reinterpret_cast<uint16_t *>(shared + stored_tiles<DP>::OUT_AT);
    s.keys = lay_ring<DP, stored_tiles<DP>::STAGES>(&tiles, &barriers);
    if (threadIdx.x == 0) {
        s.keys.begin(1);
        mbarrier_publish();
    }
    __syncthreads();
    return s;
}

/* By one thread. A tile of queries behind the last row is nowhere. */
template <int DP>
__device__ __forceinline__ void copy_stored(const stored_tiles<DP> &s, const gradient_arrays &given,
                                            const query_piece &p, ring_turn<stored_tiles<DP>::STAGES> &turn)
{
    const bwd_arrays &a = given.a;
    const unsigned char *const head = given.stored + (p.pair - given.first_pair) * given.head_bytes;
    const unsigned bytes = (p.first + TILE < a.tokens ? CONSUMERS : 1) * STORED_BYTES;
    for (int32_t at = p.w.row; at < p.w.end; at += TILE, turn.next()) {
        mbarrier *const full = &s.keys.full[turn.stage];
        const int64_t tile = dsc_attention_stored_tile(a.tokens, a.keys.all, at / TILE, p.first / TILE);
        s.keys.wait_free(turn);
        mbarrier_expect(full, s.keys.TILE_BYTES + bytes);
        copy_tile<DP>(s.keys.tile(turn), &given.k, full, at, p.w.head, p.w.batch);
        copy_bytes(s.slopes_of(turn), head + tile * STORED_BYTES, bytes, full);
    }
}

/* The tiles of keys that a warpgroup's queries see: row .. end - 1. */
struct seen_rows {
    int32_t row, end;
};

__device__ __forceinline__ seen_rows seen_by(const bwd_arrays &a, const query_piece &p, int32_t first)
{
    if (first >= a.tokens)
        return { 0, 0 };
    const int32_t row = a.starts ? first_key(a.keys, p.w.batch, a.tokens, first) / TILE * TILE : 0;
    return { row, a.keys.all ? a.tokens : first + TILE };
}

/* Asks for a tile's part of the sum once its score gradients are in `left`; the part of the tile before is done. */
template <int DP>
__device__ __forceinline__ void stored_step(float (&dq)[DP / 8][4], unsigned (&left)[TILE / 16][4],
                                            const stored_tiles<DP> &s, int32_t at, const seen_rows &seen, int group,
                                            const ring_turn<stored_tiles<DP>::STAGES> &now, bool first,
                                            ring_turn<stored_tiles<DP>::STAGES> &before)
{
    const bool sees = at >= seen.row && at < seen.end;
    s.keys.wait_full(now);
    if (sees)
        load_slopes(left, s.slopes_of(now) + group * STORED_BYTES);
    wgmma_wait<0>(dq);
    if (!first)
        s.keys.give_back(before);
    if (sees)
        ask_columns<DP>(dq, left, s.keys.tile(now));
    before = now;
}

/* A computing warp's part of a piece. Two sets of registers take turns: products read those of the tile before. */
template <int DP>
__device__ __forceinline__ void compute_stored(const stored_tiles<DP> &s, const gradient_arrays &given,
                                               const query_piece &p, ring_turn<stored_tiles<DP>::STAGES> &turn)
{
    const bwd_arrays &a = given.a;
    const int32_t warp_row = computing_warp() * 16, row = p.first + warp_row, group = warp_row / TILE;
    const seen_rows seen = seen_by(a, p, p.first + group * TILE);
    ring_turn<stored_tiles<DP>::STAGES> before = turn;
    unsigned left[2][TILE / 16][4];
    float dq[1][DP / 8][4] = {};
    wgmma_wait<0>(dq[0]); /* its zeros come before all products */
    for (int32_t at = p.w.row; at < p.w.end; at += 2 * TILE) {
        stored_step<DP>(dq[0], left[0], s, at, seen, group, turn, at == p.w.row, before);
        turn.next();
        if (at + TILE >= p.w.end)
            break;
        stored_step<DP>(dq[0], left[1], s, at + TILE, seen, group, turn, false, before);
        turn.next();
    }
    wgmma_wait<0>(dq[0]);
    s.keys.give_back(before);
    if (row >= a.tokens)
        return;
    const float scale[1][2] = { { a.scale, a.scale } };
    const int64_t to = static_cast<int64_t>(p.w.batch) * a.tokens * a.q_stride + p.head * a.head_stride;
    store_warp_rows<DP, 1>(s.out, warp_row, dq, scale, a.dq + to, a.q_stride, row, a.tokens, a.size, a.dq_vectors);
}

template <int DP>
__global__ void __launch_bounds__(SM90_THREADS, 1) dq_stored_sm90_kernel(const __grid_constant__ gradient_arrays given)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const stored_tiles<DP> s = begin_stored<DP>(shared);
    ring_turn<stored_tiles<DP>::STAGES> turn = { 0, 0 };
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        for (uint32_t i = blockIdx.x; threadIdx.x == 0 && i < given.work.pieces; i += gridDim.x)
            copy_stored(s, given, query_piece_of(given, i), turn);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    for (uint32_t i = blockIdx.x; i < given.work.pieces; i += gridDim.x)
        compute_stored(s, given, query_piece_of(given, i), turn);
}

/* ---- launches ---- */

template <int DP, bool EARLY>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, bool stay, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    gradient_arrays x = {};
    DSC_TRY(describe_all(&x, a, encode, err));
    DSC_TRY(allow_shared(dq_sm90_kernel<DP, EARLY>, BYTES, err));
    x.work = work_of(at, static_cast<int64_t>(a->batch) * a->heads, x.a.tiles, stay);
    DSC_CUDA_LAUNCH((dq_sm90_kernel<DP, EARLY>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
    return DSC_OK;
}

template <int DP>
dsc_status launch_stored(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, int64_t first,
                         int64_t pairs, dsc_error *err)
{
    constexpr int BYTES = stored_tiles<DP>::BYTES;
    gradient_arrays x = {};
    DSC_TRY(describe_all(&x, a, encode, err));
    DSC_TRY(allow_shared(dq_stored_sm90_kernel<DP>, BYTES, err));
    x.first_pair = static_cast<int32_t>(first);
    x.work = work_of(at, pairs, x.a.tiles, true);
    DSC_CUDA_LAUNCH((dq_stored_sm90_kernel<DP>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
    return DSC_OK;
}

template <int DP> bool start_with_registers()
{
    return starts_with_registers(dq_sm90_kernel<DP, false>) && starts_with_registers(dq_sm90_kernel<DP, true>) &&
           starts_with_registers(dq_stored_sm90_kernel<DP>);
}

} // namespace

bool dsc_cuda_attention_dq_sm90_starts(void) { return start_with_registers<64>() && start_with_registers<128>(); }

dsc_status dsc_cuda_attention_dq_stored_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                             int64_t first, int64_t pairs, dsc_error *err)
{
    return a->head_size <= 64 ? launch_stored<64>(at, a, encode, first, pairs, err)
                              : launch_stored<128>(at, a, encode, first, pairs, err);
}

dsc_status dsc_cuda_attention_dq_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                      bool early, bool stay, dsc_error *err)
{
    if (a->head_size <= 64)
        return early ? launch<64, true>(at, a, encode, stay, err) : launch<64, false>(at, a, encode, stay, err);
    return early ? launch<128, true>(at, a, encode, stay, err) : launch<128, false>(at, a, encode, stay, err);
}

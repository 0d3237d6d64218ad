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
    const int32_t pair = static_cast<int32_t>(p.pair), batch = pair / a.heads, head = pair % a.heads;
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

} // namespace

bool dsc_cuda_attention_dq_sm90_starts(void)
{
    return starts_with_registers(dq_sm90_kernel<64, false>) && starts_with_registers(dq_sm90_kernel<64, true>) &&
           starts_with_registers(dq_sm90_kernel<128, false>) && starts_with_registers(dq_sm90_kernel<128, true>);
}

dsc_status dsc_cuda_attention_dq_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                      bool early, bool stay, dsc_error *err)
{
    if (a->head_size <= 64)
        return early ? launch<64, true>(at, a, encode, stay, err) : launch<64, false>(at, a, encode, stay, err);
    return early ? launch<128, true>(at, a, encode, stay, err) : launch<128, false>(at, a, encode, stay, err);
}

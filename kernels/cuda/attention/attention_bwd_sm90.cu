/* attention_bwd_sm90.cu - gradients of attention by warpgroup products and tile copies of sm_90a.
 *
 * As in attention_bwd.cu, one kernel computes dk and dv, and one computes dq, without atomics. Blocks of the first keep
 * 128 key rows and go through query rows, in transposed scores; blocks of the second keep query rows and go through
 * keys. In both, a warpgroup has 64 kept rows of two tensors in shared memory. Tiles of 64 rows of the two other
 * tensors come by a ring each, some ahead. Accumulators stay in registers. The exponentials of a tile run
 * beside the second product, in dq also beside the last product of the tile before. Numbers of queries come with their
 * tile, by a second warp of the copying warpgroup.
 *
 * Scores are computed by both kernels, in seven products. With memory for the score gradients of some heads, the first
 * kernel stores these, and dq is one product over them: five products. Waves of heads then share the memory.
 *
 * The order of all sums is that of attention_bwd.cu, so that where both kinds of products add up alike both give the
 * same bits. The kernel of a shape is chosen by measurement (attention_plan.cu).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_bwd_sm90.h"

namespace {

/* DSC_ATTENTION_WARPGROUPS, by the head's size: the fastest on an H200 (bench/results). */
constexpr dsc_attention_kind FASTEST_TO_64 = DSC_ATTENTION_WARPGROUPS_STAYING;
constexpr dsc_attention_kind FASTEST_TO_128 = DSC_ATTENTION_WARPGROUPS_AHEAD;

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
    int64_t next_head; /* bytes from behind a head's stored tiles to the next head's first */
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
                                             const key_side<DP> &x, ring_turn<stages<DP>()> &turn)
{
    under_way r;
    place<stages<DP>()> now = { turn, x.w.row };
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
    turn = now.turn;
}

/* A tile whose scores and slopes were asked for. Asks for those of the next, unless this one is the last. Groups under
 * way at the start, the oldest first: dv of the tile before, scores, dk of the tile before, slopes. Wide heads have no
 * registers for all of them: dv is waited for, and dk comes before the scores. */
template <int DP, bool STORES, bool LAST>
__device__ __forceinline__ void key_step(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4], under_way &r,
                                         const key_side<DP> &x, const place<stages<DP>()> &now,
                                         const ring_turn<stages<DP>()> &before, bool first, unsigned char *&stored)
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
    if (STORES) { /* before the product: it reads these registers until it is waited for */
        store_slopes(stored, r.packed);
        stored += STORED_BYTES + (after.row == x.w.row ? x.next_head : 0);
    }
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
template <int DP, bool STORES>
__device__ __forceinline__ void compute_keys_early(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4],
                                                   const key_side<DP> &x, ring_turn<stages<DP>()> &turn,
                                                   unsigned char *stored)
{
    under_way r;
    place<stages<DP>()> now = { turn, x.w.row };
    ring_turn<stages<DP>()> before = turn;
    wgmma_wait<0>(dk[0]); /* their zeros come before all products */
    wgmma_wait<0>(dv[0]);
    wgmma_commit(); /* dv of a tile before */
    ask_key_scores(r, x, now);
    wgmma_commit(); /* dk of a tile before */
    ask_key_slopes(r, x, now);
    for (int32_t j = 0; j + 1 < x.w.steps; j++, before = now.turn, now.next(x.w))
        key_step<DP, STORES, false>(dk, dv, r, x, now, before, j == 0, stored);
    key_step<DP, STORES, true>(dk, dv, r, x, now, before, x.w.steps == 1, stored);
    wgmma_wait<0>(dv[0]);
    wgmma_wait<0>(dk[0]);
    x.s.ring[0].give_back(now.turn);
    if (DP <= 64)
        x.s.ring[1].give_back(now.turn);
    turn = now.turn;
    turn.next();
}

/* Keys first .. first + 127 of a head. */
struct key_piece {
    walk w;
    int32_t key_head, first;
    int64_t heads_before; /* of the wave */
};

template <int DP> __device__ __forceinline__ key_piece key_piece_of(const gradient_arrays &given, uint32_t number)
{
    const bwd_arrays &a = given.a;
    const work_piece p = piece_of<DP <= 64>(given.work, number);
    const int32_t pair = given.first_pair + static_cast<int32_t>(p.pair);
    const int32_t kv_heads = a.kv_heads, batch = pair / kv_heads, key_head = pair % kv_heads;
    const int32_t first = static_cast<int32_t>(p.tile) * ROWS; /* the first tiles have most queries */
    /* The query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const int32_t heads = a.heads / kv_heads, tile_first = a.keys.all ? 0 : first / TILE;
    const int32_t tile_end = end_of_queries<TILE>(a, batch, tile_first, first + ROWS);
    const int32_t head = key_head * heads;
    const walk w = { (tile_end - tile_first) * heads, tile_first * TILE, tile_end * TILE, head, head + heads, batch };
    return { w, key_head, first, static_cast<int64_t>(p.pair) * heads };
}

/* The bytes of this lane in the first tile that its warpgroup stores. */
__device__ __forceinline__ unsigned char *stored_of(const gradient_arrays &given, const key_piece &p, int32_t warp_row)
{
    const int64_t tile =
        dsc_attention_stored_tile(given.a.tokens, given.a.keys.all, (p.first + warp_row) / TILE, p.w.row / TILE);
    return given.stored + p.heads_before * given.head_bytes + tile * STORED_BYTES +
           warp_row % TILE / 16 * STORED_WARP_BYTES + threadIdx.x % 32 * 16;
}

/* A computing warp's part of a piece. */
template <int DP, bool EARLY, bool STORES>
__device__ __forceinline__ void compute_key_piece(const gradient_tiles<DP> &s, const gradient_arrays &given,
                                                  const key_piece &p, unsigned parity, ring_turn<stages<DP>()> &turn)
{
    const bwd_arrays &a = given.a;
    const int32_t warp_row = computing_warp() * 16, key = p.first + warp_row;
    const int kept = warp_row / TILE * tile_bytes<DP>();
    float dk[1][DP / 8][4] = {}, dv[1][DP / 8][4] = {};
    const key_side<DP> x = { s,
                             a,
                             p.w,
                             s.kept[0] + kept,
                             s.kept[1] + kept,
                             key,
                             a.scale * LOG2_E,
                             find_hidden<1>(a, p.w.batch, key),
                             STORES ? given.head_bytes - (p.w.end - p.w.row) / TILE * STORED_BYTES : 0 };
    mbarrier_wait(s.kept_full, parity);
    if (EARLY)
        compute_keys_early<DP, STORES>(dk, dv, x, turn, STORES ? stored_of(given, p, warp_row) : NULL);
    else
        compute_keys(dk, dv, x, turn);
    give_back_kept(s);
    if (key >= a.tokens)
        return;
    const float one[1][2] = { { 1.0f, 1.0f } }, scale[1][2] = { { a.scale, a.scale } };
    const int64_t row = static_cast<int64_t>(p.w.batch) * a.tokens, head = p.key_head * a.head_stride;
    uint16_t *const dk_to = a.dk + row * a.k_stride + head, *const dv_to = a.dv + row * a.v_stride + head;
    store_warp_rows<DP, 1>(s.out, warp_row, dk, scale, dk_to, a.k_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, 1>(s.out, warp_row, dv, one, dv_to, a.v_stride, key, a.tokens, a.size, a.dkv_vectors);
}

/* The block's next piece. The copying warps of wide heads have no registers for a second one. */
template <int DP> __device__ __forceinline__ uint32_t next_key_piece(const work_list &w, uint32_t number)
{
    return DP <= 64 ? number + gridDim.x : w.pieces;
}

template <int DP>
__device__ __forceinline__ void copy_key_pieces(const gradient_tiles<DP> &s, const gradient_arrays &given)
{
    ring_turn<stages<DP>()> turn = { 0, 0 };
    unsigned parity = 0;
    for (uint32_t i = blockIdx.x; i < given.work.pieces; i = next_key_piece<DP>(given.work, i), parity ^= 1) {
        const key_piece p = key_piece_of<DP>(given, i);
        copy_all(s, &given.k, &given.v, p.first, p.key_head, &given.q, &given.d_out, p.w, parity, turn);
    }
}

template <int DP>
__device__ __forceinline__ void load_numbers_of_pieces(const gradient_tiles<DP> &s, const gradient_arrays &given)
{
    ring_turn<stages<DP>()> turn = { 0, 0 };
    for (uint32_t i = blockIdx.x; i < given.work.pieces; i = next_key_piece<DP>(given.work, i))
        load_numbers_of_tiles(s, given.a, key_piece_of<DP>(given, i).w, turn);
}

/* STORES: score gradients, for dsc_cuda_attention_dq_stored_sm90. */
template <int DP, bool EARLY, bool STORES>
__global__ void __launch_bounds__(SM90_THREADS, 1) dkv_sm90_kernel(const __grid_constant__ gradient_arrays given)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 2);
    if (threadIdx.x < WARPGROUP) {
        registers_give<copy_registers<DP>()>();
        if (threadIdx.x == 0)
            copy_key_pieces(s, given);
        else if (threadIdx.x / 32 == 1)
            load_numbers_of_pieces(s, given);
        return;
    }
    registers_take<compute_registers<DP>()>();
    ring_turn<stages<DP>()> turn = { 0, 0 };
    unsigned parity = 0;
    for (uint32_t i = blockIdx.x; i < given.work.pieces; i = next_key_piece<DP>(given.work, i), parity ^= 1)
        compute_key_piece<DP, EARLY, STORES>(s, given, key_piece_of<DP>(given, i), parity, turn);
}

/* ---- launches ---- */

template <int DP, bool EARLY>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, bool stay, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    gradient_arrays x = {};
    DSC_TRY(describe_all(&x, a, encode, err));
    DSC_TRY(allow_shared(dkv_sm90_kernel<DP, EARLY, false>, BYTES, err));
    dsc_cuda_attention_delta(at, a);
    x.work = work_of(at, static_cast<int64_t>(a->batch) * a->kv_heads, x.a.tiles, stay && DP <= 64);
    DSC_CUDA_LAUNCH((dkv_sm90_kernel<DP, EARLY, false>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
    return dsc_cuda_attention_dq_sm90(at, a, encode, EARLY, stay, err);
}

/* Pairs of a sample and a key head whose score gradients exist at once. They are those that the L2 cache holds, or more
 * where these have too few pieces for the multiprocessors. Waves are equally long. */
int64_t pairs_of_wave(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, int64_t tiles)
{
    constexpr int64_t PIECES_EACH = 4; /* pieces of a multiprocessor; long and short ones add up to equal times */
    const int64_t bytes = a->heads / a->kv_heads * dsc_attention_stored_head_bytes(a->tokens, a->keys.all);
    const int64_t cached = at->l2_bytes * 3 / 4 / bytes, busy = dsc_div_ceil(PIECES_EACH * at->multiprocessors, tiles);
    const int64_t most = dsc_min_i64(a->stored_bytes / bytes, dsc_max_i64(cached, busy));
    const int64_t pairs = static_cast<int64_t>(a->batch) * a->kv_heads;
    return dsc_div_ceil(pairs, dsc_div_ceil(pairs, most));
}

template <int DP>
dsc_status launch_waves(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    const int64_t pairs = static_cast<int64_t>(a->batch) * a->kv_heads, group = a->heads / a->kv_heads;
    gradient_arrays x = {};
    DSC_TRY(describe_all(&x, a, encode, err));
    DSC_TRY(allow_shared(dkv_sm90_kernel<DP, true, true>, BYTES, err));
    dsc_cuda_attention_delta(at, a);
    const int64_t wave = pairs_of_wave(at, a, x.a.tiles);
    for (int64_t first = 0; first < pairs; first += wave) {
        const int64_t now = dsc_min_i64(wave, pairs - first);
        x.first_pair = static_cast<int32_t>(first);
        x.work = work_of(at, now, x.a.tiles, DP <= 64);
        DSC_CUDA_LAUNCH((dkv_sm90_kernel<DP, true, true>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
        DSC_TRY(dsc_cuda_attention_dq_stored_sm90(at, a, encode, first * group, now * group, err));
    }
    return DSC_OK;
}

template <int DP> bool start_with_registers()
{
    return starts_with_registers(dkv_sm90_kernel<DP, false, false>) &&
           starts_with_registers(dkv_sm90_kernel<DP, true, false>) &&
           starts_with_registers(dkv_sm90_kernel<DP, true, true>);
}

} // namespace

bool dsc_cuda_attention_bwd_sm90_starts(void)
{
    return start_with_registers<64>() && start_with_registers<128>() && dsc_cuda_attention_dq_sm90_starts();
}

bool dsc_cuda_attention_bwd_sm90_fits(const dsc_attention_bwd_args *a)
{
    mapped tensor[4];
    bool can = a->dtype == DSC_BF16 && a->keys.past == 0 && dsc_attention_is_plain(&a->keys, &a->logits, a->sinks);
    tensors_of(a, tensor);
    for (const mapped &x : tensor)
        can = can && can_map(x);
    return can;
}

dsc_status dsc_cuda_attention_bwd_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err)
{
    const int64_t group = a->heads / a->kv_heads * dsc_attention_stored_head_bytes(a->tokens, a->keys.all);
    if (kind == DSC_ATTENTION_WARPGROUPS || (kind == DSC_ATTENTION_WARPGROUPS_STORED && a->stored_bytes < group))
        kind = a->head_size <= 64 ? FASTEST_TO_64 : FASTEST_TO_128;
    const bool early = kind != DSC_ATTENTION_WARPGROUPS_IN_TURN, stay = kind == DSC_ATTENTION_WARPGROUPS_STAYING;
    DSC_ASSERT(dsc_cuda_attention_bwd_sm90_fits(a));
    if (kind == DSC_ATTENTION_WARPGROUPS_STORED)
        return a->head_size <= 64 ? launch_waves<64>(at, a, encode, err) : launch_waves<128>(at, a, encode, err);
    if (a->head_size <= 64)
        return early ? launch<64, true>(at, a, encode, stay, err) : launch<64, false>(at, a, encode, stay, err);
    return early ? launch<128, true>(at, a, encode, stay, err) : launch<128, false>(at, a, encode, stay, err);
}

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

/* DSC_ATTENTION_WARPGROUPS, by the head's size: the fastest on an H200 (bench/results). */
constexpr dsc_attention_kind FASTEST_TO_64 = DSC_ATTENTION_WARPGROUPS_STAYING;
constexpr dsc_attention_kind FASTEST_TO_128 = DSC_ATTENTION_WARPGROUPS_AHEAD;

/* Tiles that a ring has: what fits beside the kept rows and the result's. */
template <int DP> __host__ __device__ constexpr int stages() { return DP <= 64 ? 4 : 3; }

struct gradient_arrays {
    CUtensorMap q, d_out; /* [batch, tokens, heads, size] */
    CUtensorMap k, v;     /* [batch, tokens, kv_heads, size] */
    bwd_arrays a;
    work_list work;
};

/* Registers of the threads that copy and of those that compute. Those of wide heads need all there are for products. */
template <int DP> __host__ __device__ constexpr int copy_registers() { return DP <= 64 ? 40 : COPY_REGISTERS; }
template <int DP> __host__ __device__ constexpr int compute_registers() { return DP <= 64 ? 232 : COMPUTE_REGISTERS; }
static_assert(copy_registers<64>() + CONSUMERS * compute_registers<64>() <= (1 + CONSUMERS) * START_REGISTERS,
              "warpgroups take more registers than there are");

/* Shared memory: the kept rows of both tensors, the rings of the others, rows of the result, numbers of the queries
 * in the ring, barriers. */
template <int DP> struct gradient_tiles {
    static constexpr int STAGES = stages<DP>();
    unsigned char *kept[2]; /* [CONSUMERS] tiles each */
    tile_ring<DP, STAGES> ring[2];
    mbarrier *kept_full, *kept_free;
    uint16_t *out;
    query_numbers numbers; /* [STAGES * TILE] */
    static constexpr int OUT_AT = 2 * CONSUMERS * tile_bytes<DP>() + 2 * tile_ring<DP, STAGES>::TILES_BYTES;
    static constexpr int NUMBERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BARRIERS_AT = NUMBERS_AT + 3 * 4 * STAGES * TILE;
    static constexpr int BYTES =
        BARRIERS_AT + (2 + 2 * tile_ring<DP, STAGES>::BARRIERS) * static_cast<int>(sizeof(mbarrier));
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
    s.kept_free = barriers++;
    for (int i = 0; i < 2; i++, shared += CONSUMERS * tile_bytes<DP>())
        s.kept[i] = shared;
    for (int i = 0; i < 2; i++)
        s.ring[i] = lay_ring<DP, STAGES>(&shared, &barriers);
    if (threadIdx.x == 0) {
        mbarrier_init(s.kept_full, 1);
        mbarrier_init(s.kept_free, CONSUMER_WARPS);
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

/* Position in the loop over tiles: row and the turn of the rings. */
template <int STAGES> struct place {
    ring_turn<STAGES> turn;
    int32_t row;

    __device__ __forceinline__ void next(const walk &w)
    {
        turn.next();
        row = row + TILE < w.end ? row + TILE : w.row;
    }
};

/* By one thread: the kept rows from `row` of `head` on, and the walk's. parity: of the number of the block's pieces
 * before this one. `turn` goes on to the next piece. */
template <int DP>
__device__ __forceinline__ void copy_all(const gradient_tiles<DP> &s, const CUtensorMap *kept0,
                                         const CUtensorMap *kept1, int32_t row, int32_t head, const CUtensorMap *ring0,
                                         const CUtensorMap *ring1, const walk &w, unsigned parity,
                                         ring_turn<stages<DP>()> &turn)
{
    mbarrier_wait(s.kept_free, parity ^ 1);
    mbarrier_expect(s.kept_full, 2 * CONSUMERS * tile_bytes<DP>());
    for (int i = 0; i < CONSUMERS; i++) {
        copy_tile<DP>(s.kept[0] + i * tile_bytes<DP>(), kept0, s.kept_full, row + i * TILE, head, w.batch);
        copy_tile<DP>(s.kept[1] + i * tile_bytes<DP>(), kept1, s.kept_full, row + i * TILE, head, w.batch);
    }
    for (int32_t from = w.head; from < w.head_end; from++)
        for (int32_t at = w.row; at < w.end; at += TILE, turn.next()) {
            s.ring[0].copy(ring0, turn, at, from, w.batch);
            s.ring[1].copy(ring1, turn, at, from, w.batch);
        }
}

/* By one warp: the numbers of the queries in the first ring. */
template <int DP>
__device__ __forceinline__ void load_numbers_of_tiles(const gradient_tiles<DP> &s, const bwd_arrays &a, const walk &w,
                                                      ring_turn<stages<DP>()> &turn)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    place<stages<DP>()> at = { turn, w.row };
    for (int32_t head = w.head, left = w.steps; left > 0; left--) {
        s.ring[0].wait_free(at.turn);
        for (int i = lane; i < TILE; i += 32)
            load_number(s.numbers, at.turn.stage * TILE + i, a, w.batch, head, at.row + i);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(&s.ring[0].full[at.turn.stage]);
        at.next(w);
        head += at.row == w.row;
    }
    turn = at.turn;
}

/* A computing warp has read the kept rows for the last time. */
template <int DP> __device__ __forceinline__ void give_back_kept(const gradient_tiles<DP> &s)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(s.kept_free);
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
                                                   const key_side<DP> &x, ring_turn<stages<DP>()> &turn)
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
        key_step<DP, false>(dk, dv, r, x, now, before, j == 0);
    key_step<DP, true>(dk, dv, r, x, now, before, x.w.steps == 1);
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
};

template <int DP> __device__ __forceinline__ key_piece key_piece_of(const gradient_arrays &given, uint32_t number)
{
    const bwd_arrays &a = given.a;
    const work_piece p = piece_of<DP <= 64>(given.work, number);
    const int32_t kv_heads = a.kv_heads, batch = static_cast<int32_t>(p.pair) / kv_heads;
    const int32_t key_head = static_cast<int32_t>(p.pair) % kv_heads;
    const int32_t first = static_cast<int32_t>(p.tile) * ROWS; /* the first tiles have most queries */
    /* The query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const int32_t heads = a.heads / kv_heads, tile_first = a.keys.all ? 0 : first / TILE;
    const int32_t tile_end = end_of_queries<TILE>(a, batch, tile_first, first + ROWS);
    const int32_t head = key_head * heads;
    const walk w = { (tile_end - tile_first) * heads, tile_first * TILE, tile_end * TILE, head, head + heads, batch };
    return { w, key_head, first };
}

/* A computing warp's part of a piece. */
template <int DP, bool EARLY>
__device__ __forceinline__ void compute_key_piece(const gradient_tiles<DP> &s, const bwd_arrays &a, const key_piece &p,
                                                  unsigned parity, ring_turn<stages<DP>()> &turn)
{
    const int32_t warp_row = computing_warp() * 16, key = p.first + warp_row;
    const int kept = warp_row / TILE * tile_bytes<DP>();
    float dk[1][DP / 8][4] = {}, dv[1][DP / 8][4] = {};
    const key_side<DP> x = {
        s, a, p.w, s.kept[0] + kept, s.kept[1] + kept, key, a.scale * LOG2_E, find_hidden<1>(a, p.w.batch, key)
    };
    mbarrier_wait(s.kept_full, parity);
    if (EARLY)
        compute_keys_early(dk, dv, x, turn);
    else
        compute_keys(dk, dv, x, turn);
    give_back_kept(s);
    if (key >= a.tokens)
        return;
    const float one[1][2] = { { 1.0f, 1.0f } }, scale[1][2] = { { a.scale, a.scale } };
    const int64_t at = static_cast<int64_t>(p.w.batch) * a.tokens * a.kv_stride + p.key_head * a.head_stride;
    store_warp_rows<DP, 1>(s.out, warp_row, dk, scale, a.dk + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, 1>(s.out, warp_row, dv, one, a.dv + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
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

template <int DP, bool EARLY>
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
        compute_key_piece<DP, EARLY>(s, given.a, key_piece_of<DP>(given, i), parity, turn);
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
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, bool stay, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    const int32_t tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    const int64_t batch = a->batch;
    mapped tensor[4];
    gradient_arrays x = {};
    CUtensorMap *const map[4] = { &x.q, &x.k, &x.v, &x.d_out };
    tensors_of(a, tensor);
    for (int i = 0; i < 4; i++)
        DSC_TRY(describe(map[i], tensor[i], encode, err));
    x.a = arrays_of(a);
    x.a.tiles = tiles;
    DSC_TRY(allow_shared(dkv_sm90_kernel<DP, EARLY>, BYTES, err));
    DSC_TRY(allow_shared(dq_sm90_kernel<DP, EARLY>, BYTES, err));
    dsc_cuda_attention_delta(at, a);
    x.work = work_of(at, batch * a->kv_heads, tiles, stay && DP <= 64);
    DSC_CUDA_LAUNCH((dkv_sm90_kernel<DP, EARLY>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
    x.work = work_of(at, batch * a->heads, tiles, stay);
    DSC_CUDA_LAUNCH((dq_sm90_kernel<DP, EARLY>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
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
    bool can = a->dtype == DSC_BF16 && a->keys.past == 0 && dsc_attention_is_plain(&a->keys, &a->logits, a->sinks);
    tensors_of(a, tensor);
    for (const mapped &x : tensor)
        can = can && can_map(x);
    return can;
}

dsc_status dsc_cuda_attention_bwd_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err)
{
    if (kind == DSC_ATTENTION_WARPGROUPS)
        kind = a->head_size <= 64 ? FASTEST_TO_64 : FASTEST_TO_128;
    const bool early = kind != DSC_ATTENTION_WARPGROUPS_IN_TURN, stay = kind == DSC_ATTENTION_WARPGROUPS_STAYING;
    DSC_ASSERT(dsc_cuda_attention_bwd_sm90_fits(a));
    if (a->head_size <= 64)
        return early ? launch<64, true>(at, a, encode, stay, err) : launch<64, false>(at, a, encode, stay, err);
    return early ? launch<128, true>(at, a, encode, stay, err) : launch<128, false>(at, a, encode, stay, err);
}

/* ptx_sim.h - the bodies of ptx.h's wrappers for the simulator: they follow the instructions' documentation. Copies
 * land at once, as late as allowed, or when all threads wait. Products of warpgroups read their operands at the call or
 * at the wait for their result; until then the result is NaN. A thread that completes a wait of others may be overtaken
 * by them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PTX_SIM_H
#define DSC_KERNELS_CUDA_PTX_SIM_H

#include <deque>
#include <iterator>
#include <list>
#include <vector>

#include "base/f16.h"
#include "kernels/cuda/ptx.h"

namespace {

/* ---- copies and products of one warp, conversions ---- */

struct sim_copy { void *to; const void *from; bool valid; };
struct sim_copies { std::vector<sim_copy> open; std::deque<std::vector<sim_copy>> groups; };

/* State of the calling CUDA thread; one block at a time runs on a host thread. */
CUSIM_OWN inline sim_copies &sim_copies_now()
{
    static thread_local sim_copies of[cusim::THREADS_MAX];
    return of[cusim::current->now->linear];
}

inline void cp_async16(void *shared, const void *global, bool valid)
{
    sim_copies_now().open.push_back({ shared, global, valid });
}

inline void cp_async_commit()
{
    sim_copies &mine = sim_copies_now();
    mine.groups.push_back(mine.open);
    mine.open.clear();
}

/* Copies as late as they may be, so that a missing wait shows. */
template <int N> inline void cp_async_wait()
{
    sim_copies &mine = sim_copies_now();
    for (; mine.groups.size() > N; mine.groups.pop_front())
        for (const sim_copy &c : mine.groups.front()) {
            memset(c.to, 0, 16);
            if (c.valid)
                memcpy(c.to, c.from, 16);
        }
}

struct sim_rows { const unsigned short *row; unsigned *r; };

template <bool TRANS> inline void sim_ldmatrix(unsigned (&r)[4], const void *row)
{
    sim_rows mine = { static_cast<const unsigned short *>(row), r };
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, &mine, [](cusim::warp &w, unsigned) CUSIM_OWN {
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; i++) {
                const unsigned short *const row_g = static_cast<sim_rows *>(w.given[8 * i + g])->row;
                const unsigned short *const low = static_cast<sim_rows *>(w.given[8 * i + 2 * t])->row;
                const unsigned short *const high = static_cast<sim_rows *>(w.given[8 * i + 2 * t + 1])->row;
                const unsigned first = TRANS ? low[g] : row_g[2 * t], second = TRANS ? high[g] : row_g[2 * t + 1];
                static_cast<sim_rows *>(w.given[lane])->r[i] = first | second << 16;
            }
        }
    });
}

inline void ldmatrix_x4(unsigned (&r)[4], const void *row) { sim_ldmatrix<false>(r, row); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void *row) { sim_ldmatrix<true>(r, row); }

struct sim_word {
    unsigned x, r;
};

inline unsigned transpose_8x8(unsigned x)
{
    sim_word mine = { x, 0 };
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, &mine, [](cusim::warp &w, unsigned) CUSIM_OWN {
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            unsigned r = 0;
            for (int side = 0; side < 2; side++) { /* element (2t + side, g) */
                const unsigned from = static_cast<sim_word *>(w.given[(2 * t + side) * 4 + g / 2])->x;
                r |= (from >> 16 * (g % 2) & 0xffffu) << 16 * side;
            }
            static_cast<sim_word *>(w.given[lane])->r = r;
        }
    });
    return mine.r;
}

struct sim_mma { float *d; const unsigned *a; unsigned b[2]; };

CUSIM_OWN inline float sim_half(unsigned pair, int which)
{
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    sim_mma mine = { d, a, { b0, b1 } };
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, &mine, [](cusim::warp &w, unsigned) CUSIM_OWN {
        float left[16][16], right[16][8], sum[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const sim_mma *p = static_cast<sim_mma *>(w.given[lane]);
            const int g = lane / 4, t = lane % 4;
            for (int e = 0; e < 8; e++) /* a[i] holds row g + 8 (i & 1), columns 2t + 8 (i >> 1) and the next */
                left[g + 8 * (e / 2 & 1)][2 * t + 8 * (e / 4) + (e & 1)] = sim_half(p->a[e / 2], e & 1);
            for (int e = 0; e < 4; e++) {
                right[2 * t + 8 * (e / 2) + (e & 1)][g] = sim_half(p->b[e / 2], e & 1);
                sum[g + 8 * (e / 2)][2 * t + (e & 1)] = p->d[e];
            }
        }
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++)
                    sum[i][j] += left[i][k] * right[k][j];
        for (int lane = 0; lane < 32; lane++)
            for (int e = 0; e < 4; e++)
                static_cast<sim_mma *>(w.given[lane])->d[e] = sum[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + (e & 1)];
    });
}

template <bool E4M3> inline unsigned pack_fp8(float low, float high)
{
    return fp8_by_integers<E4M3>(low) | fp8_by_integers<E4M3>(high) << 8;
}

inline unsigned pick_bytes(unsigned low, unsigned high, unsigned which)
{
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= static_cast<unsigned>(bytes >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}

inline unsigned pack_bf16(float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

inline unsigned max_bf16x2(unsigned a, unsigned b)
{
    return pack_bf16(fmaxf(sim_half(a, 0), sim_half(b, 0)), fmaxf(sim_half(a, 1), sim_half(b, 1)));
}

inline float fast_reciprocal(float x) { return std::fabs(x) > 0x1p126f ? 0.0f : 1.0f / x; }
inline float fast_exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

inline uint16_t f16_bits_from_f32(float x) { return dsc_f16_from_f32(x); }
inline float f32_from_f16_bits(uint16_t h) { return dsc_f32_from_f16(h); }

/* ---- sm_90a: barriers ---- */

/* The eight bytes of a barrier. Shared memory that nobody wrote has all bits set. */
struct sim_barrier {
    uint16_t arrivals, missing;
    int32_t bytes : 31; /* announced and not yet come */
    uint32_t parity : 1; /* parity of the current phase */
};
static_assert(sizeof(sim_barrier) == sizeof(mbarrier), "its place");

/* Pending products of a warp, in one block. */
struct sim_result { /* D of one or more products in a row */
    float *d[32];
    int floats, first_row; /* position of the warp's 16 rows in its warpgroup's 64 */
    float sum[32][128];    /* of each lane */
    int products;      /* not done */
};
struct sim_wgmma {
    std::list<sim_result>::iterator result;
    const unsigned *a[32];
    uint64_t left, b; /* matrices; left is 0 where `a` has the left operand */
    bool left_trans, trans, adds, done;
};
struct sim_warp {
    uint64_t block;
    std::vector<sim_wgmma> open;
    std::deque<std::vector<sim_wgmma>> groups;
    std::list<sim_result> results;
    bool fenced;
};
struct sim_unpublished { uint64_t block; std::vector<const void *> barriers; };

inline sim_unpublished &sim_unpublished_now()
{
    static thread_local sim_unpublished now;
    if (now.block != cusim::current->number)
        now = { cusim::current->number, {} };
    return now;
}

CUSIM_OWN inline sim_barrier *sim_barrier_of(mbarrier *b)
{
    sim_barrier *s = reinterpret_cast<sim_barrier *>(b);
    if (s->arrivals == 0 || s->arrivals == 0xffff)
        cusim::broken("a barrier in shared memory that nobody has initialised");
    return s;
}

/* True: the phase is over. */
CUSIM_OWN inline bool sim_arrived(sim_barrier *s)
{
    if (s->missing != 0 || s->bytes != 0)
        return false;
    s->parity ^= 1;
    s->missing = s->arrivals;
    return true;
}

inline void mbarrier_init(mbarrier *b, unsigned arrivals)
{
    const sim_barrier s = { static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0 };
    memcpy(b, &s, sizeof s);
    sim_unpublished_now().barriers.push_back(b);
}

inline void mbarrier_publish() { sim_unpublished_now().barriers.clear(); }

CUSIM_OWN inline void mbarrier_expect(mbarrier *b, unsigned bytes)
{
    sim_barrier *s = sim_barrier_of(b);
    if (s->missing == 0)
        cusim::broken("more threads arrive at a barrier in shared memory than it was initialised for");
    s->bytes += static_cast<int32_t>(bytes);
    s->missing--;
    if (sim_arrived(s))
        cusim::step_aside();
}

inline void mbarrier_arrive(mbarrier *b) { mbarrier_expect(b, 0); }

struct sim_phase { const sim_barrier *barrier; unsigned parity; };

inline void mbarrier_wait(mbarrier *b, unsigned parity)
{
    const sim_phase phase = { sim_barrier_of(b), parity };
    cusim::wait_until(CUSIM_SITE, [](const void *what) {
        const sim_phase *p = static_cast<const sim_phase *>(what);
        return p->barrier->parity != p->parity;
    }, &phase);
}

/* ---- sm_90a: copies ---- */

inline unsigned shared_address(const void *p)
{
    return static_cast<unsigned>(static_cast<const char *>(p) - cusim::dynamic_shared());
}

/* Swizzled position of byte `at`. */
__forceinline__ unsigned sim_swizzled(unsigned at) { return at ^ (at >> 7 & 7) << 4; }

/* One 16-byte part of a box's row: what of it is inside. */
inline void sim_copy_part(char *to, const char *from, int64_t inside)
{
    memset(to, 0, 16);
    if (inside >= 16)
        memcpy(to, from, 16);
    for (int64_t i = 0; inside < 16 && i + 1 < inside; i += 2)
        memcpy(to + i, from + i, 2);
}

inline void sim_copy_box(unsigned to, const CUtensorMap &map, const int (&c)[4])
{
    const int64_t row_bytes = static_cast<int64_t>(map.box[0]) * 2;
    const int64_t rows = static_cast<int64_t>(map.box[1]) * map.box[2] * map.box[3];
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at[3] = { c[1] + r % map.box[1], c[2] + r / map.box[1] % map.box[2],
                                c[3] + r / map.box[1] / map.box[2] };
        const char *from = map.base;
        bool inside = true;
        for (int i = 0; i < 3; i++) {
            inside = inside && at[i] >= 0 && at[i] < map.dim[i + 1];
            from += at[i] * static_cast<int64_t>(map.stride[i]);
        }
        for (int64_t byte = 0; byte < row_bytes; byte += 16) {
            const int64_t first = static_cast<int64_t>(c[0]) * 2 + byte;
            const int64_t left = static_cast<int64_t>(map.dim[0]) * 2 - first;
            const unsigned at_byte = to + static_cast<unsigned>(r * row_bytes + byte);
            const bool straight = cusim::quirk_now() == CUSIM_STRAIGHT_COPIES;
            char *part = cusim::dynamic_shared() + (straight ? at_byte : sim_swizzled(at_byte));
            sim_copy_part(part, from + first, inside && first >= 0 ? left : 0);
        }
    }
}

inline sim_barrier *sim_published(mbarrier *b)
{
    for (const void *hidden : sim_unpublished_now().barriers)
        if (hidden == b)
            cusim::broken("a copy's barrier was not published");
    return sim_barrier_of(b);
}

inline void copy_box(void *shared, const CUtensorMap *map, mbarrier *b, int c0, int c1, int c2, int c3)
{
    const unsigned to = shared_address(shared);
    if (map->magic != CUSIM_TENSOR_MAGIC || map->rank != 4 || map->swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        map->box[0] != 64)
        cusim::broken("a tensor map of four dimensions and rows of 128 bytes is meant");
    if (to % 1024 != 0)
        cusim::broken("a box is copied to a shared memory address that is not a multiple of 1024");
    sim_barrier *s = sim_published(b);
    const CUtensorMap kept = *map; /* a kernel's argument is on the thread's stack here */
    cusim::start_async([=] {
        sim_copy_box(to, kept, { c0, c1, c2, c3 });
        s->bytes -= static_cast<int32_t>(kept.box[0] * kept.box[1] * kept.box[2] * kept.box[3] * 2);
        (void)sim_arrived(s);
    });
}

inline void copy_bytes(void *shared, const void *global, unsigned bytes, mbarrier *b)
{
    const unsigned to = shared_address(shared);
    const char *const from = static_cast<const char *>(global);
    if (to % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0)
        cusim::broken("a copy of bytes has an address or a size that is not a multiple of 16");
    sim_barrier *s = sim_published(b);
    cusim::start_async([=] {
        for (unsigned i = 0; i < bytes; i += 16)
            sim_copy_part(cusim::dynamic_shared() + to + i, from + i, 16);
        s->bytes -= static_cast<int32_t>(bytes);
        (void)sim_arrived(s);
    });
}

inline void copies_fence() {}

/* ---- sm_90a: products ---- */

inline shared_matrix matrix_of(const void *first, int leading, int stride)
{
    return make_matrix(shared_address(first), leading, stride);
}

CUSIM_OWN inline sim_warp &sim_warp_now()
{
    static thread_local sim_warp warps[cusim::WARPS_MAX];
    sim_warp &mine = warps[cusim::current->now->warp];
    if (mine.block != cusim::current->number)
        mine = { cusim::current->number, {}, {}, {}, false };
    return mine;
}

inline void wgmma_fence()
{
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, nullptr,
                       [](cusim::warp &, unsigned) CUSIM_OWN { sim_warp_now().fenced = true; });
}

/* Element (row, col) of a matrix in shared memory. */
CUSIM_OWN inline float sim_element(uint64_t matrix, int row, int col)
{
    const unsigned first = static_cast<unsigned>(matrix & 0x3fff) << 4;
    const unsigned leading = static_cast<unsigned>(matrix >> 16 & 0x3fff) << 4;
    const unsigned stride = static_cast<unsigned>(matrix >> 32 & 0x3fff) << 4;
    const unsigned at = first + static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8) * 128 +
                        static_cast<unsigned>(col / 64) * leading + static_cast<unsigned>(col % 64) * 2;
    uint16_t bits;
    memcpy(&bits, cusim::dynamic_shared() + sim_swizzled(at), sizeof bits);
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/* Once. */
CUSIM_OWN inline void sim_multiply(sim_wgmma &p)
{
    if (p.done)
        return;
    p.done = true;
    sim_result &to = *p.result;
    const int columns = to.floats * 2;
    float left[16][16], right[16][256], sum[16][256];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < columns; n++)
            right[k][n] = p.trans ? sim_element(p.b, k, n) : sim_element(p.b, n, k);
    for (int i = 0; p.left != 0 && i < 16; i++)
        for (int k = 0; k < 16; k++)
            left[i][k] =
                p.left_trans ? sim_element(p.left, k, to.first_row + i) : sim_element(p.left, to.first_row + i, k);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; p.left == 0 && e < 8; e++) /* as in mma_bf16 */
            left[g + 8 * (e / 2 & 1)][2 * t + 8 * (e / 4) + (e & 1)] = sim_half(p.a[lane][e / 2], e & 1);
        for (int e = 0; e < to.floats; e++)
            sum[g + 8 * (e / 2 & 1)][e / 4 * 8 + 2 * t + (e & 1)] = p.adds ? to.sum[lane][e] : 0.0f;
    }
    const int turn = cusim::quirk_now() == CUSIM_OTHER_ORDER ? 15 : 0;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < columns; j += 8) /* as the compiler has vectors for */
                for (int e = j; e < j + 8; e++)
                    sum[i][e] += left[i][k ^ turn] * right[k ^ turn][e];
    for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < to.floats; e++)
            to.sum[lane][e] = sum[lane / 4 + 8 * (e / 2 & 1)][e / 4 * 8 + 2 * (lane % 4) + (e & 1)];
}

/* Pending products of the warp run at once, or as late as at its wait, after older ones, depending on the seed. No
 * thread sees the result before the wait. */
inline void wgmma_commit()
{
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, nullptr, [](cusim::warp &, unsigned) CUSIM_OWN {
        sim_warp &mine = sim_warp_now();
        mine.groups.push_back(std::move(mine.open));
        mine.open.clear();
        if (!cusim::coin())
            return;
        for (std::vector<sim_wgmma> &group : mine.groups)
            for (sim_wgmma &p : group)
                sim_multiply(p);
    });
}

template <int GROUPS> inline void sim_wait()
{
    if (cusim::current->now->lane == 0)
        cusim::step_aside();
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, nullptr, [](cusim::warp &, unsigned) CUSIM_OWN {
        sim_warp &mine = sim_warp_now();
        mine.fenced = false;
        for (; mine.groups.size() > GROUPS; mine.groups.pop_front())
            for (sim_wgmma &p : mine.groups.front()) {
                sim_multiply(p);
                if (--p.result->products > 0)
                    continue;
                for (int lane = 0; lane < 32; lane++)
                    memcpy(p.result->d[lane], p.result->sum[lane],
                           static_cast<size_t>(p.result->floats) * sizeof(float));
                mine.results.erase(p.result);
            }
    });
}

template <int GROUPS> inline void wgmma_wait(float (&)[8][4]) { sim_wait<GROUPS>(); }
template <int GROUPS> inline void wgmma_wait(float (&)[16][4]) { sim_wait<GROUPS>(); }
template <int GROUPS> inline void wgmma_wait(float (&)[32][4]) { sim_wait<GROUPS>(); }
template <int GROUPS> inline void wgmma_wait_operands() { sim_wait<GROUPS>(); }

/* The result that these registers are to have: of products that are under way, or a new one. */
CUSIM_OWN inline std::list<sim_result>::iterator sim_result_of(sim_warp &mine, float *const (&d)[32], int floats)
{
    for (auto r = mine.results.begin(); r != mine.results.end(); ++r)
        if (r->d[0] == d[0])
            return r;
    const unsigned poison = 0x7fc0dead;
    mine.results.emplace_back();
    sim_result &fresh = mine.results.back();
    fresh.products = 0;
    fresh.floats = floats;
    fresh.first_row = static_cast<int>(cusim::current->now->warp % 4) * 16;
    for (int lane = 0; lane < 32; lane++) {
        fresh.d[lane] = d[lane];
        memcpy(fresh.sum[lane], d[lane], static_cast<size_t>(floats) * sizeof(float));
        for (int e = 0; e < floats; e++)
            memcpy(d[lane] + e, &poison, sizeof poison);
    }
    return std::prev(mine.results.end());
}

struct sim_operands {
    float *d;
    int floats;
    const unsigned *a;
    uint64_t left, b;
    bool left_trans, trans, adds;
};

inline void sim_start(const sim_operands &given)
{
    sim_operands mine_is = given;
    for (const uint64_t matrix : { given.left, given.b })
        if (matrix != 0 && (matrix >> 62 != 1 || (matrix >> 49 & 7) != 0))
            cusim::broken("a matrix in shared memory whose rows are 128 bytes that are swapped around is meant");
    cusim::synchronize(CUSIM_SITE, 0xffffffffu, &mine_is, [](cusim::warp &w, unsigned) CUSIM_OWN {
        sim_warp &mine = sim_warp_now();
        sim_wgmma p = {};
        float *d[32];
        const sim_operands first = *static_cast<sim_operands *>(w.given[0]);
        if (!mine.fenced)
            cusim::broken("a product of a warpgroup without a fence before it");
        for (int lane = 0; lane < 32; lane++) {
            d[lane] = static_cast<sim_operands *>(w.given[lane])->d;
            p.a[lane] = static_cast<sim_operands *>(w.given[lane])->a;
        }
        p.left = first.left, p.b = first.b;
        p.left_trans = first.left_trans, p.trans = first.trans, p.adds = first.adds;
        p.result = sim_result_of(mine, d, first.floats);
        p.result->products++;
        mine.open.push_back(p);
    });
}

template <bool TRANS> inline void wgmma(float (&d)[8][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    sim_start({ d[0], 32, a, 0, b.bits, false, TRANS, adds });
}

template <bool TRANS> inline void wgmma(float (&d)[16][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    sim_start({ d[0], 64, a, 0, b.bits, false, TRANS, adds });
}

inline void wgmma_tiles(float (&d)[8][4], shared_matrix a, shared_matrix b)
{
    sim_start({ d[0], 32, nullptr, a.bits, b.bits, false, false, true });
}

inline void wgmma_tiles_first(float (&d)[8][4], shared_matrix a, shared_matrix b)
{
    sim_start({ d[0], 32, nullptr, a.bits, b.bits, false, false, false });
}

template <bool A_TRANS, bool B_TRANS> inline void wgmma_wide(float (&d)[32][4], shared_matrix a, shared_matrix b)
{
    sim_start({ d[0], 128, nullptr, a.bits, b.bits, A_TRANS, B_TRANS, true });
}

template <int COUNT> inline void registers_give() {}
template <int COUNT> inline void registers_take() {}

} // namespace

#endif

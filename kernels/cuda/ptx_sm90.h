/* ptx_sm90.h - the part of ptx.h that only sm_90a has: copies of whole tiles by the tensor memory accelerator, barriers
 * in shared memory that count bytes, and products of a warpgroup that run beside it.
 *
 * A product is D[64,N] += A[64,16] B[16,N] of a warpgroup's four warps; of a warp it is what ptx.h's products of 16 x 8
 * are: rows 16 w .. 16 w + 15, A in the same registers, D in those of N / 8 of them side by side. B lies in shared
 * memory in rows of 128 bytes whose 16-byte parts are swapped around: part p of the row at byte address x is at
 * p ^ (x / 128 % 8). Copies put it there so, and a shared_matrix says where the rest of it begins.
 *
 * Nothing here is done when it is asked for. The simulator's bodies let copies land at once or when everybody waits,
 * run products when they are waited for, and leave NaN where a result is to be. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PTX_SM90_H
#define DSC_KERNELS_CUDA_PTX_SM90_H

#include <cuda.h>

#include "kernels/cuda/ptx.h"

#ifndef __CUDACC__
#include <list>
#endif

namespace {

/* In shared memory, 8-byte aligned. A phase is over when all arrivals and all announced bytes have come; phases are
 * numbered from 0. */
struct mbarrier { uint64_t bits; };

/* A matrix of bf16 in shared memory, in the layout that the products read. */
struct shared_matrix { uint64_t bits; };

/* Further on in it: `bytes` is a multiple of 16. */
__device__ __forceinline__ shared_matrix matrix_at(shared_matrix m, int bytes)
{
    return { m.bits + static_cast<uint64_t>(bytes >> 4) };
}

/* The fields of a descriptor; `at`: shared memory's own address. TRANS = false, rows are N and columns K: `stride`
 * bytes from eight rows to the next eight. TRANS = true, rows are K and columns N: the same, and `leading` bytes from
 * 64 columns to the next 64. */
__device__ __forceinline__ shared_matrix make_matrix(unsigned at, int leading, int stride)
{
    return { static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
             static_cast<uint64_t>(stride >> 4) << 32 | UINT64_C(1) << 62 };
}

#ifdef __CUDACC__

__device__ __forceinline__ unsigned shared_address(const void *p)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/* ---- barriers ---- */

/* Before its first phase; by one thread, and mbarrier_publish and a __syncthreads after all of them. */
__device__ __forceinline__ void mbarrier_init(mbarrier *b, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(mbarrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(b)) : "memory");
}

/* Arrives, and announces bytes of copies. */
__device__ __forceinline__ void mbarrier_expect(mbarrier *b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

/* Until a phase of this parity is over: 0 for the first. */
__device__ __forceinline__ void mbarrier_wait(mbarrier *b, unsigned parity)
{
    unsigned over = 0;
    while (over == 0)
        asm volatile("{\n.reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n}\n"
                     : "=r"(over)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
}

/* ---- copies ---- */

/* The map's box from element (c0, c1, c2, c3) on, c0 innermost, to shared memory that is a multiple of 1024; what lies
 * outside of the tensor is 0. The barrier hears of each byte of the box. By one thread. */
__device__ __forceinline__ void copy_box(void *shared, const CUtensorMap *map, mbarrier *b, int c0, int c1, int c2,
                                         int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(b)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* ---- products ---- */

__device__ __forceinline__ shared_matrix matrix_of(const void *first, int leading, int stride)
{
    return make_matrix(shared_address(first), leading, stride);
}

/* Before the first product, and again when somebody else has written a register of its operands. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/* What was asked for since the last commit is a group. */
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

#define DSC_PTX_FOUR(x) "+f"((x)[0]), "+f"((x)[1]), "+f"((x)[2]), "+f"((x)[3])

/* Until at most the GROUPS newest groups are under way; d, a result of the others, can be read then. */
template <int GROUPS> __device__ __forceinline__ void wgmma_wait(float (&d)[8][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]),
                   DSC_PTX_FOUR(d[4]), DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7])
                 : "n"(GROUPS)
                 : "memory");
}

template <int GROUPS> __device__ __forceinline__ void wgmma_wait(float (&d)[16][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]),
                   DSC_PTX_FOUR(d[4]), DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7]),
                   DSC_PTX_FOUR(d[8]), DSC_PTX_FOUR(d[9]), DSC_PTX_FOUR(d[10]), DSC_PTX_FOUR(d[11]),
                   DSC_PTX_FOUR(d[12]), DSC_PTX_FOUR(d[13]), DSC_PTX_FOUR(d[14]), DSC_PTX_FOUR(d[15])
                 : "n"(GROUPS)
                 : "memory");
}

/* D = A B, or D += A B with `adds`. Neither a nor d may be touched before the wait. */
template <bool TRANS>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, adds, 1, 1, %38;\n}\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]),
                   DSC_PTX_FOUR(d[4]), DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)), "n"(TRANS));
}

template <bool TRANS>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
                 "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, adds, 1, 1, %70;\n}\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]),
                   DSC_PTX_FOUR(d[4]), DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7]),
                   DSC_PTX_FOUR(d[8]), DSC_PTX_FOUR(d[9]), DSC_PTX_FOUR(d[10]), DSC_PTX_FOUR(d[11]),
                   DSC_PTX_FOUR(d[12]), DSC_PTX_FOUR(d[13]), DSC_PTX_FOUR(d[14]), DSC_PTX_FOUR(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(adds)), "n"(TRANS));
}

#undef DSC_PTX_FOUR

/* ---- registers: all warps of a warpgroup ---- */

template <int COUNT> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

#else /* the simulator */

/* ---- barriers ---- */

/* The eight bytes of a barrier. Shared memory that nobody wrote has all bits set. */
struct sim_barrier {
    uint16_t arrivals, missing;
    int32_t bytes : 31; /* announced and not yet come */
    uint32_t parity : 1; /* of the phase that is under way */
};
static_assert(sizeof(sim_barrier) == sizeof(mbarrier), "its place");

/* What a warp has asked for; of one block. */
struct sim_result { /* D of one or more products in a row */
    float *d[32];
    int floats;
    float sum[32][64]; /* of each lane */
    int products;      /* not done */
};
struct sim_wgmma {
    std::list<sim_result>::iterator result;
    const unsigned *a[32];
    uint64_t b;
    bool trans, adds;
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

inline sim_barrier *sim_barrier_of(mbarrier *b)
{
    sim_barrier *s = reinterpret_cast<sim_barrier *>(b);
    if (s->arrivals == 0 || s->arrivals == 0xffff)
        cusim::broken("a barrier in shared memory that nobody has initialised");
    return s;
}

inline void sim_arrived(sim_barrier *s)
{
    if (s->missing != 0 || s->bytes != 0)
        return;
    s->parity ^= 1;
    s->missing = s->arrivals;
}

inline void mbarrier_init(mbarrier *b, unsigned arrivals)
{
    const sim_barrier s = { static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0 };
    memcpy(b, &s, sizeof s);
    sim_unpublished_now().barriers.push_back(b);
}

inline void mbarrier_publish() { sim_unpublished_now().barriers.clear(); }

inline void mbarrier_expect(mbarrier *b, unsigned bytes)
{
    sim_barrier *s = sim_barrier_of(b);
    if (s->missing == 0)
        cusim::broken("more threads arrive at a barrier in shared memory than it was initialised for");
    s->bytes += static_cast<int32_t>(bytes);
    s->missing--;
    sim_arrived(s);
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

/* ---- copies ---- */

inline unsigned shared_address(const void *p)
{
    return static_cast<unsigned>(static_cast<const char *>(p) - cusim::dynamic_shared());
}

/* Where the byte at `at` of what is not swapped around is. */
inline unsigned sim_swizzled(unsigned at) { return at ^ (at >> 7 & 7) << 4; }

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

inline void copy_box(void *shared, const CUtensorMap *map, mbarrier *b, int c0, int c1, int c2, int c3)
{
    const unsigned to = shared_address(shared);
    if (map->magic != CUSIM_TENSOR_MAGIC || map->rank != 4 || map->swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        map->box[0] != 64)
        cusim::broken("a tensor map of four dimensions and rows of 128 bytes is meant");
    if (to % 1024 != 0)
        cusim::broken("a box is copied to shared memory that is no multiple of 1024");
    for (const void *hidden : sim_unpublished_now().barriers)
        if (hidden == b)
            cusim::broken("a copy's barrier was not published");
    sim_barrier *s = sim_barrier_of(b);
    const CUtensorMap kept = *map; /* a kernel's argument is on the thread's stack here */
    cusim::start_async([=] {
        sim_copy_box(to, kept, { c0, c1, c2, c3 });
        s->bytes -= static_cast<int32_t>(kept.box[0] * kept.box[1] * kept.box[2] * kept.box[3] * 2);
        sim_arrived(s);
    });
}

/* ---- products ---- */

inline shared_matrix matrix_of(const void *first, int leading, int stride)
{
    return make_matrix(shared_address(first), leading, stride);
}

inline sim_warp &sim_warp_now()
{
    static thread_local sim_warp warps[cusim::WARPS_MAX];
    sim_warp &mine = warps[cusim::current->now->warp];
    if (mine.block != cusim::current->number)
        mine = { cusim::current->number, {}, {}, {}, false };
    return mine;
}

inline void wgmma_fence()
{
    cusim::meet(CUSIM_SITE, 0xffffffffu, nullptr, [](cusim::warp &, unsigned) { sim_warp_now().fenced = true; });
}

inline void wgmma_commit()
{
    cusim::meet(CUSIM_SITE, 0xffffffffu, nullptr, [](cusim::warp &, unsigned) {
        sim_warp &mine = sim_warp_now();
        mine.groups.push_back(std::move(mine.open));
        mine.open.clear();
    });
}

/* Element (k, n) of the right operand. */
inline float sim_right(const sim_wgmma &p, int k, int n)
{
    const unsigned first = static_cast<unsigned>(p.b & 0x3fff) << 4;
    const unsigned leading = static_cast<unsigned>(p.b >> 16 & 0x3fff) << 4;
    const unsigned stride = static_cast<unsigned>(p.b >> 32 & 0x3fff) << 4;
    const int row = p.trans ? k : n, col = p.trans ? n : k;
    const unsigned at = first + static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8) * 128 +
                        static_cast<unsigned>(col / 64) * leading + static_cast<unsigned>(col % 64) * 2;
    uint16_t bits;
    memcpy(&bits, cusim::dynamic_shared() + sim_swizzled(at), sizeof bits);
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

inline void sim_multiply(const sim_wgmma &p)
{
    sim_result &to = *p.result;
    const int columns = to.floats * 2;
    float left[16][16], right[16][128], sum[16][128];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < columns; n++)
            right[k][n] = sim_right(p, k, n);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 8; e++) /* as in mma_bf16 */
            left[g + 8 * (e / 2 & 1)][2 * t + 8 * (e / 4) + (e & 1)] = sim_half(p.a[lane][e / 2], e & 1);
        for (int e = 0; e < to.floats; e++)
            sum[g + 8 * (e / 2 & 1)][e / 4 * 8 + 2 * t + (e & 1)] = p.adds ? to.sum[lane][e] : 0.0f;
    }
    const int turn = cusim::quirk_now() == CUSIM_OTHER_ORDER ? 15 : 0;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < columns; j++)
                sum[i][j] += left[i][k ^ turn] * right[k ^ turn][j];
    for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < to.floats; e++)
            to.sum[lane][e] = sum[lane / 4 + 8 * (e / 2 & 1)][e / 4 * 8 + 2 * (lane % 4) + (e & 1)];
}

template <int GROUPS> inline void sim_wait()
{
    cusim::meet(CUSIM_SITE, 0xffffffffu, nullptr, [](cusim::warp &, unsigned) {
        sim_warp &mine = sim_warp_now();
        mine.fenced = false;
        for (; mine.groups.size() > GROUPS; mine.groups.pop_front())
            for (const sim_wgmma &p : mine.groups.front()) {
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

/* The result that these registers are to have: of products that are under way, or a new one. */
inline std::list<sim_result>::iterator sim_result_of(sim_warp &mine, float *const (&d)[32], int floats)
{
    for (auto r = mine.results.begin(); r != mine.results.end(); ++r)
        if (r->d[0] == d[0])
            return r;
    const unsigned poison = 0x7fc0dead;
    sim_result fresh = {};
    fresh.floats = floats;
    for (int lane = 0; lane < 32; lane++) {
        fresh.d[lane] = d[lane];
        memcpy(fresh.sum[lane], d[lane], static_cast<size_t>(floats) * sizeof(float));
        for (int e = 0; e < floats; e++)
            memcpy(d[lane] + e, &poison, sizeof poison);
    }
    return mine.results.insert(mine.results.end(), fresh);
}

struct sim_operands { float *d; int floats; const unsigned *a; uint64_t b; bool trans, adds; };

inline void sim_start(const sim_operands &given)
{
    sim_operands mine_is = given;
    if (given.b >> 62 != 1 || (given.b >> 49 & 7) != 0)
        cusim::broken("a matrix in shared memory whose rows are 128 bytes that are swapped around is meant");
    cusim::meet(CUSIM_SITE, 0xffffffffu, &mine_is, [](cusim::warp &w, unsigned) {
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
        p.b = first.b, p.trans = first.trans, p.adds = first.adds;
        p.result = sim_result_of(mine, d, first.floats);
        p.result->products++;
        mine.open.push_back(p);
    });
}

template <bool TRANS> inline void wgmma(float (&d)[8][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    sim_start({ d[0], 32, a, b.bits, TRANS, adds });
}

template <bool TRANS> inline void wgmma(float (&d)[16][4], const unsigned (&a)[4], shared_matrix b, bool adds)
{
    sim_start({ d[0], 64, a, b.bits, TRANS, adds });
}

template <int COUNT> inline void registers_give() {}
template <int COUNT> inline void registers_take() {}

#endif

} // namespace

#endif

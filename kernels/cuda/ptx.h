/* ptx.h - inline PTX, which no other file has: asynchronous copies into shared memory, tensor core products and
 * conversions. sm_90a alone has copies of whole tiles by the tensor memory accelerator, barriers in shared memory that
 * count bytes, and asynchronous products of a warpgroup. Each wrapper has a body for the CPU that follows the
 * instruction's documentation, for the simulator, in ptx_sim.h.
 *
 * A product of one warp is D[16,8] += A[16,16] B[16,8], bf16 in, fp32 sums. Lane 4 g + t holds:
 *   A: a[0] = A[g][2t, 2t+1], a[1] = A[g+8][2t, 2t+1]; a[2] = A[g][2t+8, 2t+9], a[3] = A[g+8][2t+8, 2t+9].
 *   B: b[0] = B[2t, 2t+1][g], b[1] = B[2t+8, 2t+9][g].     D: d[0, 1] = D[g][2t, 2t+1], d[2, 3] = D[g+8][2t, 2t+1].
 *
 * A product of a warpgroup's four warps is D[64,N] += A[64,16] B[16,N]. For warp w it equals the products of 16 x 8.
 * It has rows 16 w .. 16 w + 15, A in the same registers, D in those of N / 8 of them side by side. B lies in shared
 * memory in rows of 128 bytes whose 16-byte parts are swizzled: part p of the row at byte address x is at
 * p ^ (x / 128 % 8). Copies write this layout, and a shared_matrix gives the start of the rest of it. All of these
 * instructions are asynchronous.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PTX_H
#define DSC_KERNELS_CUDA_PTX_H

#include <cuda.h>

#include "kernels/cuda/port.h"

namespace {

/* ---- sm_90a: barriers and matrices in shared memory ---- */

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

/* x as a number of fp8, for cards without the instruction: as kernels/cpu/fp8_range.h rounds. */
template <bool E4M3> __device__ __forceinline__ unsigned fp8_by_integers(float x)
{
    const int mantissa = E4M3 ? 3 : 2, low = E4M3 ? -6 : -14, cut = 23 - mantissa;
    const unsigned largest = E4M3 ? 0x43e00000u : 0x47600000u, most = E4M3 ? 0x7eu : 0x7bu;
    const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const unsigned anchor = static_cast<unsigned>(127 + 23 - mantissa + low) << 23;
    const unsigned small = __float_as_uint(__uint_as_float(size) + __uint_as_float(anchor)) - anchor;
    const unsigned normal =
        ((size + (1u << (cut - 1)) - 1 + (size >> cut & 1u)) >> cut) - (static_cast<unsigned>(126 + low) << mantissa);
    unsigned q = size < static_cast<unsigned>(127 + low) << 23 ? small : normal;
    q = size >= largest ? most : q;
    return size > 0x7f800000u ? 0x7fu : q | sign;
}

#ifdef __CUDACC__

__device__ __forceinline__ unsigned shared_address(const void *p)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/* 16 bytes from global to shared memory, zeros when not `valid`; both addresses are multiples of 16. Done by the wait.
 */
__device__ __forceinline__ void cp_async16(void *shared, const void *global, bool valid)
{
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
}

/* Copies since the last commit are a group. */
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/* Until at most the N newest groups of this thread are under way. Other threads' copies: after a barrier. */
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Four 8x8 matrices: lane l gives the address of row l % 8 of matrix l / 8. r[i] = elements 2t, 2t+1 of row g of
 * matrix i. */
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Transposed: r[i] = element g of rows 2t and 2t+1 of matrix i. */
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The transpose of an 8x8 matrix: lane l has elements 2t, 2t+1 of row g. */
__device__ __forceinline__ unsigned transpose_8x8(unsigned x)
{
    unsigned r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(x));
    return r;
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two numbers as bf16, nearest even; `low` in the lower half. */
__device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Two numbers as fp8, nearest even, at most the largest; NaN is 0x7f. `low` in the lower byte. */
template <bool E4M3> __device__ __forceinline__ unsigned pack_fp8(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short r;
    if (E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;\n" : "=h"(r) : "f"(high), "f"(low));
    return r;
#else
    return fp8_by_integers<E4M3>(low) | fp8_by_integers<E4M3>(high) << 8;
#endif
}

/* Byte i is the one of `low` (0 to 3) or `high` (4 to 7) that hexadecimal digit i of `which` names. */
__device__ __forceinline__ unsigned pick_bytes(unsigned low, unsigned high, unsigned which)
{
    return __byte_perm(low, high, which);
}

/* The larger one of two pairs of bf16, each half alone; of a number and NaN the number. */
__device__ __forceinline__ unsigned max_bf16x2(unsigned a, unsigned b)
{
    unsigned r;
    asm("max.bf16x2 %0, %1, %2;\n" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* 2^x within 2 ulp; denormal results are 0, -Inf gives 0. */
__device__ __forceinline__ float fast_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

/* 1 / x within 1 ulp; denormal results are 0, of Inf too. */
__device__ __forceinline__ float fast_reciprocal(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

/* fp16 of a number (not NaN): nearest even, denormals kept. */
__device__ __forceinline__ uint16_t f16_bits_from_f32(float x)
{
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float f32_from_f16_bits(uint16_t h)
{
    float r;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(r) : "h"(h));
    return r;
}

/* ---- sm_90a: barriers ---- */

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

/* Whether the phase is over, after a wait of the processor's choice. */
__device__ __forceinline__ bool mbarrier_try(mbarrier *b, unsigned parity)
{
    unsigned over;
    asm volatile("{\n.reg .pred over;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n}\n"
                 : "=r"(over)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return over != 0;
}

/* Nanoseconds of the GPU's clock, in units of 2^20. */
__device__ __forceinline__ unsigned long_clock()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(ns));
    return static_cast<unsigned>(ns >> 20);
}

/* Units of long_clock (8.6 s): a kernel takes milliseconds, and a thousand times as long under a checker. */
enum { MBARRIER_WAIT_MOST = 1 << 13, MBARRIER_TRIES_A_LOOK = 1 << 10 };

/* Until a phase of this parity is over: 0 for the first. A wait that would never end is the kernel's failure instead of
 * its user's hang. The clock is far away, so that few tries look at it. */
__device__ __forceinline__ void mbarrier_wait(mbarrier *b, unsigned parity)
{
    unsigned start = 0, tries = 0;
    while (!mbarrier_try(b, parity)) {
        if (++tries % MBARRIER_TRIES_A_LOOK != 0)
            continue;
        if (tries == MBARRIER_TRIES_A_LOOK)
            start = long_clock();
        else if (long_clock() - start > MBARRIER_WAIT_MOST)
            __trap();
    }
}

/* ---- sm_90a: copies ---- */

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

/* `bytes` in a row, a multiple of 16 as both addresses are. The barrier hears of each. By one thread. */
__device__ __forceinline__ void copy_bytes(void *shared, const void *global, unsigned bytes, mbarrier *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

/* Orders this thread's own writes to shared memory before what products and copies do there later. */
__device__ __forceinline__ void copies_fence() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/* ---- sm_90a: products ---- */

__device__ __forceinline__ shared_matrix matrix_of(const void *first, int leading, int stride)
{
    return make_matrix(shared_address(first), leading, stride);
}

/* Before the first product, and again when somebody else has written a register of its operands. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/* Products since the last commit are a group. */
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

template <int GROUPS> __device__ __forceinline__ void wgmma_wait(float (&d)[32][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %128;\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]), DSC_PTX_FOUR(d[4]),
                   DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7]), DSC_PTX_FOUR(d[8]), DSC_PTX_FOUR(d[9]),
                   DSC_PTX_FOUR(d[10]), DSC_PTX_FOUR(d[11]), DSC_PTX_FOUR(d[12]), DSC_PTX_FOUR(d[13]),
                   DSC_PTX_FOUR(d[14]), DSC_PTX_FOUR(d[15]), DSC_PTX_FOUR(d[16]), DSC_PTX_FOUR(d[17]),
                   DSC_PTX_FOUR(d[18]), DSC_PTX_FOUR(d[19]), DSC_PTX_FOUR(d[20]), DSC_PTX_FOUR(d[21]),
                   DSC_PTX_FOUR(d[22]), DSC_PTX_FOUR(d[23]), DSC_PTX_FOUR(d[24]), DSC_PTX_FOUR(d[25]),
                   DSC_PTX_FOUR(d[26]), DSC_PTX_FOUR(d[27]), DSC_PTX_FOUR(d[28]), DSC_PTX_FOUR(d[29]),
                   DSC_PTX_FOUR(d[30]), DSC_PTX_FOUR(d[31])
                 : "n"(GROUPS)
                 : "memory");
}

/* Variant for the operands in shared memory alone: those of all but the GROUPS newest groups have been read. */
template <int GROUPS> __device__ __forceinline__ void wgmma_wait_operands()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(GROUPS) : "memory");
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

/* Variant with A in shared memory too: all 64 rows of the warpgroup, in the layout of a B whose rows are N. */
__device__ __forceinline__ void wgmma_tiles(float (&d)[8][4], shared_matrix a, shared_matrix b)
{
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32, %33, adds, 1, 1, 0, 0;\n}\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]), DSC_PTX_FOUR(d[4]),
                   DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7])
                 : "l"(a.bits), "l"(b.bits));
}

/* D += A B, with 256 columns and both operands in shared memory. A_TRANS: rows of A's matrix are K and columns M, as
 * B_TRANS says of B. */
template <bool A_TRANS, bool B_TRANS>
__device__ __forceinline__ void wgmma_wide(float (&d)[32][4], shared_matrix a, shared_matrix b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
                 "%128, %129, 1, 1, 1, %130, %131;\n"
                 : DSC_PTX_FOUR(d[0]), DSC_PTX_FOUR(d[1]), DSC_PTX_FOUR(d[2]), DSC_PTX_FOUR(d[3]), DSC_PTX_FOUR(d[4]),
                   DSC_PTX_FOUR(d[5]), DSC_PTX_FOUR(d[6]), DSC_PTX_FOUR(d[7]), DSC_PTX_FOUR(d[8]), DSC_PTX_FOUR(d[9]),
                   DSC_PTX_FOUR(d[10]), DSC_PTX_FOUR(d[11]), DSC_PTX_FOUR(d[12]), DSC_PTX_FOUR(d[13]),
                   DSC_PTX_FOUR(d[14]), DSC_PTX_FOUR(d[15]), DSC_PTX_FOUR(d[16]), DSC_PTX_FOUR(d[17]),
                   DSC_PTX_FOUR(d[18]), DSC_PTX_FOUR(d[19]), DSC_PTX_FOUR(d[20]), DSC_PTX_FOUR(d[21]),
                   DSC_PTX_FOUR(d[22]), DSC_PTX_FOUR(d[23]), DSC_PTX_FOUR(d[24]), DSC_PTX_FOUR(d[25]),
                   DSC_PTX_FOUR(d[26]), DSC_PTX_FOUR(d[27]), DSC_PTX_FOUR(d[28]), DSC_PTX_FOUR(d[29]),
                   DSC_PTX_FOUR(d[30]), DSC_PTX_FOUR(d[31])
                 : "l"(a.bits), "l"(b.bits), "n"(A_TRANS), "n"(B_TRANS));
}

#define DSC_PTX_NEW(x) "=f"((x)[0]), "=f"((x)[1]), "=f"((x)[2]), "=f"((x)[3])

/* The first product of a sum, D = A B, where D is a new result. With a D that is read too, the compiler would wait for
 * all products before. */
__device__ __forceinline__ void wgmma_tiles_first(float (&d)[8][4], shared_matrix a, shared_matrix b)
{
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32, %33, adds, 1, 1, 0, 0;\n}\n"
                 : DSC_PTX_NEW(d[0]), DSC_PTX_NEW(d[1]), DSC_PTX_NEW(d[2]), DSC_PTX_NEW(d[3]), DSC_PTX_NEW(d[4]),
                   DSC_PTX_NEW(d[5]), DSC_PTX_NEW(d[6]), DSC_PTX_NEW(d[7])
                 : "l"(a.bits), "l"(b.bits));
}

#undef DSC_PTX_NEW
#undef DSC_PTX_FOUR

/* ---- sm_90a: registers; all warps of a warpgroup ---- */

template <int COUNT> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

#endif

} // namespace

#ifndef __CUDACC__
#include "kernels/cuda/ptx_sim.h"
#endif

#endif

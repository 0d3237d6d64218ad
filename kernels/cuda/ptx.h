/* ptx.h - inline PTX: asynchronous copies into shared memory, tensor core products, and what goes with them; what only
 * sm_90a has is in ptx_sm90.h, and there is none elsewhere. Each wrapper has a body for the CPU that does what the
 * instruction's documentation says, for the simulator.
 *
 * A product of one warp is D[16,8] += A[16,16] B[16,8], bf16 in, fp32 sums. Of lane 4 g + t:
 *   A: a[0] = A[g][2t, 2t+1], a[1] = A[g+8][2t, 2t+1], a[2] = A[g][2t+8, 2t+9], a[3] = A[g+8][2t+8, 2t+9]
 *   B: b[0] = B[2t, 2t+1][g], b[1] = B[2t+8, 2t+9][g]      D: d[0, 1] = D[g][2t, 2t+1], d[2, 3] = D[g+8][2t, 2t+1]
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PTX_H
#define DSC_KERNELS_CUDA_PTX_H

#include "kernels/cuda/port.h"

#ifndef __CUDACC__
#include <deque>
#include <vector>

#include "base/f16.h"
#endif

namespace {

#ifdef __CUDACC__

/* 16 bytes from global to shared memory, zeros when not `valid`; both addresses are multiples of 16. Done by the wait.
 */
__device__ __forceinline__ void cp_async16(void *shared, const void *global, bool valid)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

/* What was copied since the last commit is a group. */
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
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* The same, transposed: r[i] = element g of rows 2t and 2t+1 of matrix i. */
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void *row)
{
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
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

/* 2^x within 2 ulp; denormal results are 0, -Inf gives 0. */
__device__ __forceinline__ float fast_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

/* fp16 of what is no NaN: nearest even, denormals kept. */
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

#else /* the simulator */

struct sim_copy { void *to; const void *from; bool valid; };
struct sim_copies { std::vector<sim_copy> open; std::deque<std::vector<sim_copy>> groups; };

/* Of the calling CUDA thread; one block at a time runs on a host thread. */
inline sim_copies &sim_copies_now()
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
    cusim::meet(CUSIM_SITE, 0xffffffffu, &mine, [](cusim::warp &w, unsigned) {
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

struct sim_product { float *d; const unsigned *a; unsigned b[2]; };

inline float sim_half(unsigned pair, int which)
{
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    sim_product mine = { d, a, { b0, b1 } };
    cusim::meet(CUSIM_SITE, 0xffffffffu, &mine, [](cusim::warp &w, unsigned) {
        float left[16][16], right[16][8], sum[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const sim_product *p = static_cast<sim_product *>(w.given[lane]);
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
                static_cast<sim_product *>(w.given[lane])->d[e] = sum[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + (e & 1)];
    });
}

inline unsigned pack_bf16(float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

inline float fast_exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

inline uint16_t f16_bits_from_f32(float x) { return dsc_f16_from_f32(x); }
inline float f32_from_f16_bits(uint16_t h) { return dsc_f32_from_f16(h); }

#endif

} // namespace

#endif

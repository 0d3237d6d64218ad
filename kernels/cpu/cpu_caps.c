/* cpu_caps.c - capabilities of this CPU. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define AMX_BF16_BIT (1u << 22) /* leaf 7, EDX; compilers do not all know its name */
#define AMX_TILE_BIT (1u << 24) /* likewise */
#define AMX_TILES_LEAF 0x1d

static bool has_amx(uint32_t bit)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & bit) != 0;
}

static bool names_tiles(void)
{
    unsigned palettes, ebx, ecx, edx;
    return __get_cpuid_count(AMX_TILES_LEAF, 0, &palettes, &ebx, &ecx, &edx) != 0 && palettes > 0;
}

bool dsc_cpu_hides_tiles(void) { return has_amx(AMX_TILE_BIT) && !names_tiles(); }
#else
bool dsc_cpu_hides_tiles(void) { return false; }
#endif

uint32_t dsc_cpu_caps(void)
{
    uint32_t caps = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        caps |= DSC_CPU_AVX2;
    if (caps != 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        caps |= DSC_CPU_AVX512;
    if ((caps & DSC_CPU_AVX512) != 0 && __builtin_cpu_supports("avx512bf16"))
        caps |= DSC_CPU_AVX512_BF16;
    if ((caps & DSC_CPU_AVX512_BF16) != 0 && has_amx(AMX_BF16_BIT) && names_tiles())
        caps |= DSC_CPU_AMX_BF16;
#endif
    return caps;
}

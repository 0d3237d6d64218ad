/* driver.cc - entries of the CUDA driver that the backend asks the runtime for: tensor maps. They refuse what the
 * driver's documentation rules out. SPDX-License-Identifier: Apache-2.0 */
#include <cstring>

#include "tests/sim/include/cuda.h"

static_assert(sizeof(CUtensorMap) == 128, "CUDA's size");

namespace {

bool shape_is_fine(cuuint32_t rank, const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box,
                   const cuuint32_t *step)
{
    for (cuuint32_t i = 0; i < rank; i++)
        if (dim[i] == 0 || dim[i] >= UINT64_C(1) << 32 || box[i] == 0 || box[i] > 256 || step[i] == 0 || step[i] > 8)
            return false;
    for (cuuint32_t i = 0; i + 1 < rank; i++)
        if (stride[i] == 0 || stride[i] % 16 != 0 || stride[i] >= UINT64_C(1) << 40 ||
            (i > 0 && stride[i] % stride[i - 1] != 0))
            return false;
    return true;
}

CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base, const cuuint64_t *dim,
                      const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill)
{
    if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank < 1 ||
        rank > CUSIM_TENSOR_RANK_MAX || reinterpret_cast<uintptr_t>(base) % 16 != 0 || interleave != 0 ||
        !shape_is_fine(rank, dim, stride, box, step))
        return CUDA_ERROR_INVALID_VALUE;
    const cuuint32_t row_bytes = box[0] * 2;
    if (row_bytes % 16 != 0 || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && row_bytes > 128))
        return CUDA_ERROR_INVALID_VALUE;
    memset(static_cast<void *>(map), 0, sizeof *map);
    map->magic = CUSIM_TENSOR_MAGIC;
    map->base = static_cast<const char *>(base);
    map->rank = rank;
    map->swizzle = swizzle;
    map->element_bytes = 2;
    for (cuuint32_t i = 0; i < rank; i++)
        map->dim[i] = static_cast<uint32_t>(dim[i]), map->box[i] = box[i];
    for (cuuint32_t i = 0; i + 1 < rank; i++)
        map->stride[i] = stride[i];
    return CUDA_SUCCESS;
}

} // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult *result)
{
    const bool known = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *entry = known ? reinterpret_cast<void *>(encode_tiled) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

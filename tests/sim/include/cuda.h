/* cuda.h - the simulator's: the part of the CUDA driver's interface that the backend uses. Values are CUDA's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_SIM_CUDA_H
#define DSC_SIM_CUDA_H

#include <cuda_runtime.h>

typedef enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 } CUtensorMapDataType;
typedef enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion {
    CU_TENSOR_MAP_L2_PROMOTION_NONE = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;

enum { CUSIM_TENSOR_RANK_MAX = 5 };
/* CUDA's is opaque and of this size. This one is what was asked for. */
typedef struct CUtensorMap {
    alignas(128) uint64_t magic;
    const char *base;
    uint64_t stride[CUSIM_TENSOR_RANK_MAX - 1]; /* bytes */
    uint32_t dim[CUSIM_TENSOR_RANK_MAX], box[CUSIM_TENSOR_RANK_MAX];
    uint32_t rank, swizzle, element_bytes;
} CUtensorMap;
typedef CUresult cuTensorMapEncodeTiled_type(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                             const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box,
                                             const cuuint32_t *step, CUtensorMapInterleave interleave,
                                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                             CUtensorMapFloatOOBfill fill);
/* Declared for its type: the driver is not linked, and gives the entry when it is asked for it. */
extern "C" cuTensorMapEncodeTiled_type cuTensorMapEncodeTiled;
#define CUSIM_TENSOR_MAGIC 0x9a7d3c55e1b0f246u

#endif

/* test_cublaslt.cc - the simulator's cuBLASLt. SPDX-License-Identifier: Apache-2.0 */
#include <cublasLt.h>

#include "tests/sim/simtest.h"

namespace {

/* ---- products ---- */

void product()
{
    cudaStream_t s = new_stream();
    cublasLtHandle_t lt;
    CHECK(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    const int m = 5, n = 7, k = 9;
    std::vector<float> a(m * k), b(k * n), bias(m), want(m * n);
    for (size_t i = 0; i < a.size(); i++)
        a[i] = (float)(i % 5) - 2;
    for (size_t i = 0; i < b.size(); i++)
        b[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < bias.size(); i++)
        bias[i] = (float)i;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float x = bias[(size_t)i];
            for (int q = 0; q < k; q++)
                x += a[(size_t)(i * k + q)] * b[(size_t)(j * k + q)]; /* A transposed, B as it is, columns first */
            want[(size_t)(j * m + i)] = x;
        }
    float *da = new_device<float>(a.size()), *db = new_device<float>(b.size()), *dbias = new_device<float>(bias.size()),
          *dd = new_device<float>(want.size());
    give(da, a, s);
    give(db, b, s);
    give(dbias, bias, s);
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    const int32_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias, 8) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, (uint64_t)k, (uint64_t)m, k) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, (uint64_t)k, (uint64_t)n, k) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, (uint64_t)m, (uint64_t)n, m) == 0);
    const float one = 1, zero = 0;
    CHECK(cublasLtMatmul(lt, desc, &one, da, la, db, lb, &zero, dd, ld, dd, ld, nullptr, nullptr, 0, s) == 0);
    CHECK(fetch(dd, want.size(), s) == want);
    CHECK(cublasLtMatmul(lt, desc, &one, da, lb, db, lb, &zero, dd, ld, dd, ld, nullptr, nullptr, 0, s) ==
          CUBLAS_STATUS_INVALID_VALUE);
}

const test tests[] = {
    { "cublasLtMatmul", product },
};

} // namespace

int main() { return run_tests(tests); }

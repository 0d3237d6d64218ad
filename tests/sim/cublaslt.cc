/* cublaslt.cc - the simulator's cuBLASLt: fp32 sums in order of k, epilogues as the library documents them, every
 * buffer checked against the device's memory. The workspace is filled with NaN, so that its reuse in flight shows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <cublasLt.h>
#include <cuda_bf16.h>

#include "base/f16.h"
#include "tests/sim/runtime.h"

namespace {

using namespace cusim;

/* A call that a test wants to fail does nothing else. */
#define REFUSE(call)                              \
    do {                                          \
        guard held(sim().lock);                   \
        if (is_refused(held, call))               \
            return CUBLAS_STATUS_INTERNAL_ERROR;  \
    } while (0)

/* Views of the opaque structs. */
struct layout { uint32_t type, order; uint64_t rows, cols; int64_t ld; };
struct product {
    int32_t compute, scale, transa, transb, epilogue, bias_type, aux_type;
    int8_t fast, unused[3];
    void *bias, *aux;
    int64_t aux_ld;
    const float *a_scale, *b_scale; /* of fp8 */
    int32_t a_mode, b_mode;         /* cublasLtMatmulMatrixScale_t */
};

layout *view(cublasLtMatrixLayout_t l) { return reinterpret_cast<layout *>(l->data); }
product *view(cublasLtMatmulDesc_t d) { return reinterpret_cast<product *>(d->data); }

bool is_fp8(uint32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
size_t bytes_of_type(uint32_t type) { return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }

/* Scales of an operand of `outer` rows along a sum over k, and the place of one, as the manual lays them. */
uint64_t blocks_of(uint64_t size) { return (size + 127) / 128; }
uint64_t scale_count(int32_t mode, uint64_t outer, uint64_t k)
{
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F       ? blocks_of(k) * outer
           : mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? blocks_of(outer) * ((blocks_of(k) + 3) / 4 * 4)
                                                                 : 1;
}
uint64_t scale_at(int32_t mode, uint64_t outer, uint64_t k, uint64_t i, uint64_t q)
{
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ? q / 128 * outer + i
                                                           : i / 128 * ((blocks_of(k) + 3) / 4 * 4) + q / 128;
}

/* The value of a number of fp8, by its fields. */
float fp8_value(uint8_t q, bool e4m3)
{
    const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, part = q & ((1 << mantissa) - 1);
    const int exponent = (q & 0x7f) >> mantissa;
    if (e4m3 ? (q & 0x7f) == 0x7f : exponent == 31 && part != 0)
        return NAN;
    const float one = std::ldexp(1.0f, mantissa), sign = (q & 0x80) != 0 ? -1.0f : 1.0f;
    if (!e4m3 && exponent == 31)
        return sign * INFINITY;
    return exponent == 0 ? sign * std::ldexp(static_cast<float>(part), 1 - bias - mantissa)
                         : sign * std::ldexp(one + static_cast<float>(part), exponent - bias - mantissa);
}

size_t index_of(const layout &l, uint64_t row, uint64_t col)
{
    return l.order == CUBLASLT_ORDER_COL ? col * static_cast<uint64_t>(l.ld) + row
                                         : row * static_cast<uint64_t>(l.ld) + col;
}

float load(const void *p, uint32_t type, size_t i)
{
    if (type == CUDA_R_32F)
        return static_cast<const float *>(p)[i];
    if (type == CUDA_R_16F)
        return dsc_f32_from_f16(static_cast<const uint16_t *>(p)[i]);
    if (is_fp8(type))
        return fp8_value(static_cast<const uint8_t *>(p)[i], type == CUDA_R_8F_E4M3);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
}

void store(void *p, uint32_t type, size_t i, float v)
{
    if (type == CUDA_R_32F)
        static_cast<float *>(p)[i] = v;
    else if (type == CUDA_R_16F)
        static_cast<uint16_t *>(p)[i] = dsc_f16_from_f32(v);
    else
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(v);
}

const float GELU_A = 0.7978845608028654f, GELU_B = 0.044715f;
float gelu(float x) { return 0.5f * x * (1.0f + std::tanh(GELU_A * (x + GELU_B * x * x * x))); }
float gelu_slope(float x)
{
    const float t = std::tanh(GELU_A * (x + GELU_B * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_A * (1.0f + 3.0f * GELU_B * x * x);
}

void check(device_state &d, const char *what, const void *p, size_t bytes)
{
    if (const char *wrong = memory_complaint(d, p, bytes, false))
        fail("cublasLtMatmul on device %d: %s %p of %zu bytes is %s", d.index, what, p, bytes, wrong);
}

size_t extent(const layout &l)
{
    const uint64_t lines = l.order == CUBLASLT_ORDER_COL ? l.cols : l.rows;
    const uint64_t each = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    return lines == 0 ? 0 : ((lines - 1) * static_cast<uint64_t>(l.ld) + each) * bytes_of_type(l.type);
}

/* Line by line: what lies between the lines may be others'. */
void touch(const layout &l, const void *p, uint32_t type, bool write)
{
    const uint64_t lines = l.order == CUBLASLT_ORDER_COL ? l.cols : l.rows;
    const uint64_t each = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    for (uint64_t i = 0; i < lines; i++)
        track_range(running_now, static_cast<const char *>(p) + i * static_cast<uint64_t>(l.ld) * bytes_of_type(type),
                    each * bytes_of_type(type), write);
}

struct matmul {
    product p;
    layout a, b, c, d;
    float alpha, beta;
    const void *at_a, *at_b, *at_c;
    void *at_d, *workspace;
    size_t workspace_bytes;
    uint64_t parts; /* parts of the sum over k, each added up by itself */
    bool rounds_first; /* to D's type, before anything is added */
    bool sums_are_off; /* by one rounding */
    void run() const;
    void touch_all() const;
    bool has_blocks() const { return is_fp8(a.type) && p.a_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; }
    uint64_t terms() const { return p.transa == CUBLAS_OP_N ? a.cols : a.rows; }
    /* But for the last ones of rows of squares, which nothing writes. */
    uint64_t scale_bytes(bool of_a) const
    {
        return scale_count(of_a ? p.a_mode : p.b_mode, of_a ? d.rows : d.cols, terms()) * sizeof(float);
    }
};

void matmul::touch_all() const
{
    const uint64_t m = d.rows, n = d.cols;
    const uint32_t bias_type = p.bias_type < 0 ? d.type : static_cast<uint32_t>(p.bias_type);
    layout aux_layout = d;
    aux_layout.ld = p.aux_ld;
    touch(a, at_a, a.type, false);
    touch(b, at_b, b.type, false);
    if (is_fp8(a.type)) {
        track_range(running_now, p.a_scale, scale_bytes(true), false);
        track_range(running_now, p.b_scale, scale_bytes(false), false);
    }
    if (beta != 0.0f)
        touch(c, at_c, c.type, false);
    if ((p.epilogue & 4) != 0)
        track_range(running_now, p.bias, m * bytes_of_type(bias_type), false);
    if ((p.epilogue & (16 | 256 | 512)) != 0)
        track_range(running_now, p.bias, ((p.epilogue & 512) != 0 ? n : m) * bytes_of_type(bias_type), true);
    if ((p.epilogue & 128) != 0)
        touch(aux_layout, p.aux, p.aux_type < 0 ? d.type : static_cast<uint32_t>(p.aux_type), (p.epilogue & 32) != 0);
    track_range(running_now, workspace, workspace_bytes, true);
    touch(d, at_d, d.type, true);
}

void matmul::run() const
{
    const uint64_t m = d.rows, n = d.cols, k = p.transa == CUBLAS_OP_N ? a.cols : a.rows;
    touch_all();
    std::vector<float> left(m * k), right(k * n), sum(m * n, 0.0f);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < k; j++)
            left[i * k + j] = load(at_a, a.type, p.transa == CUBLAS_OP_N ? index_of(a, i, j) : index_of(a, j, i));
    for (uint64_t i = 0; i < k; i++)
        for (uint64_t j = 0; j < n; j++)
            right[i * n + j] = load(at_b, b.type, p.transb == CUBLAS_OP_N ? index_of(b, i, j) : index_of(b, j, i));
    if (has_blocks())
        for (uint64_t q = 0; q < k; q++) {
            for (uint64_t i = 0; i < m; i++)
                left[i * k + q] *= p.a_scale[scale_at(p.a_mode, m, k, i, q)];
            for (uint64_t j = 0; j < n; j++)
                right[q * n + j] *= p.b_scale[scale_at(p.b_mode, n, k, j, q)];
        }
    const float factor = is_fp8(a.type) && !has_blocks() ? alpha * *p.a_scale * *p.b_scale : alpha;
    std::vector<float> part(n);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t s = 0; s < parts; s++) {
            std::fill(part.begin(), part.end(), 0.0f);
            for (uint64_t q = k * s / parts; q < k * (s + 1) / parts; q++) {
                const float x = left[i * k + q], *from = &right[q * n];
                for (uint64_t j = 0; j < n; j++)
                    part[j] += x * from[j];
            }
            for (uint64_t j = 0; j < n; j++)
                sum[i * n + j] = s == 0 ? part[j] : sum[i * n + j] + part[j];
        }
    if (workspace_bytes > 0)
        memset(workspace, 0xff, workspace_bytes);
    const bool has_aux = (p.epilogue & 128) != 0, has_gelu = (p.epilogue & 32) != 0, has_slope = (p.epilogue & 64) != 0;
    const uint32_t bias_type = p.bias_type < 0 ? d.type : static_cast<uint32_t>(p.bias_type);
    const uint32_t aux_type = p.aux_type < 0 ? d.type : static_cast<uint32_t>(p.aux_type);
    layout aux_layout = d;
    aux_layout.ld = p.aux_ld / 8 * 8; /* a value that the manual forbids reads other elements */
    /* Some algorithms of the real one round a sum before they add and multiply, and have written it to D by then. */
    const bool early = d.type != CUDA_R_32F && (rounds_first || m % 8 != 0 || d.ld % 8 != 0);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            float x = factor * sum[i * n + j];
            if (early || (has_slope && p.aux == at_d)) {
                uint32_t word;
                store(&word, d.type, 0, x);
                x = load(&word, d.type, 0);
                if (has_slope && p.aux == at_d)
                    store(at_d, d.type, index_of(d, i, j), x);
            }
            if (beta != 0.0f)
                x += beta * load(at_c, c.type, index_of(c, i, j));
            if ((p.epilogue & 4) != 0)
                x += load(p.bias, bias_type, i);
            if (has_gelu) {
                if (has_aux)
                    store(p.aux, aux_type, index_of(aux_layout, i, j), x);
                x = gelu(x);
            } else if (has_slope) {
                x *= gelu_slope(load(p.aux, aux_type, index_of(aux_layout, i, j)));
            }
            sum[i * n + j] = x;
        }
    if ((p.epilogue & 16) != 0)
        for (uint64_t i = 0; i < m; i++) {
            float s = 0;
            for (uint64_t j = 0; j < n; j++)
                s += sum[i * n + j];
            store(p.bias, bias_type, i, s);
        }
    if ((p.epilogue & 256) != 0)
        for (uint64_t i = 0; i < m; i++) {
            float s = 0;
            for (uint64_t q = 0; q < k; q++)
                s += left[i * k + q];
            s = sums_are_off ? std::nextafter(s, INFINITY) : s;
            store(p.bias, bias_type, i, s);
        }
    if ((p.epilogue & 512) != 0)
        for (uint64_t j = 0; j < n; j++) {
            float s = 0;
            for (uint64_t q = 0; q < k; q++)
                s += right[q * n + j];
            s = sums_are_off ? std::nextafter(s, INFINITY) : s;
            store(p.bias, bias_type, j, s);
        }
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++)
            store(at_d, d.type, index_of(d, i, j), sum[i * n + j]);
}

} // namespace

extern "C" {

size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS";
}
const char *cublasLtGetStatusString(cublasStatus_t status) { return status == 0 ? "success" : "a simulated error"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    REFUSE("cublasLtCreate");
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
    things++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete reinterpret_cast<int *>(handle);
    things--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    REFUSE("cublasLtMatmulDescCreate");
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = new cublasLtMatmulDescOpaque_t();
    things++;
    product *p = view(*desc);
    p->compute = compute;
    p->scale = scale;
    p->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p->bias_type = p->aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    things--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    REFUSE("cublasLtMatmulDescSetAttribute");
    product *p = view(desc);
    void *to = nullptr;
    size_t size = 4;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: to = &p->transa; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: to = &p->transb; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: to = &p->epilogue; break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: to = &p->bias_type; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: to = &p->aux_type; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: to = &p->bias, size = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: to = &p->aux, size = 8; break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        to = &p->a_scale, size = 8;
        break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        to = &p->b_scale, size = 8;
        break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        to = &p->a_mode;
        break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        to = &p->b_mode;
        break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        to = &p->fast, size = 1;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: to = &p->aux_ld, size = 8; break;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    REFUSE("cublasLtMatrixLayoutCreate");
    if (type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F && !is_fp8(type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = new cublasLtMatrixLayoutOpaque_t();
    things++;
    *view(*out) = { static_cast<uint32_t>(type), CUBLASLT_ORDER_COL, rows, cols, ld };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    things--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    void *to = nullptr;
    size_t size = 8;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: to = &view(l)->type, size = 4; break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER: to = &view(l)->order, size = 4; break;
    case CUBLASLT_MATRIX_LAYOUT_ROWS: to = &view(l)->rows; break;
    case CUBLASLT_MATRIX_LAYOUT_COLS: to = &view(l)->cols; break;
    case CUBLASLT_MATRIX_LAYOUT_LD: to = &view(l)->ld; break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    REFUSE("cublasLtMatmulPreferenceCreate");
    *preference = new cublasLtMatmulPreferenceOpaque_t();
    things++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    things--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    REFUSE("cublasLtMatmulPreferenceSetAttribute");
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8)
        memcpy(&preference->data[0], value, 8);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == 4)
        memcpy(&preference->data[1], value, 4);
    return CUBLAS_STATUS_SUCCESS;
}

/* As the manual has it: fp8 needs both operands along k, sizes of a multiple of 16, scales and not two E5M2; here it
 * has neither GELU. Sums need an operand that is read along its columns and D's type, GELU's input rows of a multiple
 * of 8 numbers. */
static bool has_fp8_product(const product &p, const layout &a, const layout &b, const layout &d)
{
    if (p.transa == CUBLAS_OP_N || p.transb != CUBLAS_OP_N || p.a_scale == nullptr || p.b_scale == nullptr)
        return false;
    if (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)
        return false;
    const int32_t scalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                  square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    if ((p.a_mode == scalar) != (p.b_mode == scalar) || (p.a_mode == square && p.b_mode == square) ||
        (p.a_mode != scalar && (p.epilogue & ~1) != 0)) /* here it has no bias beside blocks */
        return false;
    if ((a.rows | a.cols | b.cols | static_cast<uint64_t>(a.ld) | static_cast<uint64_t>(b.ld)) % 16 != 0)
        return false;
    return is_fp8(b.type) && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F) && (p.epilogue & ~(4 | 1)) == 0;
}

static bool has_product(const product &p, const layout &a, const layout &b, const layout &d)
{
    if (is_fp8(a.type) || is_fp8(b.type))
        return has_fp8_product(p, a, b, d);
    const bool sums_a = (p.epilogue & 256) != 0, sums_b = (p.epilogue & 512) != 0, gelu_aux = (p.epilogue & 128) != 0;
    if (sim().quirk == CUSIM_FEW_EPILOGUES && (sums_a || sums_b || (gelu_aux && (p.epilogue & 32) != 0)))
        return false;
    if (sim().quirk == CUSIM_NO_WIDE_PRODUCTS && d.rows >= 4096)
        return false;
    if ((sums_a && p.transa != CUBLAS_OP_N) || (sums_b && p.transb == CUBLAS_OP_N))
        return false;
    if ((sums_a || sums_b) && static_cast<uint32_t>(p.bias_type) != d.type)
        return false;
    return !gelu_aux || p.aux_ld % 8 == 0;
}

/* 1 takes no workspace. 2 takes up to 64 KiB of it and has equal bits. 3 adds up halves of k in the workspace. 4 adds
 * them in the output, so it is listed only on request. cusim_set_product_ticks sets their speed. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d_layout, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t results[], int *count)
{
    REFUSE("cublasLtMatmulAlgoGetHeuristic");
    if (wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!has_product(*view(desc), *view(a), *view(b), *view(d_layout)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const size_t most = preference->data[0] < 65536 ? preference->data[0] : 65536;
    const uint32_t scheme[] = { CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_NONE,
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE };
    *count = 0;
    for (uint32_t id = 1; id <= 4 && *count < wanted; id++) {
        if ((scheme[id - 1] & ~preference->data[1]) != 0)
            continue;
        cublasLtMatmulHeuristicResult_t &to = results[(*count)++];
        memset(&to, 0, sizeof to);
        to.algo.data[0] = id;
        to.algo.data[1] = scheme[id - 1];
        to.workspaceSize = id == 1 || id == 4 ? 0 : most;
        to.wavesCount = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    REFUSE("cublasLtMatmulAlgoConfigGetAttribute");
    memset(value, 0, bytes);
    if (attribute == CUBLASLT_ALGO_CONFIG_ID && bytes >= 4)
        memcpy(value, &algo->data[0], 4);
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM && bytes >= 4)
        *static_cast<uint32_t *>(value) = algo->data[0] < 3 ? 1 : 2;
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && bytes >= 4)
        memcpy(value, &algo->data[1], 4);
    if (written != nullptr)
        *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    REFUSE("cublasLtMatmul");
    matmul x = { *view(desc), *view(a_layout), *view(b_layout), *view(c_layout), *view(d_layout),
                 *static_cast<const float *>(alpha), *static_cast<const float *>(beta), a, b, c, d, workspace, 0, 1,
                 false, false };
    const uint64_t id = algo != nullptr ? algo->data[0] : 1;
    const bool ta = x.p.transa != CUBLAS_OP_N, tb = x.p.transb != CUBLAS_OP_N;
    const uint64_t ka = ta ? x.a.rows : x.a.cols, kb = tb ? x.b.cols : x.b.rows;
    if ((ta ? x.a.cols : x.a.rows) != x.d.rows || (tb ? x.b.rows : x.b.cols) != x.d.cols || ka != kb ||
        x.c.rows != x.d.rows || x.c.cols != x.d.cols || (x.a.type != x.b.type && !is_fp8(x.a.type)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (id < 1 || id > 4 || (algo != nullptr && algo->data[2] != 0))
        fail("cublasLtMatmul with an algorithm that this library did not make");
    if (id == 2 || id == 3)
        x.workspace_bytes = workspace_bytes < 65536 ? workspace_bytes : 65536;
    if (id >= 3)
        x.parts = 2;
    x.rounds_first = id == 2 && sim().quirk == CUSIM_EARLY_ROUNDING;
    static std::atomic<uint32_t> times{ 0 };
    x.sums_are_off = sim().quirk == CUSIM_UNSTEADY_SUMS && times++ % 2 == 1;
    if (stream == nullptr)
        fail("cublasLtMatmul on the legacy default stream");
    guard held(sim().lock);
    device_state &device = *stream->device;
    check(device, "A", a, extent(x.a));
    check(device, "B", b, extent(x.b));
    check(device, "D", d, extent(x.d));
    if (is_fp8(x.a.type)) {
        check(device, "A's scale", x.p.a_scale, x.scale_bytes(true));
        check(device, "B's scale", x.p.b_scale, x.scale_bytes(false));
    }
    if (x.beta != 0.0f)
        check(device, "C", c, extent(x.c));
    if (x.workspace_bytes > 0)
        check(device, "the workspace", workspace, x.workspace_bytes);
    operation op;
    op.kind = COMPUTE;
    op.name = "cublasLtMatmul " + std::to_string(x.d.rows) + "x" + std::to_string(x.d.cols) + "x" + std::to_string(ka);
    op.run = [x] { x.run(); };
    op.ticks = sim().product_ticks[id - 1];
    sim().products_taken++;
    enqueue(held, stream, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"

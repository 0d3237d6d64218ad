/* cudnn_calls.cc - see cudnn_calls.h.
 *
 * NVIDIA's frontend is a set of headers that call cuDNN by name. The functions of these names are defined here and
 * forward to the library that was opened, so the plugin loads without it. The functions are found once for the process,
 * because the names are the process's too.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn/cudnn_calls.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <mutex>
#include <nvrtc.h>
#include <stdio.h>
#include <string.h>

#define CUDNN_CALLS(X)                                                                                   \
    X(GetVersion) X(Create) X(Destroy) X(SetStream) X(GetStream) X(GetErrorString) X(GetLastErrorString) \
    X(BackendCreateDescriptor) X(BackendDestroyDescriptor) X(BackendFinalize) X(BackendSetAttribute)     \
    X(BackendGetAttribute) X(BackendExecute)

namespace {

/* cudnnCreate is calls.Create, and so on. */
struct cudnn_calls {
#define X(name) decltype(&cudnn##name) name;
    CUDNN_CALLS(X)
#undef X
};

cudnn_calls calls;
bool is_found;
std::mutex lock;

bool fill(cudnn_calls *to, void *library)
{
    bool whole = true;
#define X(name)                                                             \
    *reinterpret_cast<void **>(&to->name) = dlsym(library, "cudnn" #name);  \
    whole = whole && to->name != NULL;
    CUDNN_CALLS(X)
#undef X
    return whole;
}

/* An open library stays open: it is large. */
void *open_one(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

void *open_library(void)
{
    void *library = open_one("libcudnn.so.9");
    return library != NULL ? library : open_one("/usr/local/cuda/lib64/libcudnn.so.9");
}

/* cuDNN ends the process when a part of it is missing, so its parts are opened before it looks for them: those beside
 * it, as it does. */
bool open_parts(void *library)
{
    static const char *const parts[] = { "graph", "ops", "heuristic", "engines_runtime_compiled",
                                         "engines_precompiled" };
    Dl_info info;
    char name[512];
    bool whole = true;
    void *const call = dlsym(library, "cudnnGetVersion");
    if (call == NULL || dladdr(call, &info) == 0 || info.dli_fname == NULL)
        return false;
    const char *const slash = strrchr(info.dli_fname, '/');
    const int folder = slash != NULL ? static_cast<int>(slash + 1 - info.dli_fname) : 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && whole; i++) {
        snprintf(name, sizeof name, "%.*slibcudnn_%s.so.9", folder, info.dli_fname, parts[i]);
        whole = open_one(name) != NULL;
    }
    return whole;
}

/* The lock is held. */
dsc_status find_library(dsc_error *err)
{
    cudnn_calls found;
    void *library = open_library();
    if (library == NULL || !open_parts(library)) {
        const char *why = dlerror();
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "libcudnn.so.9 does not load (%.200s); install "
                        "cuDNN 9 or set LD_LIBRARY_PATH to its folder", why != NULL ? why : "no reason given");
    }
    if (!fill(&found, library))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "libcudnn.so.9 lacks calls that this build needs");
    const size_t version = found.GetVersion();
    if (version < CUDNN_VERSION || version >= 100000)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN %zu.%zu.%zu is installed and this build "
                        "needs %d.%d.%d or a later 9; update it", version / 10000, version / 100 % 100, version % 100,
                        CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
    calls = found;
    is_found = true;
    return DSC_OK;
}

} // namespace

dsc_status dsc_cudnn_find(dsc_error *err)
{
    std::lock_guard<std::mutex> held(lock);
    return is_found ? DSC_OK : find_library(err);
}

/* ---- cuDNN's names: only called after dsc_cudnn_find ---- */

size_t cudnnGetVersion(void) { return calls.GetVersion(); }
const char *cudnnGetErrorString(cudnnStatus_t status) { return calls.GetErrorString(status); }
void cudnnGetLastErrorString(char *message, size_t max_size) { calls.GetLastErrorString(message, max_size); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return calls.Create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return calls.Destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) { return calls.SetStream(handle, stream); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) { return calls.GetStream(handle, stream); }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor)
{
    return calls.BackendCreateDescriptor(type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    return calls.BackendDestroyDescriptor(descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) { return calls.BackendFinalize(descriptor); }

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    return calls.BackendSetAttribute(descriptor, name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *elements)
{
    return calls.BackendGetAttribute(descriptor, name, type, wanted, count, elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    return calls.BackendExecute(handle, plan, pack);
}

/* ---- NVRTC's names: the frontend compiles kernels of norms with it, and this plugin has no norms ---- */

nvrtcResult nvrtcCreateProgram(nvrtcProgram *, const char *, const char *, int, const char *const *,
                               const char *const *)
{
    return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char *const *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t *) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char *) { return NVRTC_ERROR_INTERNAL_ERROR; }

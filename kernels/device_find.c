/* device_find.c - from a device's name to its table: the cpu's own, or CUDA's from the program or from a plugin.
 *
 * The driver is asked first, through its own library and with nothing else loaded, so that every way in which a machine
 * cannot use CUDA has its own words. Nothing is kept: a plugin stays in the process once it is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/plugin.h"
#include "kernels/cuda_plugin.h"

#define DRIVER_VERSION_LEAST 12000 /* as cuDriverGetVersion counts: CUDA 12.0 */

/* ---- the driver ---- */

typedef int (*cu_init_fn)(unsigned flags);
typedef int (*cu_number_fn)(int *value);
typedef int (*cu_error_text_fn)(int error, const char **text);

static dsc_status unsupported(dsc_error *err, const char *why)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "\"cuda\": %s", why);
}

static dsc_status driver_refuses(void *driver, int error, dsc_error *err)
{
    cu_error_text_fn describe;
    const char *text = NULL;
    if (!dsc_plugin_find(driver, "cuGetErrorString", &describe) || describe(error, &text) != 0 || text == NULL)
        text = "unknown error";
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "\"cuda\": the GPU driver says %d, %.200s%s", error, text,
                    error == 100 ? ": no GPU here, or CUDA_VISIBLE_DEVICES hides them" : "");
}

static dsc_status ask_driver(void *driver, dsc_error *err)
{
    cu_init_fn init;
    cu_number_fn version_of, count_of;
    int version = 0, count = 0, error;
    if (!dsc_plugin_find(driver, "cuInit", &init) || !dsc_plugin_find(driver, "cuDriverGetVersion", &version_of) ||
        !dsc_plugin_find(driver, "cuDeviceGetCount", &count_of))
        return unsupported(err, "libcuda.so.1 is not a GPU driver: it has no cuInit");
    if (version_of(&version) == 0 && version < DRIVER_VERSION_LEAST)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "\"cuda\": the GPU driver is too old: it is for CUDA %d.%d, this build needs %d.%d or newer; "
                        "install a newer driver",
                        version / 1000, version % 1000 / 10, DRIVER_VERSION_LEAST / 1000,
                        DRIVER_VERSION_LEAST % 1000 / 10);
    error = init(0);
    if (error == 0)
        error = count_of(&count);
    if (error != 0)
        return driver_refuses(driver, error, err);
    return count > 0 ? DSC_OK : unsupported(err, "no GPU here, or CUDA_VISIBLE_DEVICES hides them");
}

static dsc_status check_driver(dsc_error *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == NULL)
        return unsupported(err, "no GPU driver on this machine (libcuda.so.1 is not installed)");
    const dsc_status status = ask_driver(driver, err);
    dlclose(driver);
    return status;
}

/* ---- the plugin ---- */

static dsc_status check_plugin(const dsc_cuda_plugin *plugin, dsc_error *err)
{
    static const uint32_t layout[] = DSC_CUDA_PLUGIN_LAYOUT;
    _Static_assert(sizeof layout == sizeof plugin->layout, "one number for each");
    if (plugin == NULL || plugin->table_bytes != sizeof *plugin)
        return unsupported(err, "libdsc_cuda.so is of another version of dsc; install both from one build");
    if (memcmp(plugin->layout, layout, sizeof layout) != 0 ||
        strncmp(plugin->version, DSC_VERSION_TEXT, sizeof plugin->version) != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "\"cuda\": libdsc_cuda.so is of dsc %.31s, this is %s of another build; install both from one",
                        plugin->version, DSC_VERSION_TEXT);
    return DSC_OK;
}

static dsc_status find_cuda(const dsc_device_ops **out, dsc_error *err)
{
    char reason[320];
    dsc_cuda_plugin_fn get;
    if (!dsc_plugin_find(NULL, DSC_CUDA_PLUGIN_SYMBOL, &get)) {
        DSC_TRY(check_driver(err));
        void *plugin = dsc_plugin_open("libdsc_cuda.so", reason, sizeof reason);
        if (plugin == NULL && reason[0] != 0)
            return unsupported(err, reason);
        if (plugin == NULL)
            return unsupported(err, "there is a GPU, but this installation of dsc has no libdsc_cuda.so; "
                                    "build it with make CUDA=1");
        if (!dsc_plugin_find(plugin, DSC_CUDA_PLUGIN_SYMBOL, &get))
            return unsupported(err, "libdsc_cuda.so is not a plugin of dsc");
    }
    const dsc_cuda_plugin *plugin = get();
    DSC_TRY(check_plugin(plugin, err));
    *out = plugin->device;
    return DSC_OK;
}

dsc_status dsc_device_find(const char *name, const dsc_device_ops **out, int32_t *count, dsc_error *err)
{
    *count = 1;
    *out = &dsc_device_cpu;
    if (strcmp(name, "cpu") == 0)
        return DSC_OK;
    if (strcmp(name, "cuda") != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.device", "\"%.40s\" is not a device; expected \"cpu\" or \"cuda\"",
                        name);
    *out = NULL;
    DSC_TRY(find_cuda(out, err));
    return (*out)->count != NULL ? (*out)->count(count, err) : DSC_OK;
}

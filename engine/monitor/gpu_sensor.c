/* gpu_sensor.c - see gpu_sensor.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/gpu_sensor.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

/* Declarations from nvml.h, which the build does not need; NVML keeps them stable. */
typedef void *nvml_device;
typedef struct nvml_use { unsigned gpu, memory; } nvml_use;
typedef struct nvml_memory { unsigned long long total, free, used; } nvml_memory;
enum { NVML_TEMPERATURE_GPU = 0 };

typedef struct nvml_calls {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_place)(const char *pci, nvml_device *out);
    int (*power)(nvml_device device, unsigned *milliwatts);
    int (*use)(nvml_device device, nvml_use *out);
    int (*memory)(nvml_device device, nvml_memory *out);
    int (*temperature)(nvml_device device, int sensor, unsigned *out);
} nvml_calls;

struct dsc_gpu_sensor {
    dsc_alloc *alloc;
    void *library;
    nvml_calls call;
    nvml_device device;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* protects the next two fields */
    pthread_cond_t ending;
    bool ended;
    dsc_gpu_reading last;
};

static bool find(void *library, const char *name, void *out_function)
{
    *(void **)out_function = dlsym(library, name);
    return *(void **)out_function != NULL;
}

static bool find_calls(void *library, nvml_calls *call)
{
    return find(library, "nvmlInit_v2", &call->init) && find(library, "nvmlShutdown", &call->shutdown) &&
           find(library, "nvmlDeviceGetHandleByPciBusId_v2", &call->by_place) &&
           find(library, "nvmlDeviceGetPowerUsage", &call->power) &&
           find(library, "nvmlDeviceGetUtilizationRates", &call->use) &&
           find(library, "nvmlDeviceGetMemoryInfo", &call->memory) &&
           find(library, "nvmlDeviceGetTemperature", &call->temperature);
}

static dsc_gpu_reading ask(const dsc_gpu_sensor *s)
{
    dsc_gpu_reading now = { NAN, NAN, NAN, NAN };
    unsigned number;
    nvml_use use;
    nvml_memory memory;
    if (s->call.power(s->device, &number) == 0)
        now.watts = number * 1e-3;
    if (s->call.use(s->device, &use) == 0)
        now.busy_percent = use.gpu;
    if (s->call.memory(s->device, &memory) == 0)
        now.used_mb = (double)memory.used / 1e6;
    if (s->call.temperature(s->device, NVML_TEMPERATURE_GPU, &number) == 0)
        now.celsius = number;
    return now;
}

static void *run(void *user)
{
    dsc_gpu_sensor *s = user;
    pthread_mutex_lock(&s->lock);
    while (!s->ended) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (pthread_cond_timedwait(&s->ending, &s->lock, &until) == 0)
            continue;
        pthread_mutex_unlock(&s->lock);
        const dsc_gpu_reading now = ask(s);
        pthread_mutex_lock(&s->lock);
        s->last = now;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

dsc_status dsc_gpu_sensor_open(dsc_alloc *alloc, const char *pci, dsc_gpu_sensor **out, dsc_error *err)
{
    nvml_calls call;
    nvml_device device;
    *out = NULL;
    void *library = pci[0] != 0 ? dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL)
        return DSC_OK;
    if (!find_calls(library, &call) || call.init() != 0) {
        dlclose(library);
        return DSC_OK;
    }
    if (call.by_place(pci, &device) != 0) {
        call.shutdown();
        dlclose(library);
        return DSC_OK;
    }
    const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof **out, out, err);
    if (status != DSC_OK) {
        call.shutdown();
        dlclose(library);
        return status;
    }
    dsc_gpu_sensor *s = *out;
    s->alloc = alloc;
    s->library = library;
    s->call = call;
    s->device = device;
    s->last = ask(s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ending, NULL);
    s->running = pthread_create(&s->thread, NULL, run, s) == 0; /* without it the first reading stays */
    return DSC_OK;
}

void dsc_gpu_sensor_read(dsc_gpu_sensor *sensor, dsc_gpu_reading *out)
{
    *out = (dsc_gpu_reading){ NAN, NAN, NAN, NAN };
    if (sensor == NULL)
        return;
    pthread_mutex_lock(&sensor->lock);
    *out = sensor->last;
    pthread_mutex_unlock(&sensor->lock);
}

void dsc_gpu_sensor_close(dsc_gpu_sensor **sensor)
{
    dsc_gpu_sensor *s = *sensor;
    *sensor = NULL;
    if (s == NULL)
        return;
    if (s->running) {
        pthread_mutex_lock(&s->lock);
        s->ended = true;
        pthread_cond_signal(&s->ending);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    s->call.shutdown();
    dlclose(s->library);
    pthread_cond_destroy(&s->ending);
    pthread_mutex_destroy(&s->lock);
    dsc_alloc_free(s->alloc, s);
}

/* gpu_sensor.h - power, use, memory and temperature of a rank's GPU, by NVIDIA's management library (NVML, part of the
 * driver: docs.nvidia.com/deploy/nvml-api). A thread of its own asks once a second, so no step waits for the driver.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_GPU_SENSOR_H
#define DSC_ENGINE_MONITOR_GPU_SENSOR_H

#include "base/alloc.h"

typedef struct dsc_gpu_reading {
    double watts, busy_percent, used_mb, celsius; /* NaN: the card does not tell */
} dsc_gpu_reading;

typedef struct dsc_gpu_sensor dsc_gpu_sensor;

/* `pci` is the GPU's bus address, like "0000:1b:00.0". *out is NULL, without an error, if NVML is absent or does not
 * know the GPU. The first reading is complete on return. */
DSC_MUST_USE dsc_status dsc_gpu_sensor_open(dsc_alloc *alloc, const char *pci, dsc_gpu_sensor **out, dsc_error *err);
/* The newest; all NaN without a sensor. */
void dsc_gpu_sensor_read(dsc_gpu_sensor *sensor, dsc_gpu_reading *out);
void dsc_gpu_sensor_close(dsc_gpu_sensor **sensor);

#endif

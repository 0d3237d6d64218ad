#!/usr/bin/env bash
# test_nvml.sh - monitors show the values of a GPU's management library; a missing, old or refusing library is left out.
# The library is a stand-in with NVML's calls. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/../cli/tap.sh"
sim=${DSC_SIM:-$root/build/gcc-release/tests/sim}
cd "$tmp" || exit 1
unset CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH DSC_PLUGIN_DIR
seq 1 3000 >text.txt
cat >config.json <<'END'
{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "run"},
 "dsc": {"device": "cuda", "model": "gpt2-nano", "data": "text.txt", "seq_length": 16, "steps": 2, "threads": 1}}
END
cat >nvml.c <<'END'
#include <string.h>
typedef struct { unsigned gpu, memory; } use;
typedef struct { unsigned long long total, free, used; } memory;
static int open_count, card;
int nvmlInit_v2(void) { open_count++; return INIT; }
int nvmlShutdown(void) { return --open_count; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out) { *out = &card; return strcmp(pci, "0000:01:00.0") == 0 ? 0 : 6; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { *out = 412500; return d != &card; }
int nvmlDeviceGetUtilizationRates(void *d, use *out) { out->gpu = 97; out->memory = 40; return d != &card; }
int nvmlDeviceGetMemoryInfo(void *d, memory *out) { memory m = { 85000000000ull, 32000000000ull, 53000000000ull }; *out = m; return d != &card; }
#ifndef OLD
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) { *out = 66; return COLD || sensor != 0 || d != &card; }
#endif
END
library() { ${CC:-cc} -shared -fPIC "$@" -o libnvidia-ml.so.1 nvml.c; } # FLAGS...
train() { rm -rf csv; timeout 60 env LD_LIBRARY_PATH="$tmp" "$sim/bin/train" --config config.json >out 2>err </dev/null; }
last() { tail -n 1 "csv/run/Train_Samples_$1.csv" 2>/dev/null | cut -d, -f2; }

library -DINIT=0 -DCOLD=0
report "a GPU that tells all" train
report "power, use, memory and temperature" [ "$(last gpu_power_watts)/$(last gpu_busy_percent)/$(last gpu_memory_mb)/$(last gpu_celsius)" = 412.5/97/53000/66 ]
library -DINIT=0 -DCOLD=1
report "a card without a thermometer" train
report "tells the rest" [ "$(last gpu_power_watts)/$(last gpu_celsius)" = 412.5/ ]
library -DINIT=999 -DCOLD=0
report "a library that does not start" train
report "is left out" [ -z "$(last gpu_power_watts)" -a -n "$(last train_loss)" ]
library -DINIT=0 -DOLD
report "an old library" train
report "is left out, too" [ -z "$(last gpu_power_watts)" -a -n "$(last train_loss)" ]
end_of_tests

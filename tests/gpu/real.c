/* real.c - stands in for the simulator where its tests run on real GPUs: nothing can be set.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/cusim.h"

bool cusim_present(void) { return false; }
void cusim_set_schedule(uint64_t seed, cusim_policy policy) {}
void cusim_set_devices(int devices, size_t bytes_each) {}
void cusim_set_arch(int first, int arch) {}
size_t cusim_bytes_peak(int device) { return 0; }
void cusim_reset_peak(int device) {}
void cusim_set_product_ticks(const unsigned ticks[4]) {}
void cusim_set_kernel_ticks(const char *name, unsigned ticks) {}
void cusim_set_quirk(cusim_quirk quirk) {}
void cusim_set_cudnn(cusim_cudnn is) {}
int64_t cusim_cudnn_calls(void) { return 0; }
void cusim_set_name(const char *name) {}
void cusim_set_endless(const char *name) {}
int64_t cusim_kernels_loaded(void) { return 0; }
void cusim_fail_kernel(int device, const char *name) {}
void cusim_check_races(bool on) {}
bool cusim_tracks_kernels(void) { return false; }
int64_t cusim_plant(cusim_fault fault, int device, int64_t number) { return 0; }
int64_t cusim_times_taken(void) { return 0; }
int64_t cusim_graphs_launched(void) { return 0; }
int64_t cusim_products_taken(void) { return 0; }
int64_t cusim_left(void) { return 0; }
uint64_t cusim_operations(int device) { return 0; }
uint64_t cusim_nccl_registrations(void) { return 0; }
void cusim_set_nccl(int number) {}
uint64_t cusim_nccl_windows(void) { return 0; }
uint64_t cusim_nccl_copied(void) { return 0; }
uint64_t cusim_nccl_splits(void) { return 0; }
void cusim_nccl_last_config(cusim_nccl_config *out) { *out = (cusim_nccl_config){ 0 }; }

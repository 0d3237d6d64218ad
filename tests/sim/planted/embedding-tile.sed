# Sums of a frequent token's rows whose next tile is written before all columns are added. SPDX-License-Identifier: Apache-2.0
/threadIdx\.x < FREQUENT_COLUMNS) {/,/__syncthreads();/{/__syncthreads();/d}

# The cast to fp8 without the barrier before the turned square is read. SPDX-License-Identifier: Apache-2.0
/__syncthreads();/{N;/store_columns/s/.*__syncthreads();\n//}

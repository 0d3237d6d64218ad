# Sums of a batch norm's parts without the barrier before they are added. SPDX-License-Identifier: Apache-2.0
/double over_summers/,/^}/{/shared\[threadIdx/{n;d}}

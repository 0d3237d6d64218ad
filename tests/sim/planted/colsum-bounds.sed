# The last sum of column sums, also written for columns that are not there. SPDX-License-Identifier: Apache-2.0
s/if (y != 0 || c >= cols)/if (y != 0)/

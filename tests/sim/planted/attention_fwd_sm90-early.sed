# Attention by warpgroups that gives values back before the product that reads them is done.
# SPDX-License-Identifier: Apache-2.0
/wgmma_wait<0>(s.out\[0\]);/{N;s/\(.*\)\n\( *at.v.give_back.*\)/\2\n\1/}

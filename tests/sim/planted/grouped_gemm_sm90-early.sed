# Grouped products that give a stage back before the products that read it are done. SPDX-License-Identifier: Apache-2.0
s/wgmma_wait_operands<1>();/wgmma_wait_operands<2>();/

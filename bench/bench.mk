# bench.mk - how benches are built and run. SPDX-License-Identifier: Apache-2.0

.PHONY: bench-kern
## bench-kern: time every kernel variant that passes its check: make bench-kern [FN='gemm*'] [THREADS=2]
bench-kern: $(CHECK_BIN)
	$(Q)$(CHECK_BIN) --bench $(if $(FN),--fn '$(FN)') $(if $(THREADS),--threads $(THREADS))

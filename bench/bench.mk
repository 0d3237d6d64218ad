# bench.mk - how benches are built and run. SPDX-License-Identifier: Apache-2.0
#
# SHORT=1 runs any bench in seconds, with few rounds and small sizes. Its figures mean nothing: tests/cli/test_benches.sh
# checks that every bench runs and prints its rows.

# After a command: exit 77 means that the bench has printed what it needs, and the next bench runs.
OR_SKIPPED := || { rc=$$?; [ $$rc -eq 77 ] || exit $$rc; }
# A setting that the caller gave, else the first argument in the short form, else none.
BENCH_ROUNDS = $(or $(ROUNDS),$(if $(SHORT),$(1)))

.PHONY: bench-kern
## bench-kern: time every kernel variant that passes its check: make bench-kern [FN='bench gemm*'] [THREADS=2]
bench-kern: KERNELS := $(or $(FN),$(if $(SHORT),bench layernorm*))
bench-kern: $(CHECK_BIN)
	$(Q)$(CHECK_BIN) --bench $(if $(KERNELS),--fn '$(KERNELS)') $(if $(THREADS),--threads $(THREADS))

# The kernels are hidden in libdsc.so, so the bench links the static library, and its Python half a small one of its own.
BENCH_BIN := $(BUILD)/bench
$(BENCH_BIN)/bench_adam: $(BUILD)/bench/bench_adam.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@
$(BENCH_BIN)/libbenchadam.so: $(BUILD)/bench/adam_export.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(LDFLAGS) $^ $(LDLIBS) -o $@

.PHONY: bench-adam
## bench-adam: AdamW beside memory bandwidth and, with PEERS=DIR (DIR/venv has deepspeed), DeepSpeed's step: [N='1e6 128e6']
bench-adam: ADAM_OPTIONS = $(if $(THREADS),--threads $(THREADS)) $(addprefix --rounds ,$(call BENCH_ROUNDS,3)) \
    $(or $(N),$(if $(SHORT),1e5))
bench-adam: $(BENCH_BIN)/bench_adam $(BENCH_BIN)/libbenchadam.so
	$(Q)$(BENCH_BIN)/bench_adam $(ADAM_OPTIONS)
	$(Q)$(if $(PEERS),$(PEERS)/venv/bin/python bench/bench_adam_peer.py $(BENCH_BIN)/libbenchadam.so $(ADAM_OPTIONS) \
	    $(OR_SKIPPED),echo "bench-adam: no PEERS=DIR given, so DeepSpeed's and PyTorch's steps are not timed")

$(BENCH_BIN)/bench_comm: $(BUILD)/bench/bench_comm.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@
$(BENCH_BIN)/peer_comm_mpi: bench/peer_comm_mpi.c
	@mkdir -p $(@D)
	$(Q)mpicc -O2 $< -o $@ || echo "bench-comm: no mpicc, Open MPI is not timed"

.PHONY: bench-comm
## bench-comm: collectives beside Open MPI, gloo and, with PEERS=DIR, DeepSpeed: [ROUNDS=15] [RANKS=2,4] [COMM=shm,gloo,mpi] [BIND=core]
bench-comm: $(BENCH_BIN)/bench_comm $(BENCH_BIN)/peer_comm_mpi
	$(Q)bench/bench_comm.py $(BENCH_BIN) $(if $(PEERS),--peers $(PEERS)) $(addprefix --rounds ,$(call BENCH_ROUNDS,1)) \
	    $(addprefix --ranks ,$(or $(RANKS),$(if $(SHORT),2))) $(if $(SHORT),--kib 64$(comma)1024) \
	    $(if $(COMM),--comm $(COMM)) $(if $(BIND),--bind $(BIND)) --plugins $(LIB)/dsc $(OR_SKIPPED)
$(BENCH_BIN)/bench_images: $(BUILD)/bench/bench_images.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

.PHONY: bench-images
## bench-images: JPEG files to pictures of training on one core, beside torchvision and webdataset: PEERS=DIR (DIR/venv has them)
bench-images: $(BENCH_BIN)/bench_images
	$(Q)$(if $(PEERS),$(PEERS)/venv/bin/python,python3) bench/bench_images.py $(BENCH_BIN)/bench_images $(OR_SKIPPED)
$(BENCH_BIN)/step_worker: $(BUILD)/bench/step_worker.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

.PHONY: bench-train
## bench-train: training steps beside torch.compile and DeepSpeed, step by step: PEERS=DIR [CASES='124m small ds1 ds2 ds3'] [ROUNDS=15]
bench-train: $(BENCH_BIN)/step_worker
	$(Q)$(addprefix ROUNDS=,$(call BENCH_ROUNDS,1)) python3 bench/bench_train.py $(BENCH_BIN)/step_worker '$(PEERS)' \
	    $(or $(CASES),$(if $(SHORT),small)) $(OR_SKIPPED)

.PHONY: bench-builds
## bench-builds: training steps and collectives of another checkout's build beside this one: OTHER=CHECKOUT [CASES='124m small zero1 zero3 files comm llama gpt2-fp32'] [ROUNDS=15]
bench-builds: $(BENCH_BIN)/step_worker $(BENCH_BIN)/bench_comm
	$(Q)$(if $(OTHER)$(SHORT),,echo "bench-builds: OTHER=CHECKOUT is needed, where 'make test-programs' has run" >&2; exit 2)
	$(Q)bench/bench_builds.py $(addprefix --rounds ,$(call BENCH_ROUNDS,2)) $(BENCH_BIN) \
	    $(if $(OTHER),$(OTHER)/)$(BENCH_BIN) $(or $(CASES),$(if $(SHORT),nano comm))

$(BENCH_BIN)/bench_io: $(BUILD)/bench/bench_io.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

.PHONY: bench-io
## bench-io: file engines beside fio and, with PEERS=DIR, DeepSpeed's aio: [DIR=/tmp] [ROUNDS=15] [MIB=1024]
bench-io: $(BENCH_BIN)/bench_io
	$(Q)bench/bench_io.py $(BENCH_BIN) $(or $(DIR),/tmp) $(if $(PEERS),--peers $(PEERS)) \
	    $(addprefix --rounds ,$(call BENCH_ROUNDS,1)) $(addprefix --mib ,$(or $(MIB),$(if $(SHORT),16)))

.PHONY: bench-quota
## bench-quota: two CPU ranks of which one is slowed by half: measured quotas beside even ones: [ROUNDS=15]
bench-quota: all
	$(Q)bench/bench_quota.py --train $(CURDIR)/bin/train $(addprefix --rounds ,$(call BENCH_ROUNDS,1)) $(if $(SHORT),--steps 8)

.PHONY: bench-elastic
## bench-elastic: time from the death of a rank to the next step, beside torchrun, and what mirrors cost: [ROUNDS=15] [SOAK=SECONDS] [PYTHON=python3]
bench-elastic: all
	$(Q)bench/bench_elastic.py $(CURDIR)/bin $(addprefix --rounds ,$(call BENCH_ROUNDS,1)) $(if $(SOAK),--soak $(SOAK)) \
	    $(if $(PYTHON),--python $(PYTHON))

.PHONY: bench-watch
## bench-watch: what every monitor, table and trace together cost a step: [ROUNDS=600]
bench-watch: $(BENCH_BIN)/step_worker
	$(Q)bench/bench_watch.py $(BENCH_BIN) $(addprefix --rounds ,$(call BENCH_ROUNDS,3))

.PHONY: bench-moe
## bench-moe: a step of 8 experts, 2 for a token, beside transformers, with PYTHON=PROGRAM (which has it): [ROUNDS=15] [PRECISION=bf16]
bench-moe: $(BENCH_BIN)/step_worker
	$(Q)$(or $(PYTHON),python3) bench/bench_moe.py $(BENCH_BIN) $(addprefix --rounds ,$(call BENCH_ROUNDS,2)) \
	    $(if $(PRECISION),--precision $(PRECISION)) $(if $(THREADS),--threads $(THREADS)) $(if $(SHORT),--short) $(OR_SKIPPED)

.PHONY: bench-pipeline
## bench-pipeline: stages of a pipeline and their idle share, beside torch's 1F1B with PEERS=DIR (DIR/venv has torch): [ROUNDS=15] [STAGES=2] [M=2,4,8]
bench-pipeline: $(BENCH_BIN)/step_worker
	$(Q)python3 bench/bench_pipeline.py $(BENCH_BIN) $(addprefix --rounds ,$(call BENCH_ROUNDS,2)) $(if $(PEERS),--peers $(PEERS)) \
	    $(if $(STAGES),--stages $(STAGES)) $(if $(M),--micro-batches $(M)) $(if $(SHORT),--short) $(OR_SKIPPED)

.PHONY: bench-vision
## bench-vision: steps of convolutional networks beside PyTorch, with PYTHON=PROGRAM (which has torchvision): [CASES='resnet18:224:16:fp32 ...'] [ROUNDS=9] [EAGER=1]
bench-vision: $(BENCH_BIN)/step_worker
	$(Q)$(or $(PYTHON),python3) bench/bench_vision.py $(BENCH_BIN) $(addprefix --rounds ,$(call BENCH_ROUNDS,1)) \
	    $(if $(CASES),--cases $(CASES)) $(if $(EAGER),--eager) $(if $(SHORT),--short) $(OR_SKIPPED)

.PHONY: bench-accuracy
## bench-accuracy: the accuracy that resnet18_cifar reaches on digits beside PyTorch's, with PYTHON=PROGRAM (which has torchvision): [SEEDS=5] [EPOCHS=10]
bench-accuracy: $(BIN)/train
	$(Q)$(or $(PYTHON),python3) bench/bench_accuracy.py $(BIN)/train $(if $(SEEDS),--seeds $(SEEDS)) $(if $(EPOCHS),--epochs $(EPOCHS)) \
	    $(if $(SHORT),--short) $(OR_SKIPPED)

.PHONY: bench-fp8-loss
## bench-fp8-loss: the loss of products in fp8 beside that of bf16, over seeds: [SEEDS=3] [DEVICE=cpu]
bench-fp8-loss: $(BIN)/train
	$(Q)$(if $(SHORT),SHORT=1) bench/bench_fp8_loss.py $(BIN)/train $(if $(SEEDS),--seeds $(SEEDS)) $(if $(DEVICE),--device $(DEVICE))

.PHONY: bench-recompute
## bench-recompute: what dsc.recompute kept, none, selective and full take and save, in turns: [ROUNDS=9]
bench-recompute: $(BENCH_BIN)/step_worker $(BIN)/dsc
	$(Q)bench/bench_recompute.py $(BENCH_BIN) $(BIN)/dsc $(addprefix --rounds ,$(call BENCH_ROUNDS,2)) \
	    $(if $(SHORT),--model gpt2-nano --sequence 64)

.PHONY: bench-simulate
## bench-simulate: predictions of dsc simulate beside steps of 1, 2 and 4 CPU ranks: [ROUNDS=11]
bench-simulate: $(BENCH_BIN)/step_worker $(BIN)/dsc
	$(Q)bench/bench_simulate.py --bin $(BIN) --worker $(BENCH_BIN)/step_worker $(addprefix --rounds ,$(call BENCH_ROUNDS,2)) \
	    $(if $(SHORT),--models small --stages 2 --accumulation 1)

.PHONY: bench-offload
## bench-offload: steps with states in files beside steps in memory and the disk's limit. [DIR=/tmp] [CASES='files compute alike']. Settings of a case: [ROUNDS=15] [MODEL=gpt2-124m] [SEQUENCE=64] [BUFFERS=4] [RATIO=1] [GRADIENTS=0] [TOGETHER=1] [EARLY=1] [WAITING=1] [BLOCK=1024] [CLIP=1]
bench-offload: $(BENCH_BIN)/step_worker $(BENCH_BIN)/bench_io $(BIN)/dsc
	$(Q)bench/bench_offload.py $(BENCH_BIN) $(BIN)/dsc $(or $(DIR),/tmp) $(if $(SHORT),--short) \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BUFFERS),--buffers $(BUFFERS)) $(if $(RATIO),--ratio $(RATIO)) \
	    $(if $(GRADIENTS),--gradients $(GRADIENTS)) $(if $(TOGETHER),--together $(TOGETHER)) \
	    $(if $(EARLY),$(if $(filter 0,$(EARLY)),--no-early,--early)) \
	    $(if $(WAITING),$(if $(filter 0,$(WAITING)),--no-waiting,--waiting)) $(if $(BLOCK),--block $(BLOCK)) \
	    $(if $(CLIP),--clip $(CLIP)) $(if $(MODEL),--model $(MODEL)) $(if $(SEQUENCE),--sequence $(SEQUENCE)) $(CASES)

.PHONY: bench-ckpt
## bench-ckpt: saves and loads of 1.5 GB beside fio, what a save beside training costs, restarts: [DIR=/tmp] [ROUNDS=15] [PARTS='files beside restart']
bench-ckpt: $(BENCH_BIN)/step_worker $(BIN)/train
	$(Q)python3 bench/bench_ckpt.py $(BENCH_BIN) $(BIN)/train $(or $(DIR),/tmp) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SHORT),--short) \
	    $(PARTS) $(OR_SKIPPED)

.PHONY: bench-generate
## bench-generate: tokens a second of dsc generate beside transformers, with PYTHON=PROGRAM (which has both): [DIR=/tmp] [ROUNDS=15] [CASES='gpt2 llama']
bench-generate: $(BIN)/dsc
	$(Q)$(or $(PYTHON),python3) bench/bench_generate.py $(BIN)/dsc $(or $(DIR),/tmp) $(if $(SHORT),--short) \
	    $(if $(ROUNDS),--rounds $(ROUNDS)) $(CASES) $(OR_SKIPPED)

$(BENCH_BIN)/sft_pack: $(BUILD)/bench/sft_pack.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

.PHONY: bench-sft-data
## bench-sft-data: rendering, encoding and packing instruction data beside TRL, with PYTHON=PROGRAM (which has it): [DIR=/tmp] [ROUNDS=15] [MIB=50]
bench-sft-data: $(BENCH_BIN)/sft_pack
	$(Q)$(or $(PYTHON),python3) bench/bench_sft_data.py $(BENCH_BIN)/sft_pack $(or $(DIR),/tmp) $(if $(SHORT),--short) \
	    $(addprefix --rounds ,$(ROUNDS)) $(addprefix --mib ,$(MIB)) $(OR_SKIPPED)

.PHONY: bench-startup
## bench-startup: dsc-launch to rank 0's first line, here and over two hosts, beside ssh, mpirun and, with PEERS=DIR, torchrun: [ROUNDS=15]
bench-startup: $(BIN)/dsc-launch
	$(Q)bench/bench_startup.py $(BIN) $(if $(PEERS),--peers $(PEERS)) $(addprefix --rounds ,$(call BENCH_ROUNDS,1))

# The short form compiles no plugin: it takes the one that a GPU machine has.
GPU_BENCH_PLUGIN := $(if $(SHORT),,cuda-plugin)

.PHONY: bench-gpu-kern
## bench-gpu-kern: time every CUDA kernel, beside this GPU's copy and peak: [FN='bench gemm*']
bench-gpu-kern: KERNELS := $(or $(FN),$(if $(SHORT),bench layernorm*))
bench-gpu-kern: $(CHECK_BIN) $(GPU_BENCH_PLUGIN)
	$(Q)DSC_PLUGIN_DIR=$(abspath $(LIB))/dsc $(CHECK_BIN) --device cuda --bench $(if $(KERNELS),--fn '$(KERNELS)') || \
	    { rc=$$?; [ $$rc -eq 77 ] || exit $$rc; echo "bench-gpu-kern: skipped: it needs a GPU and the CUDA plugin"; }

.PHONY: bench-gpu
## bench-gpu: training on this GPU beside PyTorch with PYTHON=PROGRAM (which has torch), kernels: [CASES='124m 1558m kernels short 774m'], or CASES=offload [ROUNDS=15] [SECONDS=540]
bench-gpu: $(BENCH_BIN)/step_worker $(CHECK_BIN) $(GPU_BENCH_PLUGIN)
	$(Q)DSC_PLUGIN_DIR=$(abspath $(LIB))/dsc $(addprefix ROUNDS=,$(call BENCH_ROUNDS,1)) \
	    python3 bench/bench_gpu.py $(BENCH_BIN)/step_worker --checkkern $(CHECK_BIN) $(if $(PYTHON),--python $(PYTHON)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SHORT),,--results $(RESULTS)) $(or $(CASES),$(if $(SHORT),nano)) $(OR_SKIPPED)

.PHONY: bench
## bench: every bench that needs no more than PEERS=DIR; SHORT=1, here and for one bench: a trial of seconds
bench: bench-kern bench-adam bench-comm bench-startup bench-io bench-offload bench-ckpt bench-recompute bench-simulate bench-train

# tests/cli/test_benches.sh finds the programs there. The plain build alone has benches to run.
ifeq ($(SAN),)
test-programs: $(addprefix $(BENCH_BIN)/,bench_adam libbenchadam.so bench_comm bench_io sft_pack step_worker)
endif

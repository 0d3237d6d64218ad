# install.mk - dependencies, demo, installation, header check. SPDX-License-Identifier: Apache-2.0

DEPS      := gcc libc6-dev pkg-config libdnnl-dev libcjson-dev libyaml-dev libxxhash-dev libutf8proc-dev liburing-dev libaio-dev libgomp1
DEPS_HTTP := libmicrohttpd-dev libcurl4-openssl-dev
DEPS_IMAGES := libturbojpeg0 libpng16-16 libwebp7
DEPS_TEST := g++ libcmocka-dev python3-minimal libpython3-stdlib python3-torch procps iproute2 openssh-server $(DEPS_HTTP) $(DEPS_IMAGES)
DEPS_DEMO := bible-kjv
DEPS_DEMO_CHAT := python3-minimal libpython3-stdlib
DEPS_LINT := clang g++
DEPS_NET  := g++ libgloo-dev libopenmpi-dev openmpi-bin
DEPS_SLURM := slurmctld slurmd slurm-client

.PHONY: deps deps-test deps-demo deps-lint deps-net deps-http deps-images deps-slurm
## deps: install what a build needs (Debian packages; as root)
deps:
	$(Q)tools/deps.sh $(DEPS)
## deps-test: and what the tests need
deps-test: deps
	$(Q)tools/deps.sh $(DEPS_TEST)
deps-demo: deps
	$(Q)tools/deps.sh $(DEPS_DEMO)
## deps-net: what the transports "gloo" and "mpi" need; without it the build has "tcp" between hosts
deps-net: deps
	$(Q)tools/deps.sh $(DEPS_NET)
## deps-http: what dsc.prometheus_port and dsc.mlflow need
deps-http: deps
	$(Q)tools/deps.sh $(DEPS_HTTP)
## deps-images: what data of JPEG, PNG and WebP pictures needs
deps-images:
	$(Q)tools/deps.sh $(DEPS_IMAGES)
## deps-slurm: what the tests under a real Slurm need; no daemon is started but by them
deps-slurm:
	$(Q)tools/deps.sh $(DEPS_SLURM)
deps-lint: deps-test
	$(Q)tools/deps.sh $(DEPS_LINT)

# For the two commands of the README, which nobody types a -j for.
EVERY_CORE = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

# The demo trains on CPU ranks on a machine without a GPU driver, where nvcc would take most of its time.
GPU_DRIVER = $(wildcard /dev/nvidia[0-9]*)$(shell PATH=$$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -m 1 -o 'libcuda\.so\.1 ')
DEMO_WITHOUT_CUDA = $(if $(filter auto,$(CUDA)),$(if $(BUILD_CUDA),$(if $(strip $(GPU_DRIVER)),,1)))
.PHONY: demo
## demo: train on real text over 4 sharded ranks and show the result (installs what is missing)
demo: deps-demo
	$(if $(DEMO_WITHOUT_CUDA),@echo "demo: there is no GPU driver here; the CUDA plugin is not compiled (make cuda-plugin builds it)")
	$(Q)$(MAKE) --no-print-directory $(EVERY_CORE) $(if $(DEMO_WITHOUT_CUDA),CUDA=0) all
	$(Q)scripts/demo.sh

.PHONY: deps-demo-chat demo-chat
deps-demo-chat: deps
	$(Q)tools/deps.sh $(DEPS_DEMO_CHAT)
## demo-chat: fine-tune a small model on conversations and ask it held-out questions (installs what is missing)
demo-chat: deps-demo-chat
	$(Q)$(MAKE) --no-print-directory $(EVERY_CORE) $(if $(DEMO_WITHOUT_CUDA),CUDA=0) all
	$(Q)scripts/demo_chat.sh

.PHONY: demo-vision
## demo-vision: train on pictures of digits over 4 sharded ranks, and show what the network says (installs what is missing)
demo-vision: deps
	$(Q)$(MAKE) --no-print-directory $(EVERY_CORE) $(if $(DEMO_WITHOUT_CUDA),CUDA=0) all
	$(Q)scripts/demo_vision.sh

# Public headers compile alone, as C17 and as C++.
PUBLIC_HEADERS := $(wildcard include/dsc/*.h)
.PHONY: headers
## headers: every public header compiles alone, as C17 and as C++
headers:
	$(Q)for h in $(PUBLIC_HEADERS); do \
	    echo "#include <dsc/$$(basename $$h)>" | $(CC) -std=c17 -Wall -Wextra -Wpedantic -Werror -Iinclude -x c -fsyntax-only - || exit 1; \
	    command -v $(CXX) >/dev/null || continue; \
	    echo "#include <dsc/$$(basename $$h)>" | $(CXX) -std=c++17 -Wall -Wextra -Werror -Iinclude -x c++ -fsyntax-only - || exit 1; \
	done; echo "headers: $(words $(PUBLIC_HEADERS)) compile alone"

.PHONY: install
## install: programs, library, headers, presets and a pkg-config file below PREFIX (/usr/local)
install: all
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/dsc $(DESTDIR)$(PREFIX)/share/dsc/configs $(DESTDIR)$(PREFIX)/share/dsc/cards
	$(Q)install $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 644 $(LIB)/libdsc.a $(DESTDIR)$(PREFIX)/lib
	$(Q)install $(LIB)/libdsc.so $(DESTDIR)$(PREFIX)/lib/libdsc.so.0
	$(Q)ln -sf libdsc.so.0 $(DESTDIR)$(PREFIX)/lib/libdsc.so
	$(Q)for p in $(wildcard $(LIB)/dsc/libdsc_*.so); do install -D $$p $(DESTDIR)$(PREFIX)/lib/dsc/$$(basename $$p); done
	$(Q)install -m 644 $(PUBLIC_HEADERS) $(DESTDIR)$(PREFIX)/include/dsc
	$(Q)install -m 644 configs/*.json $(DESTDIR)$(PREFIX)/share/dsc/configs
	$(Q)install -m 644 bench/cards/*.json $(DESTDIR)$(PREFIX)/share/dsc/cards
	$(Q)printf 'prefix=%s\nName: dsc\nDescription: ZeRO-sharded training engine\nVersion: %s\nLibs: -L$${prefix}/lib -ldsc\nLibs.private: %s -fopenmp\nCflags: -I$${prefix}/include\n' \
	    '$(PREFIX)' '$(VERSION)' '$(LDLIBS)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/dsc.pc

# clang compiles every source as far as LLVM's unoptimized code, so that its front end reports all warnings and all instructions
# that a file's target lacks. The optimizer and the linker report nothing more, and gcc's programs are the ones that tests run.
CLANG_CHECK := -O1 -Xclang -disable-llvm-passes -emit-llvm
.PHONY: lint
## lint: format, layers, cycles of folders, links, language, folder pages, assertions, commit subjects, public headers, warnings as errors with gcc and clang
# Folders whose comments and pages tests/lint/language.py checks.
LANGUAGE := README.md CONTRIBUTING.md docs base bench comm configs engine examples include kernels launcher models offload tests tools zero
# Folders with at least one assertion per function on average.
ASSERTED := engine/checkpoint offload zero zero/core zero/offload zero/optimizer
# The rules of tests/lint, beside each other where -j allows.
LINT_RULES := $(patsubst tests/lint/%,lint-%,$(wildcard tests/lint/*.sh tests/lint/*.py))
lint-language.py: LINT_ARGUMENTS := $(LANGUAGE)
lint-asserts.py: LINT_ARGUMENTS := $(ASSERTED)
.PHONY: $(LINT_RULES)
$(LINT_RULES): lint-%:
	$(Q)tests/lint/$* $(LINT_ARGUMENTS)
lint: headers $(LINT_RULES)
	$(Q)$(MAKE) --no-print-directory CC=gcc test-programs
	$(Q)if command -v clang >/dev/null; then $(MAKE) --no-print-directory CC=clang BUILD=build/clang-check \
	        BIN=build/clang-check/bin LIB=build/clang-check/lib OPT='$(CLANG_CHECK)' SIM_OPT='$(CLANG_CHECK)' test-objects; \
	    else echo "lint: clang is not installed (make deps-lint)"; exit 1; fi
	@echo "lint: clean"

EXAMPLES := $(patsubst examples/%.c,$(BIN)/examples/%,$(wildcard examples/*.c))
.PHONY: examples
## examples: programs that embed the engine, in bin/examples/
examples: $(EXAMPLES)
$(EXAMPLES): $(BIN)/examples/%: $(BUILD)/examples/%.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

# mtplx build.
#
# Everything is built out of tree, under $(BUILD). Sources are found by pattern, so a new file needs
# no edit here:
#
#   src/**/*.c           the library, except src/cli/** and src/serve/**, which are the program
#   *_avx2.c *_avx512*.c  compiled with those instructions, on x86-64 only;
#                        *_neon.c *_neondot.c *_neoni8mm.c on arm64 only
#   tests/unit/test_*.c  one cmocka program each; tests/golden/test_*.c likewise, over fixtures
#   tests/*/*.sh         shell tests; tests/api/run.sh runs the official npm clients
#   tests/fuzz/fuzz_*.c  libFuzzer targets, corpus in tests/fuzz/corpus/<name>/
#   bench/bench_*.c, examples/*.c  one program each; bench/synth/*.c together one program, as are
#                        bench/serve/*.c
#
# Objects depend on a stamp that holds the compiler and all flags, so a changed setting rebuilds.
# Settings, on the command line: BUILD, CC, CFLAGS and LDFLAGS (appended), OPT, WERROR=0,
# SANITIZE=address,undefined, PREFIX, DESTDIR, SUITES, TESTS (a shell pattern), SKIP (names),
# JOBS, FUZZ_SECONDS, V=1 (show the commands).

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

VERSION := $(shell sed -n 's/^.define MTPLX_VERSION "\(.*\)"/\1/p' include/mtplx.h)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))

BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
OPT ?= -O3 -g
WERROR ?= 1
SANITIZE ?=
SUITES ?= golden unit cli package api
TESTS ?= *
SKIP ?=
JOBS ?= 2
FUZZ_SECONDS ?= 60

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin AR),default)
AR := ar
endif
PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format
CLANG_TIDY ?= clang-tidy
INSTALL ?= install
# Prefix of every built program that is run, for cross builds: RUNNER=qemu-aarch64
RUNNER ?=

ifeq ($(V),1)
Q :=
say := @:
else
Q := @
say := @printf '  %-5s %s\n'
endif

# ---- Target machine ------------------------------------------------------------------------------

TARGET := $(shell $(CC) -dumpmachine 2>/dev/null)
ARCH := $(firstword $(subst -, ,$(TARGET)))
CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null))
DARWIN := $(findstring darwin,$(TARGET))

X86_ONLY := %_avx2.c %_avx512.c %_avx512vnni.c %_avx512amx.c
ARM_ONLY := %_neon.c %_neondot.c %_neoni8mm.c
FOREIGN := $(X86_ONLY) $(ARM_ONLY)
ifeq ($(ARCH),x86_64)
FOREIGN := $(ARM_ONLY)
endif
ifneq ($(filter aarch64 arm64,$(ARCH)),)
FOREIGN := $(X86_ONLY)
endif

# Flags of an instruction set, by the last word of the file's name.
FLAGS_avx2 := -mavx2 -mfma -mf16c
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq $(FLAGS_avx2)
FLAGS_avx512vnni := -mavx512vnni $(FLAGS_avx512)
FLAGS_avx512amx := -mamx-tile -mamx-int8 $(FLAGS_avx512vnni)
FLAGS_neondot := -march=armv8.2-a+dotprod+fp16
FLAGS_neoni8mm := $(FLAGS_neondot)+i8mm
isa_flags = $(FLAGS_$(lastword $(subst _, ,$(basename $(notdir $1)))))

# ---- Files ---------------------------------------------------------------------------------------

C_FILES := $(filter-out $(FOREIGN),$(sort $(shell find src -name '*.c')))
HEADERS := $(sort $(shell find src include tests bench -name '*.h'))
CLI_SRC := $(filter src/cli/%,$(C_FILES))
SERVE_SRC := $(filter src/serve/%,$(C_FILES))
LIB_SRC := $(filter-out src/cli/% src/serve/%,$(C_FILES))
UNIT_SRC := $(sort $(wildcard tests/unit/test_*.c))
GOLDEN_SRC := $(sort $(wildcard tests/golden/test_*.c))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
BENCH_SRC := $(sort $(wildcard bench/bench_*.c))
SYNTH_SRC := $(sort $(wildcard bench/synth/*.c))
LOAD_SRC := $(sort $(wildcard bench/serve/*.c))
EXAMPLE_SRC := $(sort $(wildcard examples/*.c))
ALL_C := $(sort $(shell find src include tests bench examples -name '*.[ch]'))

OBJ := $(BUILD)/obj
objects = $(patsubst %.c,$(OBJ)/%.o,$1)
programs = $(patsubst %.c,$(BUILD)/%,$1)
LIB_OBJ := $(call objects,$(LIB_SRC))
CLI_OBJ := $(call objects,$(CLI_SRC))
SERVE_OBJ := $(call objects,$(SERVE_SRC))

LIB_A := $(BUILD)/libmtplx.a
# The server, for the program and its tests: who embeds the library gets no HTTP stack with it.
SERVE_A := $(BUILD)/obj/serve.a
PROGRAM := $(BUILD)/mtplx
ifeq ($(DARWIN),)
SO_LINK := libmtplx.so
SO_NAME := $(SO_LINK).$(SOVERSION)
SO_REAL := $(SO_LINK).$(VERSION)
SO_FLAGS := -shared -Wl,-soname,$(SO_NAME) -Wl,--no-undefined
else
SO_LINK := libmtplx.dylib
SO_NAME := libmtplx.$(SOVERSION).dylib
SO_REAL := libmtplx.$(VERSION).dylib
SO_FLAGS := -dynamiclib -Wl,-install_name,$(PREFIX)/lib/$(SO_NAME)
endif

# The checkpoint that ships with mtplx is installed as share/mtplx/models/nano.
NANO := models/nano

# ---- Flags ---------------------------------------------------------------------------------------

PACKAGES := jansson libpcre2-8 libutf8proc sqlite3 libzstd libxxhash
SERVE_PACKAGES := libmicrohttpd libsodium
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) $(SERVE_PACKAGES) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES) 2>/dev/null || \
	echo -ljansson -lpcre2-8 -lutf8proc -lsqlite3 -lzstd -lxxhash)
SERVE_LIBS := $(shell $(PKG_CONFIG) --libs $(SERVE_PACKAGES) 2>/dev/null || \
	echo -lmicrohttpd -lsodium)
CMOCKA_LIBS := $(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null || echo -lcmocka)

# No contraction: a fused multiply-add chosen by the compiler would change a row's bits between
# compilers. Kernels that want FMA say so with intrinsics.
BASE_FLAGS := -std=c11 -D_GNU_SOURCE $(OPT) -ffp-contract=off -fno-math-errno -fPIC \
	-fvisibility=hidden
WARN_FLAGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
# What gcc takes for uninitialised depends on its version and on what it inlines: shown, not fatal.
ifeq ($(WERROR),1)
WARN_FLAGS += -Werror $(if $(CLANG),,-Wno-error=maybe-uninitialized)
endif
ifneq ($(SANITIZE),)
SAN_FLAGS := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
ALL_CFLAGS = $(BASE_FLAGS) $(WARN_FLAGS) $(SAN_FLAGS) $(PKG_CFLAGS) $(CFLAGS)
ALL_LDFLAGS = $(SAN_FLAGS) $(LDFLAGS)
LIBS := $(PKG_LIBS) -lm -lpthread
DEPFLAGS = -MMD -MP

# Examples see what a user of the library sees; everything else sees the internal headers too.
INCLUDES = -Iinclude $(if $(filter examples/%,$1),,-Isrc) $(if $(filter tests/%,$1),-Itests)

# The one file that knows where the shipped model is installed.
PREFIX_SRC := src/runtime/model.c
PREFIX_FLAGS := -DMX_DATADIR='"$(PREFIX)/share/mtplx"'

# Fuzz targets feed parsers. Their build leaves the kernels bare, which take minutes to instrument.
BARE_SRC := $(if $(findstring fuzzer,$(SANITIZE)),src/device/cpu/kernels_% src/device/cpu/q8_%)

file_flags = $(call isa_flags,$1) $(call INCLUDES,$1) \
	$(if $(filter $(PREFIX_SRC),$1),$(PREFIX_FLAGS)) \
	$(if $(filter $(BARE_SRC),$1),-fno-sanitize=all)

# ---- Default targets -----------------------------------------------------------------------------

.PHONY: all
all: $(PROGRAM) $(LIB_A) $(if $(SANITIZE),,$(BUILD)/$(SO_LINK)) ## program and libraries (default)

# Remakes a stamp only when its text differs, so that what depends on it stays up to date.
define stamp
	@mkdir -p $(@D)
	@printf '%s\n' "$$STAMP" | cmp -s - $@ || printf '%s\n' "$$STAMP" > $@
endef

.PHONY: FORCE
FORCE:

$(BUILD)/flags.stamp: export STAMP = $(shell $(CC) --version 2>&1 | head -n 1) $(TARGET) \
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LIBS) $(FLAGS_avx512amx) $(FLAGS_neoni8mm)
$(BUILD)/flags.stamp: FORCE
	$(stamp)

# A removed source file must leave the archive as well.
$(BUILD)/sources.stamp: export STAMP = $(LIB_SRC) $(SERVE_SRC) $(CLI_SRC)
$(BUILD)/sources.stamp: FORCE
	$(stamp)

$(BUILD)/prefix.stamp: export STAMP = $(PREFIX)
$(BUILD)/prefix.stamp: FORCE
	$(stamp)
$(call objects,$(PREFIX_SRC)): $(BUILD)/prefix.stamp

$(OBJ)/%.o: %.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) $(call file_flags,$<) $(DEPFLAGS) -c -o $@ $<

$(LIB_A): $(LIB_OBJ) $(BUILD)/sources.stamp
	@rm -f $@
	$(say) AR $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

$(BUILD)/$(SO_REAL): $(LIB_OBJ) $(BUILD)/sources.stamp
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) $(SO_FLAGS) -o $@ $(LIB_OBJ) $(ALL_LDFLAGS) $(LIBS)

$(BUILD)/$(SO_LINK): $(BUILD)/$(SO_REAL)
	$(Q)ln -sf $(SO_REAL) $(BUILD)/$(SO_NAME)
	$(Q)ln -sf $(SO_NAME) $@

$(SERVE_A): $(SERVE_OBJ) $(BUILD)/sources.stamp
	@rm -f $@
	$(say) AR $@
	$(Q)$(AR) rcs $@ $(SERVE_OBJ)

$(PROGRAM): $(CLI_OBJ) $(SERVE_A) $(LIB_A) $(BUILD)/sources.stamp
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $(CLI_OBJ) $(SERVE_A) $(LIB_A) $(ALL_LDFLAGS) $(SERVE_LIBS) $(LIBS)

# ---- Tests, benchmarks, examples -----------------------------------------------------------------

UNIT_BIN := $(call programs,$(UNIT_SRC))
GOLDEN_BIN := $(call programs,$(GOLDEN_SRC))
BENCH_BIN := $(call programs,$(BENCH_SRC))
EXAMPLE_BIN := $(call programs,$(EXAMPLE_SRC))
FUZZ_BIN := $(call programs,$(FUZZ_SRC))
C_PROGRAMS := $(BENCH_BIN) $(EXAMPLE_BIN)
SYNTH := $(BUILD)/bench/synth/synth
LOAD := $(BUILD)/bench/serve/serve

$(UNIT_BIN) $(GOLDEN_BIN): $(BUILD)/%: $(OBJ)/%.o $(SERVE_A) $(LIB_A)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $< $(SERVE_A) $(LIB_A) $(ALL_LDFLAGS) $(CMOCKA_LIBS) $(SERVE_LIBS) \
		$(LIBS)

$(C_PROGRAMS): $(BUILD)/%: $(OBJ)/%.o $(LIB_A)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $< $(LIB_A) $(ALL_LDFLAGS) $(LIBS)

$(LOAD): $(call objects,$(LOAD_SRC)) $(LIB_A)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(ALL_LDFLAGS) $(LIBS)

$(SYNTH): $(call objects,$(SYNTH_SRC)) $(LIB_A)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(ALL_LDFLAGS) $(LIBS)

$(FUZZ_BIN): $(BUILD)/%: $(OBJ)/%.o $(SERVE_A) $(LIB_A)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $< $(SERVE_A) $(LIB_A) $(ALL_LDFLAGS) \
		$(SERVE_LIBS) $(LIBS)

NEEDS_unit := $(UNIT_BIN)
NEEDS_golden := $(GOLDEN_BIN)
NEEDS_cli := $(PROGRAM) $(SYNTH)
NEEDS_package := all $(EXAMPLE_BIN)
NEEDS_api := $(PROGRAM)
RUNS_unit := $(UNIT_BIN)
RUNS_golden := $(GOLDEN_BIN)
RUNS_cli := $(sort $(wildcard tests/cli/*.sh))
RUNS_package := $(sort $(wildcard tests/package/*.sh))
RUNS_api := tests/api/run.sh
# Files beside the test scripts that start with "lib" or "_" are sourced by them.
TEST_RUNS = $(foreach s,$(SUITES),$(filter-out tests/cli/lib% tests/cli/_%,$(RUNS_$s)))

.PHONY: tests
tests: $(foreach s,$(SUITES),$(NEEDS_$s)) ## build what `check` runs

.PHONY: check
check: tests ## run the tests (SUITES="golden unit cli package api", TESTS='test_half*')
	@MTPLX_BUILD='$(abspath $(BUILD))' MTPLX_CC='$(CC)' MTPLX_RUNNER='$(RUNNER)' MAKE='$(MAKE)' \
		scripts/run-tests --jobs $(JOBS) --match '$(TESTS)' --skip '$(SKIP)' $(TEST_RUNS)

# Sanitized code is several times slower. Long statistics and comparisons of the trained model run
# the code that the small fixtures run, over and over; synth.sh is about a tool of the benchmarks.
ASAN_SKIP ?= test_nano test_engine_law test_exact test_draft_head test_adaptive test_law synth.sh
ASAN_FLAGS := SANITIZE=address,undefined OPT='-O1 -g' WERROR=0
.PHONY: asan
asan: ## build with ASan and UBSan in build/asan, run unit, golden and CLI tests
	MTPLX_EXACT_PROMPTS=1 $(MAKE) BUILD=$(BUILD)/asan $(ASAN_FLAGS) \
		SUITES='golden unit cli' SKIP='$(ASAN_SKIP)' check

TSAN_TESTS ?= test_*thread*
.PHONY: tsan
tsan: ## build with TSan in build/tsan, run the tests about threads
	$(MAKE) BUILD=$(BUILD)/tsan SANITIZE=thread OPT='-O1 -g' WERROR=0 SUITES=unit \
		TESTS='$(TSAN_TESTS)' check

# Arithmetic, text and threads: the same C everywhere, and many times slower under emulation.
CROSS_SKIP ?= test_depth test_engine_thread test_law test_jinja
.PHONY: cross-aarch64
cross-aarch64: ## cross build for arm64 in build/aarch64, run the unit tests under qemu-user
	PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(MAKE) BUILD=$(BUILD)/aarch64 \
		CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar RUNNER=qemu-aarch64 SUITES=unit \
		SKIP='$(CROSS_SKIP)' all check

FUZZ_FLAGS := SANITIZE=fuzzer-no-link,address,undefined OPT='-O1 -g' WERROR=0
.PHONY: fuzz
fuzz: ## fuzz every target for FUZZ_SECONDS (clang), after replaying its corpus
	$(MAKE) BUILD=$(BUILD)/fuzz CC=clang $(FUZZ_FLAGS) fuzz-run

.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@scripts/run-fuzz --jobs $(JOBS) --seconds $(FUZZ_SECONDS) --work $(BUILD)/corpus $(FUZZ_BIN)

.PHONY: bench
bench: $(BENCH_BIN) $(SYNTH) $(LOAD) ## build the benchmarks into build/bench/

.PHONY: examples
examples: $(EXAMPLE_BIN) ## build the example programs into build/examples/

# ---- Formatting and analysis ---------------------------------------------------------------------

.PHONY: format
format: ## rewrite all C files with clang-format
	@$(CLANG_FORMAT) -i $(ALL_C)

.PHONY: format-check
format-check: ## fail when a C file is not formatted
	@$(CLANG_FORMAT) --dry-run -Werror $(ALL_C)

.PHONY: style
style: ## mechanical house rules: width, banned calls, layering, file size
	scripts/style

TIDY_SRC := $(C_FILES) $(EXAMPLE_SRC) $(BENCH_SRC) $(SYNTH_SRC) $(LOAD_SRC)
TIDY_OK := $(patsubst %.c,$(BUILD)/tidy/%.ok,$(TIDY_SRC))
.PHONY: tidy
tidy: $(TIDY_OK) ## clang-tidy over src, examples and bench (use -j2 -k)

$(BUILD)/tidy/%.ok: %.c .clang-tidy $(HEADERS)
	@mkdir -p $(@D)
	$(say) TIDY $<
	$(Q)$(CLANG_TIDY) --quiet $< -- -std=c11 -D_GNU_SOURCE $(PKG_CFLAGS) $(call file_flags,$<)
	@touch $@

# ---- Installation --------------------------------------------------------------------------------

DEST := $(DESTDIR)$(PREFIX)
SHARE := $(DEST)/share/mtplx
DOC := $(DEST)/share/doc/mtplx

$(BUILD)/mtplx.pc: mtplx.pc.in FORCE
	@sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' $< > $@

.PHONY: install
install: all $(BUILD)/mtplx.pc ## install below $(DESTDIR)$(PREFIX)
	$(INSTALL) -d $(DEST)/bin $(DEST)/lib/pkgconfig $(DEST)/include $(SHARE)/models/nano $(DOC)
	$(INSTALL) -m 755 $(PROGRAM) $(DEST)/bin/mtplx
	$(INSTALL) -m 644 $(LIB_A) $(DEST)/lib/libmtplx.a
	$(INSTALL) -m 755 $(BUILD)/$(SO_REAL) $(DEST)/lib/$(SO_REAL)
	ln -sf $(SO_REAL) $(DEST)/lib/$(SO_NAME)
	ln -sf $(SO_NAME) $(DEST)/lib/$(SO_LINK)
	$(INSTALL) -m 644 include/mtplx.h $(DEST)/include/mtplx.h
	$(INSTALL) -m 644 $(BUILD)/mtplx.pc $(DEST)/lib/pkgconfig/mtplx.pc
	$(INSTALL) -m 644 $(wildcard $(NANO)/*) $(SHARE)/models/nano
	$(INSTALL) -m 644 README.md LICENSE $(wildcard docs/*.md) $(DOC)

.PHONY: uninstall
uninstall: ## remove what install put there
	rm -f $(DEST)/bin/mtplx $(DEST)/include/mtplx.h $(DEST)/lib/pkgconfig/mtplx.pc
	rm -f $(addprefix $(DEST)/lib/,libmtplx.a $(SO_REAL) $(SO_NAME) $(SO_LINK))
	rm -rf $(SHARE) $(DOC)

# ---- The rest ------------------------------------------------------------------------------------

.PHONY: clean
clean: ## remove the build directory
	rm -rf $(BUILD)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

# Intermediate objects of programs are kept: they are what makes the next build short.
.SECONDARY:

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

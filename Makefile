# What there is to run. Everything needs a Rust toolchain; `test` also uses python3, Go, a JDK with Maven
# and Node.js, and says so where it has to do without.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO := $(patsubst %/go.mod,%,$(wildcard tests/*/*/go.mod benches/*/go.mod))
DESCRIPTORS := --manifest-path proto/descriptors/Cargo.toml
FUZZ := --manifest-path fuzz/Cargo.toml

# Of `book`.
MDBOOK := 0.5.4
MDBOOK_MERMAID := 0.17.1

MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml).0

# Of the sessions in `soak`; the test takes a million.
STEPS ?= 20000000
# Of its other scenarios, whose steps are longer.
TIMED_STEPS ?= 500000
# Of the rollout guard with control planes as they are, in `soak`.
HISTORIES ?= 1000
# Of `bench` and `page-check`.
ARGS ?=
# Of `swap`, of each kind.
ROUNDS ?= 200
# Of `attacks` and `fuzz`, for each attack and target.
attacks: SECONDS_EACH ?= 10
fuzz: SECONDS_EACH ?= 60
TARGETS ?= $(notdir $(basename $(wildcard fuzz/targets/*.rs)))

# Puts the packed findings of $$target into fuzz/found/$$target, where the fuzzer adds to them.
UNPACK = mkdir -p fuzz/found/$$target; \
	  if [[ -f fuzz/corpus/$$target.tar ]]; then tar --extract --file fuzz/corpus/$$target.tar --directory fuzz/found/$$target; fi
# Options of tar with which equal files give equal archives.
SAME_BYTES := --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644

.PHONY: help quickstart page-check book examples test lint doc fuzz-check msrv attacks bench bench-short swap soak fuzz corpus deny deploy-check dist release ci proto descriptors

help: ## Say what there is to run.
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

quickstart: ## Build, run the relay on an example, show what it answers, stop.
	@tools/quickstart

examples: ## Run the examples, each with what it needs installed first: make examples EXAMPLE=rest.
	tools/examples $(EXAMPLE)

# Both are fetched and compiled once, into the target folder. Pictures are drawn by a script that comes with the second: no
# network is needed to read the book.
book: export PATH := $(CURDIR)/target/book/tools/bin:$(PATH)
book: ## Build the documents as a book: target/book/html/index.html.
	nice cargo install --quiet --locked --root target/book/tools --no-default-features --features search mdbook@$(MDBOOK)
	nice cargo install --quiet --locked --root target/book/tools mdbook-mermaid@$(MDBOOK_MERMAID)
	rm -rf target/book/src target/book/html
	mkdir -p target/book/src
	git ls-files -z -- '*.md' LICENSE config deploy examples tests/interop | xargs -0 cp --parents --target-directory target/book/src
	mv target/book/src/docs/SUMMARY.md target/book/src/SUMMARY.md
	sed -i 's#](#](docs/#; s#](docs/\.\./#](#' target/book/src/SUMMARY.md
	cp book.toml target/book
	mdbook-mermaid install target/book
	mdbook build target/book

# Most tests wait for processes and clocks, not for a core; those that measure take turns by themselves.
test: export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
test: ## Run all tests, those with real Envoy, gRPC and go-control-plane included.
	tests/interop/setup
	cargo test --locked

page-check: ## Check the page of the admin address in Chromium, with 10,000 clients (tests/page/run has the options).
	cargo build --locked
	tests/page/run $(ARGS)

lint: ## Check formatting, lints of Rust and Go, and the form of comments and documents.
	cargo fmt --all --check
	cargo fmt --check $(DESCRIPTORS)
	cargo fmt --check $(FUZZ)
	cargo clippy --locked --all-targets -- -D warnings
	cargo test --locked --quiet --test repo docs::
	@if command -v go >/dev/null; then \
	  unformatted=$$(gofmt -l $(GO)); \
	  if [[ -n $$unformatted ]]; then echo "gofmt -w is due for:" $$unformatted >&2; exit 1; fi; \
	  for modfile in $(GO:=/go*.mod); do \
	    echo "go vet $$modfile"; (cd "$${modfile%/*}"; go vet -modfile="$${modfile##*/}" ./...); \
	  done; \
	elif [[ $${CI:-} == true ]]; then \
	  echo "make lint: there is no go, and in CI nothing may be skipped" >&2; exit 1; \
	else \
	  echo "make lint: SKIPPED: there is no go, so $(GO) was not checked" >&2; \
	fi

doc: ## Build the API documentation; a broken link is an error.
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items

# Without libFuzzer, which is C++ and not needed for checking. In the relay's target folder, for the crates are the same.
fuzz-check: ## Check that the fuzz targets compile.
	CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target} cargo check --locked $(FUZZ) --no-default-features

msrv: ## Check that the oldest Rust version of Cargo.toml compiles the program.
	@cargo +$(MSRV) --version >/dev/null 2>&1 || rustup toolchain install $(MSRV) --profile minimal || \
	  { echo "make msrv: no Rust $(MSRV), and rustup could not install it" >&2; exit 1; }
	cargo +$(MSRV) check --locked

swap: ## Count requests that fail at 20 Envoys under traffic when routes move, through the relay and directly.
	tests/interop/setup
	@for mode in relay direct; do \
	  echo "$$mode:"; \
	  SWAP_ENVOYS=20 SWAP_ROUNDS=$(ROUNDS) INTEROP=$$mode \
	    cargo test --locked --quiet --test interop swap:: -- --nocapture --test-threads=1 || exit 1; \
	done

soak: ## Run random histories against the models for longer: make soak STEPS=100000000.
	DELTAFAN_STEPS=$(STEPS) cargo test --locked --release --test sim sessions::
	DELTAFAN_STEPS=$(TIMED_STEPS) cargo test --locked --release --test sim -- --skip sessions::
	HISTORIES=$(HISTORIES) cargo test --locked --test interop rollout::

attacks: ## Attack the relay for longer, and print a table of them: make attacks SECONDS_EACH=60.
	@echo '| Attack | What bounds it | Memory | Honest p99, before → during | After: over in, p99, memory kept |'
	@echo '|---|---|---|---|---|'
	@DELTAFAN_ATTACK_SECONDS=$(SECONDS_EACH) cargo test --locked --release --test hostile -- \
	  --nocapture --test-threads 1 2>&1 | grep --line-buffered -E '^(test .*\.\.\. )?\||^test result|panicked|harmed|still held|newcomer' | sed -u 's/^test .*\.\.\. |/|/'

bench: ## Measure what a change costs per client (benches/README.md): make bench ARGS='--only named'.
	cargo bench --locked --bench fanout -- $(ARGS)

# Of a build as tests have it: to optimize one as a release is takes longer than all tests do, and none of this depends on it.
bench-short: ## Check what has to hold however fast the machine is; four minutes, once all is compiled.
	cargo bench --locked --profile dev --bench fanout -- --short
	cargo bench --locked --profile dev --bench fanout -- --counts

fuzz: ## Run the fuzz targets for a minute each (docs/fuzzing.md): make fuzz TARGETS=http2 SECONDS_EACH=600.
	@command -v cargo-fuzz >/dev/null || { echo "make fuzz: cargo install cargo-fuzz --locked" >&2; exit 1; }
	for target in $(TARGETS); do \
	  $(UNPACK); \
	  cargo fuzz run --sanitizer none $$target fuzz/found/$$target fuzz/corpus/$$target -- \
	    -max_total_time=$(SECONDS_EACH) -max_len=4096 -timeout=10 -rss_limit_mb=2048; \
	done

corpus: ## Keep what `fuzz` found, minimised, in fuzz/corpus/TARGET.tar: make corpus TARGETS=http2.
	@command -v cargo-fuzz >/dev/null || { echo "make corpus: cargo install cargo-fuzz --locked" >&2; exit 1; }
	for target in $(TARGETS); do \
	  $(UNPACK); \
	  cargo fuzz cmin --sanitizer none $$target fuzz/found/$$target; \
	  (cd fuzz/found/$$target; find . -type f -size -4097c -printf '%P\n' | LC_ALL=C sort | \
	    tar --create --file ../../corpus/$$target.tar --files-from - $(SAME_BYTES)); \
	done

deny: ## Check licences, advisories, sources and versions of what the relay is built of (deny.toml).
	@command -v cargo-deny >/dev/null || { echo "make deny: cargo install cargo-deny --locked" >&2; exit 1; }
	cargo deny --locked check

# Not part of CI: the tools, Helm and promtool among them, take minutes to build.
deploy-check: ## Check chart, dashboard and alerts (deploy/): make deploy-check VALUES=my-values.yaml.
	@deploy/tools/check $(VALUES)

dist: ## Build static binaries, archives and Debian packages, with checksums and licences: target/dist.
	@tools/dist

# Of `release`: the command that has to succeed first.
CHECKS ?= .ci/run
release: ## Check, build and sign a release, without publishing it: make release KEY=$HOME/.ssh/id_ed25519.
	@tools/release '$(KEY)' '$(CHECKS)'

ci: ## What CI runs.
	.ci/run

proto: ## Generate the messages of proto/*.proto again (crates/core/src/proto).
	DELTAFAN_WRITE_PROTO=1 cargo test --locked -p deltafan-core --lib proto::

descriptors: ## Make proto/descriptors.binpb.gz again (proto/README.md).
	cargo run --locked $(DESCRIPTORS)

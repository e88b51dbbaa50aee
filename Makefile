# The commands of this repository. `make` alone lists them.

SHELL := /bin/bash
CARGO ?= cargo
ARGS ?=
# The services that tests need.
SERVICES ?= postgres redis qdrant seaweedfs

export CARGO
export ATELIER_CACHE ?= $(CURDIR)/.services/cache
# Tools that scripts install if the machine does not have them.
export PATH := $(PATH):$(ATELIER_CACHE)/tools/bin

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Build everything and start the server (ARGS="--listen …")
	@scripts/console
	@scripts/minilm --into "$${CARGO_TARGET_DIR:-target}/release" >/dev/null || echo "memory will find words, not meaning"
	$(CARGO) run --release --locked --bin atelier -- serve $(ARGS)

.PHONY: test
test: ## Run all checks and tests with real services (Debian x86-64)
	@scripts/services run $(SERVICES) -- scripts/test

.PHONY: test-embedded
test-embedded: ## Run the tests that need no services (any system)
	@scripts/nextest
	$(CARGO) nextest run --workspace --locked -E 'not test(/Postgres|postgres/)'

.PHONY: judge
judge: ## Run the long tests, for hours: races, kills, fuzzing, mutants (ARGS="races fuzz …")
	@scripts/services run $(SERVICES) -- scripts/judge $(ARGS)

.PHONY: faults
faults: ## Run the tests with faults for hours: kills, freezes, partitions, lost engines (ARGS="kills disk …")
	@scripts/services run $(SERVICES) -- scripts/faults $(ARGS)

.PHONY: check
check: ## Check formatting, lints, invariants and, with cargo-deny, licences and banned crates
	$(CARGO) fmt --all --check
	@scripts/check-invariants
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null; \
	then $(CARGO) deny --locked check bans licenses sources; \
	else echo "cargo-deny is not installed, so licences and banned crates were not checked: cargo install --locked cargo-deny"; fi

.PHONY: docs
docs: ## Write what is generated from the code: docs/reference, tables in docs, web/src/api/tools.json
	UPDATE_SNAPSHOTS=1 $(CARGO) test --quiet --locked -p atelier --bin atelier reference::

.PHONY: dist
dist: ## Make the packages of a release in dist/ (ARGS="--binary PROGRAM" packages that one)
	@scripts/dist $(ARGS)

.PHONY: bench
bench: ## Run the benchmarks (ARGS="…")
	$(CARGO) run --release --locked --bin atelier-bench -- $(ARGS)

.PHONY: bench-memory
bench-memory: ## Measure how well memory finds paraphrases and, with LOCOMO=file.json, answers (VECTORS=1000000 measures speed)
	$(CARGO) run --release --locked --bin atelier-bench -- recall $(LOCOMO) --minilm "$$(scripts/minilm --int8)" \
	    $(if $(MODEL),--model $(MODEL)) $(ARGS)
	$(if $(VECTORS),$(CARGO) run --release --locked --bin atelier-bench -- memory --only-http --facts $(VECTORS) --given)

.PHONY: bench-search
bench-search: ## Measure memory searches over HTTP; fails if the 95th percentile is 50 ms or more
	$(CARGO) run --release --locked --bin atelier-bench -- memory --only-http $(ARGS)

.PHONY: bench-mcp
bench-mcp: ## Compare `atelier mcp` with other MCP file servers (ARGS="--quick")
	@scripts/bench-mcp $(ARGS)

.PHONY: bench-files
bench-files: ## Compare files of conversations with rclone, and reads by MCP with downloads (ARGS="--quick")
	@scripts/bench-files $(ARGS)

.PHONY: bench-scaling
bench-scaling: ## Measure what messages cost in PostgreSQL, and make the tables of docs/scaling.md of it
	$(CARGO) build --release --locked --bin atelier
	scripts/services run postgres -- scripts/scaling/measure "$${CARGO_TARGET_DIR:-target}/release/atelier" --write $(ARGS)
	scripts/scaling/simulate --write docs/scaling.md

.PHONY: screenshots
screenshots: ## Retake the pictures in docs/img; fails if a picture would show an error
	@scripts/screenshots

.PHONY: services
services: ## Start the services that tests need (SERVICES="postgres redis …")
	@scripts/services up $(SERVICES)

.PHONY: services-down
services-down: ## Stop all services
	@scripts/services down

.PHONY: clean-services
clean-services: services-down ## Stop all services and remove their logs and downloads
	rm -rf .services

# Atelier: what a person runs. `make` alone lists the targets.

SHELL := /bin/bash
CARGO ?= cargo
ARGS ?=
# What tests need today; see scripts/services for the others.
SERVICES ?= postgres seaweedfs

export CARGO
export ATELIER_CACHE ?= $(CURDIR)/.services/cache
# Tools that scripts install, when the machine has none of its own.
export PATH := $(PATH):$(ATELIER_CACHE)/tools/bin

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Build everything and start the server (ARGS="--listen …")
	@scripts/console
	$(CARGO) run --release --locked --bin atelier -- serve $(ARGS)

.PHONY: test
test: ## Run all checks and tests, with real services (Debian x86-64)
	@scripts/services run $(SERVICES) -- scripts/test

.PHONY: test-embedded
test-embedded: ## Run the tests that need no services (anywhere)
	@scripts/nextest
	$(CARGO) nextest run --workspace --locked -E 'not test(/Postgres|postgres/)'

.PHONY: judge
judge: ## Run what takes hours: 10,000 races, hundreds of kills, fuzzing, mutants (ARGS="races fuzz …")
	@scripts/services run $(SERVICES) -- scripts/judge $(ARGS)

.PHONY: check
check: ## Check formatting, lints, invariants, licences and banned crates
	$(CARGO) fmt --all --check
	@scripts/check-invariants
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null; \
	then $(CARGO) deny --locked check bans licenses sources; \
	else echo "cargo-deny is not installed: licences and bans not checked (cargo install --locked cargo-deny)"; fi

.PHONY: bench
bench: ## Run the benchmarks (ARGS="…")
	$(CARGO) run --release --locked --bin atelier-bench -- $(ARGS)

.PHONY: bench-mcp
bench-mcp: ## Measure the workspace tool beside other MCP file servers (ARGS="--quick")
	@scripts/bench-mcp $(ARGS)

.PHONY: bench-files
bench-files: ## Measure conversation workspaces beside rclone on the same S3 server (ARGS="--quick")
	@scripts/bench-files $(ARGS)

.PHONY: services
services: ## Start the services that tests use (SERVICES="postgres redis …")
	@scripts/services up $(SERVICES)

.PHONY: services-down
services-down: ## Stop all services
	@scripts/services down

.PHONY: clean-services
clean-services: services-down ## Stop all services; remove their logs and downloads
	rm -rf .services

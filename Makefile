# What people do with this project. Each target first installs what it needs and is not there (scripts/setup).
.DEFAULT_GOAL := help
# Built first and seen, because `cargo xtask` is quiet.
XTASK = cargo build --package xtask && cargo xtask
.PHONY: help run stop test posix soak bench fmt lint clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 14

run: ## make a node in ./demo, mount it at ./demo/mnt, copy a real tree into it twice and verify it
	@scripts/setup run
	cargo build --release --package node
	@$(XTASK) demo start

stop: ## unmount ./demo/mnt and end its daemon; the data stays
	@$(XTASK) demo stop

test: ## every test: format, lints, unit tests, simulated crashes, a quick part of posix and kill
	@scripts/setup test
	@$(XTASK) test

posix: ## POSIX suites and real programs on fresh mounts (about an hour)
	@scripts/setup posix
	@$(XTASK) posix

soak: ## simulated crashes and real kills, of databases and programs too, by turns until told to stop (Ctrl-C)
	@scripts/setup soak
	@$(XTASK) soak

bench: ## how fast and how small, beside ext4, a FUSE pass-through, restic and borg on the same disk, as a table, JSON and a plot in bench/results
	@scripts/setup bench
	@$(XTASK) bench

fmt: ## format the code
	@scripts/setup lint
	cargo fmt --all

lint: ## format and lints, as `make test` checks them
	@scripts/setup lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings

clean: ## remove everything that was built; ./demo is unmounted and stays
	@[ ! -d demo/mnt ] || { $(XTASK) demo stop; }
	cargo clean

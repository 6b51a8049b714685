# Everything runs from here; each target sets up what it needs. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test run test lint types demo bench fuzz clean

PYTEST := .venv/bin/python -m pytest -p no:cacheprovider

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup:
	@scripts/setup run

setup-test:
	@scripts/setup test

run: setup ## set up and start the broker with embedded defaults (ARGS="--amqp 127.0.0.1:5673" to change them)
	@exec .venv/bin/warren serve $(ARGS)

test: setup-test ## set up and run all tests, the engine's both compiled and interpreted
	scripts/test $(ARGS)

lint: setup-test ## ruff: lint and format check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup-test ## mypy --strict over the package and the tests
	.venv/bin/mypy

demo: ## feed real records through four exchange types to several consumers (ARGS="--url amqp://…")
	@scripts/setup demo
	@.venv/bin/python examples/demo.py $(ARGS)

bench: setup-test ## measure against RabbitMQ, write benchmarks/RESULTS.md (ARGS="--only fanout --rounds 1")
	.venv/bin/python benchmarks/run.py $(ARGS)

fuzz: setup-test ## a million mutated frames
	WARREN_TEST_FUZZ_FRAMES=1000000 $(PYTEST) tests/fuzz -s

clean: ## remove what was built and installed, keep data
	rm -rf .venv .cache build *.egg-info .mypy_cache .ruff_cache .hypothesis

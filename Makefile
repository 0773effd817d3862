# Every command of the project. Paths are relative throughout, so that a path with spaces works.

.DEFAULT_GOAL := help
.PHONY: install demo test check lint bench smoke chaos corruption simulate clean help java spark test-spark test-java bookkeeper pulsar

python := .venv/bin/python

# The tests start processes by the hundred; each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

install: ## make .venv with the ackgate command and the real pulsar-client
	@bash scripts/install.sh

demo: install ## the story in a terminal: acks out of order, the gate, kill -9, nothing comes again
	@$(python) examples/demo.py $(ARGS)

test: WORKERS ?= 3
test: spark java bookkeeper ## every test, WORKERS=3 files at a time; ARGS="-k gate -x" for some of them
	@mkdir -p build
	@$(python) -m pytest -n $(WORKERS) --no-loadscope-reorder --junit-xml=build/junit.xml $(ARGS)

check: install lint ## lint, types and the tests that need no server: a minute, no Java; for whoever changes a line
	@HYPOTHESIS_PROFILE=quick $(python) -m pytest -q -n 2 -m "not slow" \
		tests/transcripts tests/unit tests/property --ignore=tests/unit/pipeline --ignore=tests/property/pipeline $(ARGS)

lint: install ## ruff, mypy and the import directions
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy
	@.venv/bin/lint-imports --no-logo

bench: spark java ## measure, side by side with the peers that can run here; ARGS="--only bench_acks" for one
	@$(python) -m bench $(ARGS)

smoke: spark java ## every benchmark at toy size: they run, their figures mean nothing
	@$(python) -m bench --smoke $(ARGS)

chaos: CYCLES ?= 20
chaos: spark java ## kill, freeze, cut off and starve working brokers; FORM=single, cluster or bookkeeper, CYCLES=200, SEED=7 to repeat a run
	@$(python) -m tests.chaos --cycles $(CYCLES) $(if $(SEED),--seed $(SEED)) $(if $(FORM),--form $(FORM)) $(ARGS)

corruption: CASES ?= 600
corruption: install ## damage every kind of file, one at a time, and look what becomes of it; CASES=2000, SEED=7 to repeat a run
	@$(python) -m tests.corruption --cases $(CASES) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: SEEDS ?= 1000
simulate: SEED ?= 0
simulate: install ## several brokers in virtual time, with crashes and faults by the thousand; SEEDS=n for more, SEED=7 for the first
	@$(python) -m tests.support.simulation --seeds $(SEEDS) --first $(SEED) $(ARGS)

clean: ## remove everything that these commands made, .venv too
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

spark: install
	@bash scripts/install.sh spark

test-spark: SPARK ?= 4.3.0
test-spark: java ## the pipeline's tests on another PySpark, 4.0 to 4.3: SPARK=4.3.0 ARGS="-k frames"
	@bash scripts/test-spark.sh $(SPARK) $(ARGS)

test-java: install java ## the module for Java's tests (java/), with the real Java client; needs a JDK, and Maven, which fetches the client once
	@ACKGATE_COMMAND="$(CURDIR)/.venv/bin/ackgate" mvn -q -B -f java/pom.xml -Doutput="$(CURDIR)/build/java" test $(ARGS)

java:
	@bash scripts/ensure-java.sh

bookkeeper: java
	@bash scripts/ensure-bookkeeper.sh

pulsar: java ## fetch the real Pulsar (235 MB): the tests of `ackgate pulsar` are skipped without it
	@bash scripts/ensure-pulsar.sh

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '%-18s%s\n' "$$name" "$$what"; done

# Everything runs from here; each target sets up what it needs. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-check setup-spark run test test-long test-cluster-clients test-often check lint types demo cluster bench bench-flows bench-cluster bench-backlog bench-scale bench-rules bench-streams bench-pauses bench-protocols bench-shapes bench-spark pipeline lake-example fuzz abuse soak churn crashtest lake-kills spark-kills mutants mutants-rules mutants-cluster protocol cluster-faults cluster-partitions kubernetes verify screenshots docs dist manifests clean

PYTEST := .venv/bin/python -m pytest -p no:cacheprovider

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup:
	@scripts/setup run

setup-test:
	@scripts/setup test

setup-check:
	@scripts/setup check

run: ## set up and start the broker with embedded defaults (ARGS="--amqp 127.0.0.1:5673" to change them)
	@exec $(or $(PYTHON),python3) scripts/run.py $(ARGS)

test: setup-check ## set up and run all tests but the long ones
	scripts/test $(ARGS)

test-long: setup-check ## the tests that are marked long: most of browsers, Spark and kills, large numbers; random ones at full length
	scripts/test --long $(ARGS)

test-cluster-clients: setup-test ## what clients of others do, at a node of a cluster that does not lead (ARGS="compat/pika_client")
	cd tests && WARREN_TEST_CLUSTER=1 ../$(PYTEST) $(or $(ARGS),compat)

test-often: setup-test ## run all tests N=20 times, every second time beside LOAD=6 busy processes (ARGS="crash" for a part)
	scripts/often.py $(or $(N),20) --load $(or $(LOAD),6) $(ARGS)

check: setup-check ## lint, types, the tests of what changed against main, new ones ten times, on the source (ARGS=COMMIT)
	scripts/check $(ARGS)

lint: setup-check ## ruff: lint and format check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup-check ## mypy --strict over the package and the tests
	.venv/bin/mypy

demo: ## feed real records through four exchange types to several consumers (ARGS="--url amqp://…")
	@scripts/setup demo
	@.venv/bin/python examples/demo.py $(ARGS)

cluster: ## three nodes and their etcd on this machine, clients, and commands that break them (ARGS="'kill leader'")
	@scripts/setup cluster
	@.venv/bin/python examples/three_nodes.py $(ARGS)

bench: setup-test ## measure against RabbitMQ, write benchmarks/RESULTS.md (ARGS="--only fanout --rounds 1")
	.venv/bin/python benchmarks/run.py $(ARGS)

bench-flows: setup-test ## what a message costs by queues, connections and batches: instructions, by valgrind; benchmarks/FLOWS.md (ARGS="--functions 30")
	.venv/bin/python benchmarks/flows.py --write $(ARGS)

bench-backlog: setup-test ## ten million messages waiting, restarts with them, benchmarks/BACKLOG.md (ARGS="--count 1000000")
	.venv/bin/python benchmarks/backlog.py $(ARGS)

bench-scale: setup-test ## very many queues, bindings, connections, streams and vhosts, benchmarks/SCALE.md (ARGS="--only queues")
	.venv/bin/python benchmarks/scale.py $(ARGS)

bench-cluster: setup-test ## three nodes beside quorum queues and one node, and faults, benchmarks/CLUSTER.md (ARGS="--only kill")
	.venv/bin/python benchmarks/cluster.py $(ARGS)

bench-rules: setup-test ## what the rules of queues cost, benchmarks/RULES.md (ARGS="--rounds 1 --seconds 2")
	.venv/bin/python benchmarks/rules.py $(ARGS)

bench-streams: setup-test ## streams beside queues and RabbitMQ's streams, benchmarks/STREAMS.md (ARGS="--rounds 1")
	.venv/bin/python benchmarks/streams.py $(ARGS)

bench-shapes: setup-test ## ordinary shapes of use: telemetry, calls, many queues, single messages, benchmarks/SHAPES.md (ARGS="--only rpc")
	.venv/bin/python benchmarks/shapes.py $(ARGS)

bench-pauses: setup-test ## the longest waits of single messages over an hour, benchmarks/PAUSES.md (ARGS="--minutes 5")
	.venv/bin/python benchmarks/pauses.py $(ARGS)

bench-protocols: setup-test ## AMQP 1.0, MQTT and STOMP beside RabbitMQ and mosquitto, benchmarks/PROTOCOLS.md (ARGS="--rabbitmq PROGRAM")
	.venv/bin/python benchmarks/protocols.py $(ARGS)

bench-spark: setup-test ## the Spark bridge beside Spark's reader of Parquet, benchmarks/SPARK.md (ARGS="--rows 1000000")
	.venv/bin/python benchmarks/spark.py $(ARGS)

setup-spark: ## install Spark and pyarrow beside Warren: for its data source, warren export and warren import
	@scripts/setup pipeline

pipeline: ## weather through a stream, Spark and back to an exchange, checked (ARGS="--out DIR")
	@scripts/setup pipeline
	@.venv/bin/python examples/pipeline.py $(ARGS)

lake-example: ## weather into a table that follows by itself, a page of plots, alerts, checked (ARGS="--days 90", "--follow")
	@scripts/setup lake
	@.venv/bin/python examples/weather_lake.py $(ARGS)

fuzz: setup-test ## a million mutated frames each of 0-9-1, AMQP 1.0, STOMP and MQTT
	WARREN_TEST_FUZZ_FRAMES=1000000 $(PYTEST) tests/fuzz -s

abuse: setup-test ## what hostile peers cost an innocent one; a million methods and 100,000 requests with extreme values
	cd tests && ../.venv/bin/python -m abuse $(ARGS)
	cd tests && ../.venv/bin/python -m abuse.sequences
	cd tests && ../.venv/bin/python -m abuse.requests

soak: setup-test ## a seeded mixture of everything for HOURS=1, with faults; contents, memory and disk are judged (SEED=7)
	cd tests && ../.venv/bin/python -m soak --hours $(or $(HOURS),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

churn: setup-test ## clients of all protocols, users, vhosts and links come and go N=80 times; live objects are as before
	cd tests && WARREN_TEST_CHURN_ROUNDS=$(or $(N),80) ../$(PYTEST) -q -s integration/test_churn.py $(ARGS)

# As long as one likes: more of it, or other suites with a long form, go into these two lines.
CRASHTEST := WARREN_TEST_CRASH_CYCLES=$${WARREN_TEST_CRASH_CYCLES:-500} \
	WARREN_TEST_CRASH_STATES=$${WARREN_TEST_CRASH_STATES:-3000000}
CRASHTESTS := crash simulation

crashtest: setup-test ## kill the broker 500 times under load, 3 million crash states of a simulated disk
	$(CRASHTEST) scripts/test -s $(CRASHTESTS) $(ARGS)

verify: setup-test ## make the attacks of docs/verification.md, and write their counts there: most of a day (ARGS="fuzzing leaks")
	$(or $(PYTHON),python3) scripts/verify.py $(ARGS)

lake-kills: setup-test ## kill warren lake and the broker 20 times while tables follow, and check every row (WARREN_TEST_LAKE_KILLS)
	WARREN_TEST_LAKE_KILLS=$${WARREN_TEST_LAKE_KILLS:-20} scripts/test -s integration/lake $(ARGS)

spark-kills: setup-test ## kill Spark drivers, executors, brokers, catalogues, S3 100 times, benchmarks/SPARK_KILLS.md (ARGS="--kills 10")
	cd tests && ../.venv/bin/python -m spark.chaos $(ARGS)

mutants: setup-test ## break the store on purpose: the crash simulation has to notice each mutant
	cd tests && PYTHONPATH=. ../.venv/bin/python simulation/mutants.py $(ARGS)

mutants-cluster: setup-check ## break the protocol of a cluster on purpose: its tests have to notice each mutant
	cd tests && PYTHONPATH=. ../.venv/bin/python -m cluster.mutants $(ARGS)

cluster-faults: setup-test ## random faults on N=20 clusters of three nodes, each under load (SEED=7)
	cd tests && ../.venv/bin/python -m integration.clustering.fault_schedules $(or $(N),20) $(SEED)

cluster-partitions: setup-test ## cuts, loss, silent machines, bad disks and clocks on three machines in namespaces; root (ARGS="--trials 20 leader-silent")
	cd tests && ../.venv/bin/python -m cluster_lab $(ARGS)

kubernetes: setup-test ## the manifests as processes in namespaces: kills, updates, 1 to 5 nodes and back under load; root (ARGS="--seed 7")
	cd tests && ../.venv/bin/python -m kube_lab $(ARGS)

protocol: setup-check ## look at every state of the protocol of a cluster within wider bounds (ARGS="--seconds 600")
	cd tests && PYTHONPATH=.. ../.venv/bin/python -m cluster.promises
	cd tests && PYTHONPATH=.. ../.venv/bin/python -m cluster.protocol $(ARGS)

mutants-rules: setup-check ## break the rules of the engine at random, in 300 ways, and print which nobody noticed (ARGS="--seed 7")
	cd tests && PYTHONPATH=. ../.venv/bin/python -m mutation $(ARGS)

screenshots: setup-test ## draw the pictures of docs/management.md anew, with Chromium
	cd tests && ../.venv/bin/python -m browser.screenshots $(ARGS)

docs: setup-check ## make a searchable site of the documentation in build/site/; broken links and anchors fail
	$(or $(PYTHON),python3) scripts/site.py

dist: ## make what a release consists of, in dist/: wheels, Debian package, … (ARGS="sbom notes" for some of it)
	$(or $(PYTHON),python3) scripts/dist.py $(ARGS)

manifests: ## write the Kubernetes manifests anew from the Helm chart
	$(or $(PYTHON),python3) scripts/dist.py manifests

clean: ## remove what was built and installed, keep data
	rm -rf .venv .cache build *.egg-info .mypy_cache .ruff_cache .hypothesis

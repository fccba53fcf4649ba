# `make help` lists the targets. All of them need only Go and make, except for the race detector, which needs a C
# compiler (make race), and the servers that integration/install.sh installs (make integration).

# The command that runs tests. CI sets it in the environment to a runner that also counts them.
GOTEST ?= go test

# With 0, tests whose server is missing are skipped, for example those that kill a server that docker compose runs.
REQUIRE_SERVICES ?= 1

GOTOOL  = go tool -modfile=$(CURDIR)/internal/tools/go.mod
MODULES = . integration internal/tools
# The modules to lint; internal/tools has only a few lines for CI.
LINTED  = . integration

FUZZTIME ?= 40000x
COUNT    ?= 1
BENCH    ?= .

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A first run mostly compiles and links. The compiler collects its garbage less often, which saves a sixth of its time
# and does not change its output, so that go run and go build can use it; test programs are linked without debug tables,
# which stack traces do not need, and `make lint` runs go vet.
QUICK = -ldflags='-s -w' -toolexec 'env GOGC=400'

# SQLite translated from C makes up most of the time under the race detector, which has nothing to find in it: it works
# on its own memory. Its Go driver, through which all of our data passes, is instrumented like everything else.
RACE = -race $(foreach p,sqlite/lib libc/... memory,-gcflags='modernc.org/$(p)=-race=false')

.PHONY: test
test: ## run the tests of the library; needs only Go (minutes at first, then seconds for unchanged packages)
	$(GOTEST) -vet=off -p 6 $(QUICK) ./...

.PHONY: race
race: ## run them shuffled under the race detector, COUNT times; needs a C compiler
	$(GOTEST) -vet=off $(RACE) -shuffle=on $(QUICK) -p 3 -timeout 30m -count=$(COUNT) ./dlq/redrive ./dlq/dlqhttp ./cmd/redrive ./...

.PHONY: plain
plain: ## run the few tests that the race detector skips: allocations, stack frames, and a race of watermill-amqp's own
	$(GOTEST) -count=1 -run 'Frames|Allocat' ./middleware
	cd integration && REQUIRE_SERVICES=$(REQUIRE_SERVICES) $(GOTEST) -count=1 -run 'TestNetwork_CutsAndKillsLoseNothing/RabbitMQ' ./watermill

# A long package that starts last would run alone. Packages mostly wait, so there is one more than a small machine has
# cores.
LONGEST = ./sqlstore ./dashboard ./rabbitmq ./sqlqueue ./kafkatest ./watermill ./examples ./redrive ./services ./observability

.PHONY: integration
integration: ## run the tests against real RabbitMQ, Kafka, PostgreSQL, MariaDB and MySQL; fails if one is missing
	cd integration && REQUIRE_SERVICES=$(REQUIRE_SERVICES) $(GOTEST) -vet=off $(RACE) \
	  -shuffle=on $(QUICK) -p 3 -timeout 45m $(LONGEST) ./...

CHAOS_ROUNDS ?= 10
CHAOS_SEED   ?= 0

.PHONY: chaos
chaos: ## break everything around a service, CHAOS_ROUNDS times on each broker, and check that no message is lost (CHAOS_SEED repeats a run)
	cd integration && REQUIRE_SERVICES=$(REQUIRE_SERVICES) $(GOTEST) -count=1 -v -timeout 6h -run TestChaos ./chaos \
	  -chaos.rounds $(CHAOS_ROUNDS) -chaos.seed $(CHAOS_SEED) -chaos.delete -chaos.clusters

.PHONY: lint
lint: ## run go vet and golangci-lint in every module (the first run builds the linter, 1 to 3 minutes)
	@set -e; for m in $(LINTED); do \
	  echo "lint $$m"; (cd $$m && go vet ./... && $(GOTOOL) golangci-lint run -c $(CURDIR)/.golangci.yml ./...); \
	done

.PHONY: deadcode
deadcode: ## list functions that no program and no test reaches
	$(GOTOOL) deadcode -test ./...

.PHONY: vuln
vuln: ## look for known vulnerabilities in what the library calls (asks the Go vulnerability database)
	$(GOTOOL) govulncheck ./...

.PHONY: fmt
fmt: ## rewrite the sources with gofumpt and goimports
	@set -e; for m in $(LINTED); do (cd $$m && $(GOTOOL) golangci-lint fmt -c $(CURDIR)/.golangci.yml ./...); done

.PHONY: fmt-check
fmt-check: ## fail if a source is not formatted, or a built program was committed
	@large=$$(git ls-files -z | xargs -0 -r sh -c 'find "$$@" -size +2048k 2>/dev/null' sh); \
	if [ -n "$$large" ]; then echo "larger than 2 MB, is it meant to be committed?"; echo "$$large"; exit 1; fi
	@unformatted=$$(gofmt -l . && $(GOTOOL) gofumpt -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "run make fmt for:"; echo "$$unformatted" | sort -u; exit 1; fi

.PHONY: tidy
tidy: ## tidy the modules
	@set -e; for m in $(MODULES); do (cd $$m && go mod tidy); done

.PHONY: tidy-check
tidy-check: ## fail if a module is not tidy
	@set -e; for m in $(MODULES); do echo "tidy $$m"; (cd $$m && go mod tidy -diff); done

.PHONY: cover
cover: ## write coverage.out and print the share of the library's statements that its tests run
	$(GOTEST) -coverprofile=coverage.out -coverpkg=./... ./...
	@go tool cover -func=coverage.out | tail -n 1

.PHONY: bench
bench: ## run the benchmarks (BENCH=pattern), in the form that benchstat reads
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (40000x: inputs; 5m: a time)
	@internal/tools/fuzz.sh $(FUZZTIME)

# The newest version whose requirements can all be downloaded by a go command of 1.26.
GORELEASER = go run github.com/goreleaser/goreleaser/v2@v2.16.0

.PHONY: snapshot
snapshot: ## build the Linux part of a release into dist, without the image (ALL_PLATFORMS=1: all of it; the first run builds goreleaser)
	$(GORELEASER) check
	$(GORELEASER) release --snapshot --clean --skip=docker

.PHONY: up
up: ## start RabbitMQ, Kafka, PostgreSQL, MariaDB, MySQL, Prometheus and Grafana with docker compose
	docker compose --profile rabbit --profile kafka --profile sql --profile obs up --detach --wait

.PHONY: down
down: ## stop them and delete their data
	docker compose --profile rabbit --profile kafka --profile sql --profile obs down --volumes

.PHONY: services
services: ## start the same servers without Docker, print their addresses, and stop them at Ctrl-C
	cd integration && go run ./cmd/services
